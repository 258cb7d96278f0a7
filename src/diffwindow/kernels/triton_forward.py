"""Forward in Triton: a program takes a block of queries through the keys twice.

The first sweep points: it finds the softmax normalisers of both boundaries. The second builds the window from
left to right with the boundaries' prefix sums carried along, weighs, and gathers the values. Where the window
is below its threshold all over a tile, it does not load values, or local keys if the window is additive; a
normalised window skips scores as well.
"""

import triton
import triton.language as tl

from diffwindow.kernels.triton_tiles import (
    LOWEST,
    Norms,
    Prefix,
    add_to_softmax,
    boundaries,
    boundary_logits,
    count_tiles,
    is_reached,
    kept_share,
    load_keys,
    load_queries,
    look,
    narrow,
    normaliser,
    place_of,
    product,
    segment_masses,
    store_rows,
    tile_keys,
    tile_window,
    weight_logits,
    with_lengths,
)


@triton.jit
def point(p, place, queries, tiles, how: tl.constexpr):
    """Sweep the keys for the normalisers of both boundaries; those of the weights are left zero."""
    top_left = tl.full([how.rows], LOWEST, tl.float32)
    top_right = tl.full([how.rows], LOWEST, tl.float32)
    zeros = tl.zeros([how.rows], tl.float32)
    total_left, total_right = zeros, zeros
    for tile in range(0, tiles):
        keys = tile_keys(p, place, tile, how)
        visible, keys = look(p, place, queries, keys, how)
        left, right = boundary_logits(p, place, queries, keys, visible, how)
        top_left, total_left = add_to_softmax(left, top_left, total_left)
        top_right, total_right = add_to_softmax(right, top_right, total_right)
    return Norms(zeros, zeros, normaliser(top_left, total_left), normaliser(top_right, total_right))


@triton.jit
def weigh(p, place, queries, keys, visible, window, reached, top, total, gathered, how: tl.constexpr):
    """Add a tile to the softmax and to the weighted sum of values of each row."""
    x, _ = weight_logits(p, place, queries, keys, visible, window, how, reached)
    peak = x
    if how.normalize:
        peak += tl.log2(tl.where(window == 0.0, 1.0, window))
    new = tl.maximum(top, tl.max(peak, 1))
    weights = tl.exp2(x - new[:, None])
    if how.normalize:
        weights *= window
    shrink = tl.exp2(top - new)
    total = total * shrink + tl.sum(weights, 1)
    gathered = gathered * shrink[:, None]
    if how.additive or reached:
        if how.dropout:
            weights *= kept_share(p, place, queries, keys)
        if not how.additive and not how.normalize:
            weights *= window
        v = load_keys(p.v, place, keys, how.value, how)
        gathered += product(narrow(weights, v.dtype, how), v, how)
    return new, total, gathered


@triton.jit(do_not_specialize=["query_count", "key_count"])
def forward_kernel(p, out, statistics, query_count, key_count, how: tl.constexpr):
    """Compute a block of the output, and for each of its rows the normalisers that backward needs."""
    p = with_lengths(p, query_count, key_count)
    blocks = tl.cdiv(p.shape.queries, how.rows)
    # Causal blocks differ in length: the longest start first.
    block = blocks - 1 - tl.program_id(0) % blocks
    place = place_of(p, tl.program_id(0) // blocks)
    rows = block * how.rows + tl.arange(0, how.rows)
    queries = load_queries(p, place, rows, rows < p.shape.queries, how)
    tiles = count_tiles(p, place, rows, how)
    norms = point(p, place, queries, tiles, how)

    zeros = tl.zeros([how.rows], tl.float32)
    before_left, before_right, mass_left, mass_right, total = zeros, zeros, zeros, zeros, zeros
    top = tl.full([how.rows], LOWEST, tl.float32)
    gathered = tl.zeros([how.rows, how.value], tl.float32)
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
        window = tl.zeros_like(phi_left)
        if reached:
            window, _, _ = tile_window(p, place, keys, phi_left, phi_right, prefix, how)
        if how.segments != "long":
            before_left += tl.sum(phi_left, 1)
            before_right += tl.sum(phi_right, 1)
        if reached or not how.normalize:
            top, total, gathered = weigh(
                p, place, queries, keys, visible, window, reached, top, total, gathered, how
            )
    # A row that sees nothing has gathered zeros.
    inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    store_rows(out, place, rows, queries.inside, gathered * inverse[:, None], how.value, how)
    row = statistics + ((place.batch * p.shape.heads + place.head) * p.shape.queries + rows) * 4
    tl.store(row, top, mask=queries.inside)
    tl.store(row + 1, inverse, mask=queries.inside)
    tl.store(row + 2, norms.left, mask=queries.inside)
    tl.store(row + 3, norms.right, mask=queries.inside)
