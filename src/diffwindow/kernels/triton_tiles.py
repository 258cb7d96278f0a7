"""What the Triton kernels share: their arguments, and the work on one tile of queries × keys.

Logits are in units of log 2 throughout, as exp2 is the instruction that a GPU has. A tile of keys holds whole
segments, so that the sums of a window never look beyond it; a segment that is longer than a tile is cut into
tiles of its own, and its sums are taken before its first tile is weighed.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

# Triton kernels read module constants only in this wrapping.
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
# Stands for "nothing seen yet": finite, so that differences are.
LOWEST = tl.constexpr(-3.4028234663852886e38)
# The lowest finite number is a bias too, and must stay finite over log 2.
LOWEST_BIAS = tl.constexpr(-2e38)
# Four roundings, by which the sums of a tile may miss what bounds them.
SLACK = tl.constexpr(4.8e-7)


class Matrix(NamedTuple):
    """A tensor `[b h n width]` whose rows are contiguous: its address, and its strides and width in steps."""

    data: Any
    batch: Any
    head: Any
    row: Any
    width: Any


class Pair(NamedTuple):
    """Queries and keys that are multiplied, and the scale of their scores."""

    q: Any
    k: Any
    scale: Any


class Plane(NamedTuple):
    """A tensor that broadcasts to `[b h q k]`: its address and its strides, 0 where it broadcasts."""

    data: Any
    batch: Any
    head: Any
    query: Any
    key: Any


class Shape(NamedTuple):
    """Sizes of a call. Keys go in strides of whole segments, each cut into `tiles_per_stride` tiles.

    The lengths are None until `with_lengths` sets them in the kernel.
    """

    heads: Any
    queries: Any
    keys: Any
    segment_size: Any
    stride: Any
    tiles_per_stride: Any


class Problem(NamedTuple):
    """Everything that forward and backward read; what a call does not have is None."""

    score: Any
    left: Any
    right: Any
    local: Any
    v: Any
    mask: Any
    bias: Any
    origin: Any
    seed: Any
    shape: Any
    drop_below: Any
    keep_scale: Any
    threshold: Any
    sinks: Any


class Options(NamedTuple):
    """What a kernel is compiled for.

    `mask` and `bias` are "none", "keys" (the same for all queries) or "full"; `segments` is "none", "short"
    (at most a tile) or "long". `cut` sets M to 0 below the threshold, `sinks` to 1 at the first keys of a
    sequence. `interpreted_bf16` works around Triton's interpreter, which neither multiplies bf16 nor rounds
    to it. `step` is what strides and widths of matrices are counted in. The widths here are those of heads,
    padded; `rows` and `keys` are the sizes of a tile.
    """

    additive: bool
    causal: bool
    exact: bool
    cut: bool
    normalize: bool
    sinks: bool
    segments: str
    mask: str
    bias: str
    dropout: bool
    precision: str
    interpreted_bf16: bool
    step: int
    score: int
    left: int
    right: int
    local: int
    value: int
    rows: int
    keys: int


class Place(NamedTuple):
    """Where a program works: its batch entry and head, the first key of its segment grid, its first sink."""

    batch: Any
    head: Any
    start: Any
    first_sink: Any


class Queries(NamedTuple):
    """A block of queries: which they are, which of the block's rows hold one, and their four projections."""

    index: Any
    inside: Any
    score: Any
    left: Any
    right: Any
    local: Any


class Keys(NamedTuple):
    """A tile of keys: which they are, and which of the tile's lanes hold one."""

    index: Any
    inside: Any


class Prefix(NamedTuple):
    """F of both boundaries before a tile, or before a segment longer than it, and the segment's sums of φ."""

    before_left: Any
    before_right: Any
    mass_left: Any
    mass_right: Any


class Norms(NamedTuple):
    """The normalisers of rows: log2 Σ 2^logit of both boundaries, and what the weights have instead.

    That is the largest logit and 1 / Σ 2^(logit − largest), or 0 in a row that sees no key. A normalised
    window adds log2 M to the logits of both, and what it cuts is not seen.
    """

    top: Any
    inverse: Any
    left: Any
    right: Any


@triton.jit
def with_lengths(p, query_count, key_count):
    """Return the problem with its lengths.

    They are arguments of their own, for which no kernel is compiled again: of numbers in a tuple Triton has a
    kernel for multiples of 16, one for the rest, and one for 1.
    """
    sizes = p.shape
    shape = Shape(
        sizes.heads, query_count, key_count, sizes.segment_size, sizes.stride, sizes.tiles_per_stride
    )
    return Problem(
        p.score, p.left, p.right, p.local, p.v, p.mask, p.bias, p.origin, p.seed, shape, p.drop_below,
        p.keep_scale, p.threshold, p.sinks,
    )  # fmt: skip


@triton.jit
def place_of(p, index):
    """Find the batch entry, the head and the segment grid of the `index`-th head of the batch."""
    batch = (index // p.shape.heads).to(tl.int64)
    head = (index % p.shape.heads).to(tl.int64)
    start = 0
    first_sink = 0
    if p.origin is not None:
        origin = tl.load(p.origin + batch)
        # The grid's last line at or before key 0, with a remainder that is never negative.
        past = (origin % p.shape.segment_size).to(tl.int32)
        past = tl.where(past < 0, past + p.shape.segment_size, past)
        start = tl.where(past > 0, past - p.shape.segment_size, 0)
        first_sink = tl.minimum(tl.maximum(origin, 0), p.shape.keys).to(tl.int32)
    return Place(batch, head, start, first_sink)


@triton.jit
def tile_keys(p, place, tile, how: tl.constexpr):
    """Return the keys of a tile."""
    first = place.start + tile // p.shape.tiles_per_stride * p.shape.stride
    index = first + tile % p.shape.tiles_per_stride * how.keys + tl.arange(0, how.keys)
    return Keys(index, (index >= 0) & (index < tl.minimum(first + p.shape.stride, p.shape.keys)))


@triton.jit
def count_tiles(p, place, rows, how: tl.constexpr):
    """Count the tiles that a block of queries sees; causal ones see no key after their last query."""
    end = p.shape.keys
    if how.causal:
        end = tl.minimum(end, tl.max(rows, 0) + 1)
    return tl.cdiv(end - place.start, p.shape.stride) * p.shape.tiles_per_stride


@triton.jit
def locate(x, place, rows, inside, width: tl.constexpr, how: tl.constexpr):
    """Return the addresses of rows of a matrix, and which of them may be touched."""
    columns = tl.arange(0, width)
    base = x.data + (place.batch * x.batch + place.head * x.head) * how.step
    address = base + rows.to(tl.int64)[:, None] * x.row * how.step + columns[None, :]
    return address, inside[:, None] & (columns[None, :] < x.width * how.step)


@triton.jit
def load_rows(x, place, rows, inside, width: tl.constexpr, how: tl.constexpr):
    """Load rows of a matrix, zeros outside of it."""
    address, touched = locate(x, place, rows, inside, width, how)
    return tl.load(address, mask=touched, other=0.0)


@triton.jit
def load_keys(x, place, keys, width: tl.constexpr, how: tl.constexpr):
    """Load the rows of a tile of keys."""
    return load_rows(x, place, keys.index, keys.inside, width, how)


@triton.jit
def load_queries(p, place, rows, inside, how: tl.constexpr):
    """Load all projections of a block of queries; without local scores the place of theirs is not used."""
    score = load_rows(p.score.q, place, rows, inside, how.score, how)
    left = load_rows(p.left.q, place, rows, inside, how.left, how)
    right = load_rows(p.right.q, place, rows, inside, how.right, how)
    local = score
    if how.additive:
        local = load_rows(p.local.q, place, rows, inside, how.local, how)
    return Queries(rows, inside, score, left, right, local)


@triton.jit
def narrow(x, dtype: tl.constexpr, how: tl.constexpr):
    """Round fp32 to the type of the inputs, to nearest."""
    if how.interpreted_bf16:
        # The interpreter cuts bits off, so round them off before.
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def store_rows(x, place, rows, inside, values, width: tl.constexpr, how: tl.constexpr):
    """Store rows of a matrix in its own type."""
    address, touched = locate(x, place, rows, inside, width, how)
    if x.data.dtype.element_ty != tl.float32:
        values = narrow(values, x.data.dtype.element_ty, how)
    tl.store(address, values, mask=touched)


@triton.jit
def load_plane(x, place, queries, keys, kind: tl.constexpr):
    """Load a tile of a mask or a bias, zeros outside of it; one row of it if all queries share it."""
    base = x.data + place.batch * x.batch + place.head * x.head
    address = base + keys.index.to(tl.int64)[None, :] * x.key
    touched = keys.inside[None, :]
    if kind == "full":
        address += queries.index.to(tl.int64)[:, None] * x.query
        touched &= queries.inside[:, None]
    return tl.load(address, mask=touched, other=0)


@triton.jit
def look(p, place, queries, keys, how: tl.constexpr):
    """Return which query of a tile sees which key, and the keys without those that no query sees.

    Those must not be loaded: a product with a weight of 0 would keep their NaN.
    """
    visible = queries.inside[:, None] & keys.inside[None, :]
    if how.causal:
        visible &= keys.index[None, :] <= queries.index[:, None]
    if how.mask != "none":
        visible &= load_plane(p.mask, place, queries, keys, how.mask) != 0
    if how.bias != "none":
        visible &= load_plane(p.bias, place, queries, keys, how.bias) != float("-inf")
    if how.causal:
        keys = Keys(keys.index, keys.inside & (keys.index < p.shape.queries))
    if how.mask != "none" or how.bias != "none":
        keys = Keys(keys.index, keys.inside & (tl.max(visible.to(tl.int32), 0) > 0))
    return visible, keys


@triton.jit
def product(a, b, how: tl.constexpr):
    """Multiply two matrices of one type and add up in fp32."""
    if how.interpreted_bf16:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=how.precision)


@triton.jit
def scores(q, k, scale, visible, hidden, how: tl.constexpr):
    """Return the scores of a tile over log 2, and `hidden` where a query does not look."""
    return tl.where(visible, product(q, tl.trans(k), how) * (scale * LOG2_E), hidden)


@triton.jit
def boundary_logits(p, place, queries, keys, visible, how: tl.constexpr):
    """Return the logits of both boundaries over a tile, -inf where a query does not look."""
    k_left = load_keys(p.left.k, place, keys, how.left, how)
    k_right = load_keys(p.right.k, place, keys, how.right, how)
    left = scores(queries.left, k_left, p.left.scale, visible, float("-inf"), how)
    return left, scores(queries.right, k_right, p.right.scale, visible, float("-inf"), how)


@triton.jit
def boundaries(p, place, queries, keys, visible, norms, how: tl.constexpr):
    """Return φ of both boundaries over a tile."""
    left, right = boundary_logits(p, place, queries, keys, visible, how)
    return tl.exp2(left - norms.left[:, None]), tl.exp2(right - norms.right[:, None])


@triton.jit
def segment_masses(p, place, queries, tile, norms, how: tl.constexpr):
    """Sum φ of both boundaries over the segment that starts with a tile, where it is longer than one."""
    mass_left = tl.zeros([how.rows], tl.float32)
    mass_right = tl.zeros([how.rows], tl.float32)
    for part in range(tile, tile + p.shape.tiles_per_stride):
        keys = tile_keys(p, place, part, how)
        visible, keys = look(p, place, queries, keys, how)
        phi_left, phi_right = boundaries(p, place, queries, keys, visible, norms, how)
        mass_left += tl.sum(phi_left, 1)
        mass_right += tl.sum(phi_right, 1)
    return mass_left, mass_right


@triton.jit
def weight_logits(p, place, queries, keys, visible, window, how: tl.constexpr, reached):
    """Return the logits of the weights of a tile, and of these the local scores (additive only).

    Outside of the window local scores count as 0. A normalised window hides the keys with M = 0.
    """
    k = load_keys(p.score.k, place, keys, how.score, how)
    x = scores(queries.score, k, p.score.scale, visible, float("-inf"), how)
    if how.bias != "none":
        bias = load_plane(p.bias, place, queries, keys, how.bias)
        x += tl.maximum(bias, LOWEST_BIAS, propagate_nan=tl.PropagateNan.ALL) * LOG2_E
    local = x
    if how.additive:
        local = tl.zeros_like(x)
        if reached:
            k_local = load_keys(p.local.k, place, keys, how.local, how)
            local = scores(queries.local, k_local, p.local.scale, visible, 0.0, how)
        x += local * window
    if how.normalize:
        x = tl.where(window == 0.0, float("-inf"), x)
    return x, local


@triton.jit
def add_to_softmax(x, top, total):
    """Add a tile of logits to the running maximum and the sum of exponentials of each row."""
    new = tl.maximum(top, tl.max(x, 1))
    return new, total * tl.exp2(top - new) + tl.sum(tl.exp2(x - new[:, None]), 1)


@triton.jit
def normaliser(top, total):
    """Return log2 of the softmax's denominator. A row that sees nothing has none, and NaN must stay NaN."""
    seen = total != 0.0
    return tl.where(seen, top + tl.log2(tl.where(seen, total, 1.0)), 0.0)


@triton.jit
def at_segment_start(x, segment_size):
    """Give each key of a tile the value at the first key of its segment."""
    lane = tl.arange(0, x.shape[1])
    first = lane // segment_size * segment_size
    return tl.gather(x, tl.broadcast_to(first[None, :], x.shape), 1)


@triton.jit
def at_segment_end(x, segment_size):
    """Give each key of a tile the value at the last key of its segment."""
    lane = tl.arange(0, x.shape[1])
    # The lanes after the last whole segment hold no keys.
    last = tl.minimum(lane // segment_size * segment_size + segment_size - 1, x.shape[1] - 1)
    return tl.gather(x, tl.broadcast_to(last[None, :], x.shape), 1)


@triton.jit
def boundary_sums(p, phi, before, mass, how: tl.constexpr):
    """Return F and G, prefix and suffix sums of φ by key or segment; `before` is F up to the tile.

    Within a segment longer than a tile `before` is F up to the segment, and `mass` the segment's sum.
    """
    if how.segments == "long":
        zeros = tl.zeros_like(phi)
        return zeros + (before + mass)[:, None], zeros + (1.0 - before)[:, None]
    upto = tl.cumsum(phi, 1)
    earlier = upto - phi
    if how.segments == "short":
        upto = at_segment_end(upto, p.shape.segment_size)
        earlier = at_segment_start(earlier, p.shape.segment_size)
    return before[:, None] + upto, 1.0 - (before[:, None] + earlier)


@triton.jit
def is_sink(p, place, keys):
    """Return which keys of a tile are sinks, `[1, keys]`: those where M is 1 whatever the boundaries say."""
    past = keys.index - place.first_sink
    return ((past >= 0) & (past < p.sinks))[None, :]


@triton.jit
def is_reached(p, place, keys, phi_left, phi_right, prefix, how: tl.constexpr):
    """Return whether M may reach the threshold in a tile: it is at most F_l G_r + F_r G_l at the tile's ends.

    A NaN reaches it, and a sink.
    """
    if how.cut:
        step_left, step_right = prefix.mass_left, prefix.mass_right
        if how.segments != "long":
            step_left, step_right = tl.sum(phi_left, 1), tl.sum(phi_right, 1)
        f_left, f_right = prefix.before_left + step_left, prefix.before_right + step_right
        bound = f_left * (1.0 - prefix.before_right) + f_right * (1.0 - prefix.before_left)
        reached = tl.max(tl.where(bound + SLACK < p.threshold, 0, 1), 0) > 0
        if how.sinks:
            reached |= tl.max(tl.max(is_sink(p, place, keys).to(tl.int32), 1), 0) > 0
        return reached
    else:
        return True


@triton.jit
def cut_window(p, window, how: tl.constexpr):
    """Set M to 0 below the threshold; a NaN stays."""
    if how.cut:
        window = tl.where(window < p.threshold, 0.0, window)
    return window


@triton.jit
def compose_window(p, phi_left, phi_right, f_left, g_left, f_right, g_right, how: tl.constexpr):
    """Return M = F_l G_r + F_r G_l, less the mass that both boundaries share if it is to be exact."""
    window = f_left * g_right + f_right * g_left
    if how.exact:
        if how.segments == "none":
            window -= phi_left * phi_right
        else:
            # F and G share exactly the segment of the key.
            window -= (f_left + g_left - 1.0) * (f_right + g_right - 1.0)
    return cut_window(p, window, how)


@triton.jit
def tile_window(p, place, keys, phi_left, phi_right, prefix, how: tl.constexpr):
    """Return M over a tile, and F and G of the left and the right boundary."""
    f_left, g_left = boundary_sums(p, phi_left, prefix.before_left, prefix.mass_left, how)
    f_right, g_right = boundary_sums(p, phi_right, prefix.before_right, prefix.mass_right, how)
    window = compose_window(p, phi_left, phi_right, f_left, g_left, f_right, g_right, how)
    if how.sinks:
        window = tl.where(is_sink(p, place, keys), 1.0, window)
    return window, (f_left, g_left), (f_right, g_right)


@triton.jit
def splitmix(x):
    """Mix 64 bits."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def lowbias(x):
    """Mix 32 bits: Wellons' lowbias32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept_share(p, place, queries, keys):
    """Return the factor of each weight: 0 or 1 / (1 - p), from the seed, its row and its key alone."""
    row = (place.batch * p.shape.heads + place.head) * p.shape.queries + queries.index.to(tl.int64)
    bits = splitmix(splitmix(row.to(tl.uint64)) ^ tl.load(p.seed).to(tl.uint64))
    low, high = bits.to(tl.uint32), (bits >> 32).to(tl.uint32)
    random = lowbias(lowbias(low[:, None] + keys.index.to(tl.uint32)[None, :]) ^ high[:, None])
    return tl.where(random >= tl.cast(p.drop_below, tl.uint32), p.keep_scale, 0.0)
