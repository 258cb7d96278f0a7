"""Backward in Triton, in two kernels without atomic additions, so that gradients repeat bit by bit.

`query_kernel` takes a block of queries through the keys twice. The first sweep finds the totals of each row:
D and the offsets of both boundaries' gradients. The second computes the gradients of queries, and keeps what
each row carries into each tile of keys: its prefix sums so far. With these `key_kernel`, which takes a tile
of keys through the queries, can start at any tile; it computes the gradients of keys and values.

Per row, with dA = dO Vᵀ times what dropout kept, and M = F_l G_r + F_r G_l:
  multiplicative: dS = P (dA M − D), D = Σ P M dA, dM = P dA;
  additive: dS = A (dA − D), D = Σ A dA, the gradient of the local score dS M, dM = dS o;
  dφ_l = Σ_{from here on} dM G_r + Σ_{up to here} dM F_r = prefix(dM (F_r − G_r)) + dM G_r + Σ dM G_r;
  the softmax takes off Σ φ_l dφ_l = Σ dM M, as M is linear in φ_l. The right boundary is the mirror image.
With a normalised window A = P M, where P has the sum of A as its divisor: dS = A (dA − D), dM = P (dA − D).
Where the weights of a row sum to one (additive, normalised), one number may be taken off all its dA, as D
loses it too. The kernels take off dO · O, which is D but for roundings: otherwise large sums would cancel in
the totals, which are taken before D is known.
At sinks, where M is 1, dM is 0, and Σ dM M runs over the other keys. Where M is cut to 0, dM is 0. Where that
is so all over a tile, only φ and its gradient are computed, and: multiplicative scores, of which dS = −P D is
left; additive scores and dA, but neither the local score nor its gradients.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from diffwindow.kernels.triton_tiles import (
    LN_2,
    Norms,
    Prefix,
    at_segment_end,
    at_segment_start,
    boundaries,
    count_tiles,
    cut_window,
    is_reached,
    is_sink,
    kept_share,
    load_keys,
    load_queries,
    load_rows,
    look,
    narrow,
    place_of,
    product,
    segment_masses,
    store_rows,
    tile_keys,
    tile_window,
    weight_logits,
    with_lengths,
)

# No kernel is compiled again for other values of these.
LENGTHS = ("query_count", "key_count", "first_row", "last_row", "all_tiles")


class Incoming(NamedTuple):
    """dO of a block of queries, and the number that each row takes off its dA."""

    rows: Any
    base: Any


class Totals(NamedTuple):
    """Sums over all keys of a row: D, and Σ dM G_r − Σ dM M for the left boundary, or its mirror."""

    delta: Any
    left: Any
    right: Any


class Carry(NamedTuple):
    """What a row brings into a tile: F, and the prefix sums of dM (F − G) of the other boundary.

    Within a segment longer than a tile F is that before the segment, the masses are the segment's sums of φ,
    and in the place of the prefix sums stands all that φ is multiplied with.
    """

    before_left: Any
    before_right: Any
    scan_left: Any
    scan_right: Any
    mass_left: Any
    mass_right: Any


@triton.jit
def load_norms(base, head, row_count, rows, inside):
    """Load the normalisers of rows from `[head, row, 4]`."""
    row = base + (head * row_count + rows) * 4
    top = tl.load(row, mask=inside, other=0.0)
    inverse = tl.load(row + 1, mask=inside, other=0.0)
    left = tl.load(row + 2, mask=inside, other=0.0)
    return Norms(top, inverse, left, tl.load(row + 3, mask=inside, other=0.0))


@triton.jit
def load_totals(base, head, row_count, rows, inside):
    """Load the totals of rows, and the base of their dA, from `[head, row, 4]`."""
    row = base + (head * row_count + rows) * 4
    delta = tl.load(row, mask=inside, other=0.0)
    left = tl.load(row + 1, mask=inside, other=0.0)
    right = tl.load(row + 2, mask=inside, other=0.0)
    return Totals(delta, left, right), tl.load(row + 3, mask=inside, other=0.0)


@triton.jit
def normalise(x, window, norms, how: tl.constexpr):
    """Return the weights of a tile of logits, before dropout, or over M if the window is normalised."""
    x -= norms.top[:, None]
    if how.normalize:
        # An M at the threshold may have been cut in forward and not here: its score may exceed the maximum.
        most = -tl.log2(tl.where(window == 0.0, 1.0, window))
        x = tl.minimum(x, most, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(x) * norms.inverse[:, None]


@triton.jit
def carry_address(base, head, tile, all_tiles, row_count, rows, how: tl.constexpr):
    """Return where rows keep what they carry into a tile: `[head, tile, value, row]`."""
    values: tl.constexpr = 6 if how.segments == "long" else 4
    return base + (head * all_tiles + tile) * values * row_count + rows


@triton.jit
def weight_gradients(p, place, queries, keys, grad, how: tl.constexpr):
    """Return the gradients of a tile's weights before dropout, dO Vᵀ − base, and what dropout keeps."""
    v = load_keys(p.v, place, keys, how.value, how)
    kept = 1.0
    if how.dropout:
        kept = kept_share(p, place, queries, keys)
    dweights = product(grad.rows, tl.trans(v), how) * kept
    if how.additive or how.normalize:
        dweights -= grad.base[:, None]
    return dweights, kept


@triton.jit
def score_gradients(p, place, keys, weights, local, window, dweights, delta, how: tl.constexpr):
    """Return the gradients of a tile's scores and of its window."""
    if how.additive:
        ds = weights * (dweights - delta[:, None])
        dm = ds * local * LN_2
    elif how.normalize:
        dm = weights * (dweights - delta[:, None])
        ds = dm * window
    else:
        dm = weights * dweights
        ds = dm * window - weights * delta[:, None]
    if how.cut:
        dm = tl.where(window == 0.0, 0.0, dm)
    if how.sinks:
        dm = tl.where(is_sink(p, place, keys), 0.0, dm)
    return ds, dm


@triton.jit
def boundary_gradients(
    p, phi_left, phi_right, sums_left, sums_right, carry, totals, dm, how: tl.constexpr
):  # fmt: skip
    """Return the gradients of both boundaries' logits over a tile, and the steps of the prefix sums."""
    if how.segments == "long":
        zeros = tl.zeros_like(carry.scan_left)
        left = phi_left * carry.scan_left[:, None]
        return left, phi_right * carry.scan_right[:, None], zeros, zeros
    f_left, g_left = sums_left
    f_right, g_right = sums_right
    step_left = dm * (f_right - g_right)
    step_right = dm * (f_left - g_left)
    upto_left = tl.cumsum(step_left, 1)
    upto_right = tl.cumsum(step_right, 1)
    mass_left, mass_right = phi_left, phi_right
    if how.segments == "short":
        size = p.shape.segment_size
        upto_left = at_segment_end(upto_left, size)
        upto_right = at_segment_end(upto_right, size)
        upto = tl.cumsum(dm, 1)
        dm = at_segment_end(upto, size) - at_segment_start(upto - dm, size)
        mass_left = f_left + g_left - 1.0
        mass_right = f_right + g_right - 1.0
    slope_left = (carry.scan_left + totals.left)[:, None] + upto_left + dm * g_right
    slope_right = (carry.scan_right + totals.right)[:, None] + upto_right + dm * g_left
    if how.exact:
        slope_left -= dm * mass_right
        slope_right -= dm * mass_left
    return phi_left * slope_left, phi_right * slope_right, tl.sum(step_left, 1), tl.sum(step_right, 1)


@triton.jit
def near_gradients(
    p, place, queries, keys, visible, grad, norms, totals, phi_left, phi_right, carry, how: tl.constexpr
):  # fmt: skip
    """Return what `differentiate` does, but for the steps of F, over a tile that the window reaches."""
    window, sums_left, sums_right = tile_window(p, place, keys, phi_left, phi_right, carry, how)
    x, local = weight_logits(p, place, queries, keys, visible, window, how, reached=True)
    weights = normalise(x, window, norms, how)
    dweights, kept = weight_gradients(p, place, queries, keys, grad, how)
    ds, dm = score_gradients(p, place, keys, weights, local, window, dweights, totals.delta, how)
    met = weights * kept
    if not how.additive:
        met *= window
    dleft, dright, scan_left, scan_right = boundary_gradients(
        p, phi_left, phi_right, sums_left, sums_right, carry, totals, dm, how
    )
    return met, ds, ds * window, dleft, dright, scan_left, scan_right


@triton.jit
def far_gradients(
    p, place, queries, keys, visible, grad, norms, totals, phi_left, phi_right, carry, how: tl.constexpr
):  # fmt: skip
    """Return what `near_gradients` does over a tile that the window does not reach."""
    zeros = tl.zeros_like(phi_left)
    met, ds = zeros, zeros
    if not how.normalize:
        x, _ = weight_logits(p, place, queries, keys, visible, zeros, how, reached=False)
        weights = normalise(x, zeros, norms, how)
        if how.additive:
            dweights, kept = weight_gradients(p, place, queries, keys, grad, how)
            ds = weights * (dweights - totals.delta[:, None])
            met = weights * kept
        else:
            ds = weights * -totals.delta[:, None]
    slope_left, slope_right = carry.scan_left, carry.scan_right
    if how.segments != "long":
        slope_left += totals.left
        slope_right += totals.right
    still = tl.zeros_like(carry.scan_left)
    return met, ds, zeros, phi_left * slope_left[:, None], phi_right * slope_right[:, None], still, still


@triton.jit
def differentiate(p, place, queries, keys, grad, norms, totals, carry, how: tl.constexpr):
    """Return the keys seen, the weights after dropout, gradients, and the steps of what rows carry.

    The gradients are those of the scores, the local scores, and the left and right boundaries' logits; the
    steps are those of F and of the prefix sums, left and right. The last result says whether the window
    reaches the tile. Otherwise the gradients of local scores are 0, without local scores the weights, and
    with a normalised window the gradients of scores too.
    """
    visible, keys = look(p, place, queries, keys, how)
    phi_left, phi_right = boundaries(p, place, queries, keys, visible, norms, how)
    reached = is_reached(p, place, keys, phi_left, phi_right, carry, how)
    if reached:
        met, ds, dlocal, dleft, dright, scan_left, scan_right = near_gradients(
            p, place, queries, keys, visible, grad, norms, totals, phi_left, phi_right, carry, how
        )
    else:
        met, ds, dlocal, dleft, dright, scan_left, scan_right = far_gradients(
            p, place, queries, keys, visible, grad, norms, totals, phi_left, phi_right, carry, how
        )
    steps = (tl.sum(phi_left, 1), tl.sum(phi_right, 1), scan_left, scan_right)
    return keys, met, (ds, dlocal, dleft, dright), steps, reached


@triton.jit
def find_totals(p, place, queries, grad, norms, tiles, how: tl.constexpr):
    """Sweep the keys for the totals of rows.

    Additive: dM = A (dA − D) o, and D is known only after the sweep, so the sums with dA and those without it
    are kept apart; so with a normalised window.
    """
    zeros = tl.zeros([how.rows], tl.float32)
    delta, sunk, moment, moment_left, moment_right = zeros, zeros, zeros, zeros, zeros
    spread, spread_left, spread_right = zeros, zeros, zeros
    before_left, before_right, mass_left, mass_right = zeros, zeros, zeros, zeros
    for tile in range(0, tiles):
        keys = tile_keys(p, place, tile, how)
        visible, keys = look(p, place, queries, keys, how)
        if how.segments == "long":  # noqa: SIM102 (decided at compile time, the other at run time)
            if tile % p.shape.tiles_per_stride == 0:
                before_left += mass_left
                before_right += mass_right
                mass_left, mass_right = segment_masses(p, place, queries, tile, norms, how)
        phi_left, phi_right = boundaries(p, place, queries, keys, visible, norms, how)
        prefix = Prefix(before_left, before_right, mass_left, mass_right)
        reached = is_reached(p, place, keys, phi_left, phi_right, prefix, how)
        if reached:
            window, sums_left, sums_right = tile_window(p, place, keys, phi_left, phi_right, prefix, how)
            x, local = weight_logits(p, place, queries, keys, visible, window, how, reached=True)
            weights = normalise(x, window, norms, how)
            dweights, _ = weight_gradients(p, place, queries, keys, grad, how)
            if how.additive:
                delta += tl.sum(weights * dweights, 1)
                weights *= local * LN_2
            if how.cut:
                weights = tl.where(window == 0.0, 0.0, weights)
            share = weights * dweights
            if how.sinks:
                shown = is_sink(p, place, keys)
                sunk += tl.sum(tl.where(shown, share, 0.0), 1)
                weights = tl.where(shown, 0.0, weights)
                share = tl.where(shown, 0.0, share)
            if how.additive or how.normalize:
                spread += tl.sum(weights * window, 1)
                spread_left += tl.sum(weights * sums_right[1], 1)
                spread_right += tl.sum(weights * sums_left[1], 1)
            moment += tl.sum(share * window, 1)
            moment_left += tl.sum(share * sums_right[1], 1)
            moment_right += tl.sum(share * sums_left[1], 1)
        elif how.additive:
            zero = tl.zeros_like(phi_left)
            x, _ = weight_logits(p, place, queries, keys, visible, zero, how, reached=False)
            dweights, _ = weight_gradients(p, place, queries, keys, grad, how)
            delta += tl.sum(normalise(x, zero, norms, how) * dweights, 1)
        if how.segments != "long":
            before_left += tl.sum(phi_left, 1)
            before_right += tl.sum(phi_right, 1)
    if not how.additive:
        delta = moment + sunk
    if how.additive or how.normalize:
        left = moment_left - moment - delta * (spread_left - spread)
        return Totals(delta, left, moment_right - moment - delta * (spread_right - spread))
    return Totals(delta, moment_left - moment, moment_right - moment)


@triton.jit
def segment_window_gradient(
    p, place, queries, tile, grad, norms, delta, left, right, how: tl.constexpr
):  # fmt: skip
    """Sum dM over the segment that starts with a tile; `left` and `right` are F before it and its mass."""
    window = (left[0] + left[1]) * (1.0 - right[0]) + (right[0] + right[1]) * (1.0 - left[0])
    if how.exact:
        window -= left[1] * right[1]
    window = cut_window(p, window, how)
    reached = True
    if how.cut:
        reached = tl.max(tl.where(window == 0.0, 0, 1), 0) > 0
    total = tl.zeros([how.rows], tl.float32)
    if reached:
        for part in range(tile, tile + p.shape.tiles_per_stride):
            keys = tile_keys(p, place, part, how)
            visible, keys = look(p, place, queries, keys, how)
            x, local = weight_logits(p, place, queries, keys, visible, window[:, None], how, reached=True)
            weights = normalise(x, window[:, None], norms, how)
            dweights, _ = weight_gradients(p, place, queries, keys, grad, how)
            _, dm = score_gradients(p, place, keys, weights, local, window[:, None], dweights, delta, how)
            total += tl.sum(dm, 1)
    return total


@triton.jit(do_not_specialize=LENGTHS)
def query_kernel(
    p, dout, statistics, row_totals, carries, out, dq, dq_left, dq_right, dq_local, query_count, key_count,
    first_row, last_row, all_tiles, how: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries, the totals of its rows, and what they carry.

    Rows from `first_row` to before `last_row` are the ones that `row_totals` and `carries` have a place for.
    """
    p = with_lengths(p, query_count, key_count)
    row_count = last_row - first_row
    blocks = tl.cdiv(row_count, how.rows)
    # Causal blocks differ in length: the longest start first.
    block = blocks - 1 - tl.program_id(0) % blocks
    place = place_of(p, tl.program_id(0) // blocks)
    head = place.batch * p.shape.heads + place.head
    rows = first_row + block * how.rows + tl.arange(0, how.rows)
    inside = rows < last_row
    norms = load_norms(statistics, head, p.shape.queries, rows, inside)
    # Queries that see no key may hold anything.
    seeing = inside & (norms.inverse != 0.0)
    queries = load_queries(p, place, rows, seeing, how)
    grad = load_rows(dout, place, rows, seeing, how.value, how)
    base = tl.zeros([how.rows], tl.float32)
    if how.additive or how.normalize:
        base = tl.sum(grad.to(tl.float32) * load_rows(out, place, rows, seeing, how.value, how), 1)
    grad = Incoming(grad, base)
    tiles = count_tiles(p, place, rows, how)
    totals = find_totals(p, place, queries, grad, norms, tiles, how)
    kept = row_totals + (head * row_count + rows - first_row) * 4
    tl.store(kept, totals.delta, mask=inside)
    tl.store(kept + 1, totals.left, mask=inside)
    tl.store(kept + 2, totals.right, mask=inside)
    tl.store(kept + 3, base, mask=inside)

    sum_score = tl.zeros([how.rows, how.score], tl.float32)
    sum_left = tl.zeros([how.rows, how.left], tl.float32)
    sum_right = tl.zeros([how.rows, how.right], tl.float32)
    sum_local = tl.zeros([how.rows, how.local], tl.float32)
    zeros = tl.zeros([how.rows], tl.float32)
    before_left, before_right, mass_left, mass_right = zeros, zeros, zeros, zeros
    scan_left, scan_right, slope_left, slope_right = zeros, zeros, zeros, zeros
    for tile in range(0, tiles):
        address = carry_address(carries, head, tile, all_tiles, row_count, rows - first_row, how)
        if how.segments == "long":
            if tile % p.shape.tiles_per_stride == 0:
                before_left += mass_left
                before_right += mass_right
                mass_left, mass_right = segment_masses(p, place, queries, tile, norms, how)
                left, right = (before_left, mass_left), (before_right, mass_right)
                dm = segment_window_gradient(
                    p, place, queries, tile, grad, norms, totals.delta, left, right, how
                )
                scan_left += dm * (mass_right + 2.0 * before_right - 1.0)
                scan_right += dm * (mass_left + 2.0 * before_left - 1.0)
                slope_left = totals.left + scan_left + dm * (1.0 - before_right)
                slope_right = totals.right + scan_right + dm * (1.0 - before_left)
                if how.exact:
                    slope_left -= dm * mass_right
                    slope_right -= dm * mass_left
            carry = Carry(before_left, before_right, slope_left, slope_right, mass_left, mass_right)
            tl.store(address + 4 * row_count, mass_left, mask=inside)
            tl.store(address + 5 * row_count, mass_right, mask=inside)
        else:
            carry = Carry(before_left, before_right, scan_left, scan_right, zeros, zeros)
        tl.store(address, carry.before_left, mask=inside)
        tl.store(address + row_count, carry.before_right, mask=inside)
        tl.store(address + 2 * row_count, carry.scan_left, mask=inside)
        tl.store(address + 3 * row_count, carry.scan_right, mask=inside)
        keys = tile_keys(p, place, tile, how)
        keys, _, gradients, steps, reached = differentiate(
            p, place, queries, keys, grad, norms, totals, carry, how
        )
        if how.segments != "long":
            before_left += steps[0]
            before_right += steps[1]
            scan_left += steps[2]
            scan_right += steps[3]
        if reached or not how.normalize:
            k = load_keys(p.score.k, place, keys, how.score, how)
            sum_score += product(narrow(gradients[0], k.dtype, how), k, how)
        if how.additive and reached:
            k_local = load_keys(p.local.k, place, keys, how.local, how)
            sum_local += product(narrow(gradients[1], k_local.dtype, how), k_local, how)
        k_left = load_keys(p.left.k, place, keys, how.left, how)
        sum_left += product(narrow(gradients[2], k_left.dtype, how), k_left, how)
        k_right = load_keys(p.right.k, place, keys, how.right, how)
        sum_right += product(narrow(gradients[3], k_right.dtype, how), k_right, how)
    store_rows(dq, place, rows, inside, sum_score * p.score.scale, how.score, how)
    store_rows(dq_left, place, rows, inside, sum_left * p.left.scale, how.left, how)
    store_rows(dq_right, place, rows, inside, sum_right * p.right.scale, how.right, how)
    if how.additive:
        store_rows(dq_local, place, rows, inside, sum_local * p.local.scale, how.local, how)


@triton.jit
def load_carry(base, row_count, inside, how: tl.constexpr):
    """Load what rows carry into a tile."""
    before_left = tl.load(base, mask=inside, other=0.0)
    before_right = tl.load(base + row_count, mask=inside, other=0.0)
    scan_left = tl.load(base + 2 * row_count, mask=inside, other=0.0)
    scan_right = tl.load(base + 3 * row_count, mask=inside, other=0.0)
    mass_left, mass_right = before_left, before_right
    if how.segments == "long":
        mass_left = tl.load(base + 4 * row_count, mask=inside, other=0.0)
        mass_right = tl.load(base + 5 * row_count, mask=inside, other=0.0)
    return Carry(before_left, before_right, scan_left, scan_right, mass_left, mass_right)


@triton.jit(do_not_specialize=LENGTHS)
def key_kernel(
    p, dout, statistics, row_totals, carries, dk, dv, dk_left, dk_right, dk_local, query_count, key_count,
    first_row, last_row, all_tiles, how: tl.constexpr, add: tl.constexpr,
):  # fmt: skip
    """Compute and store, or add, what queries give to a tile of keys: `first_row` to before `last_row`."""
    p = with_lengths(p, query_count, key_count)
    row_count = last_row - first_row
    tile = tl.program_id(0) % all_tiles
    place = place_of(p, tl.program_id(0) // all_tiles)
    head = place.batch * p.shape.heads + place.head
    keys = tile_keys(p, place, tile, how)
    first_key = tl.maximum(tl.min(keys.index, 0), 0)
    begin = first_row
    if how.causal:
        begin += tl.maximum(first_key - first_row, 0) // how.rows * how.rows
    sum_score = tl.zeros([how.keys, how.score], tl.float32)
    sum_left = tl.zeros([how.keys, how.left], tl.float32)
    sum_right = tl.zeros([how.keys, how.right], tl.float32)
    sum_local = tl.zeros([how.keys, how.local], tl.float32)
    sum_value = tl.zeros([how.keys, how.value], tl.float32)
    for start in range(begin, last_row, how.rows):
        rows = start + tl.arange(0, how.rows)
        inside = rows < last_row
        norms = load_norms(statistics, head, p.shape.queries, rows, inside)
        seeing = inside & (norms.inverse != 0.0)
        queries = load_queries(p, place, rows, seeing, how)
        totals, base = load_totals(row_totals, head, row_count, rows - first_row, inside)
        grad = Incoming(load_rows(dout, place, rows, seeing, how.value, how), base)
        address = carry_address(carries, head, tile, all_tiles, row_count, rows - first_row, how)
        # No row stored a carry for a tile after the last key, nor a causal row for a tile after itself.
        been = rows < tl.where(first_key < p.shape.keys, last_row, 0)
        if how.causal:
            been &= rows >= first_key
        carry = load_carry(address, row_count, been, how)
        _, met, gradients, _, reached = differentiate(
            p, place, queries, keys, grad, norms, totals, carry, how
        )
        if how.additive or reached:
            sum_value += product(tl.trans(narrow(met, grad.rows.dtype, how)), grad.rows, how)
        if reached or not how.normalize:
            sum_score += product(tl.trans(narrow(gradients[0], grad.rows.dtype, how)), queries.score, how)
        if how.additive and reached:
            sum_local += product(tl.trans(narrow(gradients[1], grad.rows.dtype, how)), queries.local, how)
        sum_left += product(tl.trans(narrow(gradients[2], grad.rows.dtype, how)), queries.left, how)
        sum_right += product(tl.trans(narrow(gradients[3], grad.rows.dtype, how)), queries.right, how)
    store_or_add(dv, place, keys, sum_value, how.value, how, add)
    store_or_add(dk, place, keys, sum_score * p.score.scale, how.score, how, add)
    store_or_add(dk_left, place, keys, sum_left * p.left.scale, how.left, how, add)
    store_or_add(dk_right, place, keys, sum_right * p.right.scale, how.right, how, add)
    if how.additive:
        store_or_add(dk_local, place, keys, sum_local * p.local.scale, how.local, how, add)


@triton.jit
def store_or_add(x, place, keys, values, width: tl.constexpr, how: tl.constexpr, add: tl.constexpr):
    """Store a tile's rows of a gradient, or add to what earlier queries gave."""
    if add:
        values += load_keys(x, place, keys, width, how)
    store_rows(x, place, keys.index, keys.inside, values, width, how)
