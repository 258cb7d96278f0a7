"""Forward in Triton: a program takes a block of queries through the keys twice.

The first sweep points: it finds the softmax normalisers of both boundaries. The second builds the window from
left to right with the boundaries' prefix sums carried along, weighs, and gathers the values.
"""

import triton
import triton.language as tl

from diffwindow.kernels.triton_tiles import (
    LOWEST,
    Norms,
    add_to_softmax,
    boundaries,
    boundary_logits,
    boundary_sums,
    compose_window,
    count_tiles,
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
    weight_logits,
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
def forward_kernel(p, out, statistics, how: tl.constexpr):
    """Compute a block of the output, and for each of its rows the normalisers that backward needs."""
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
        f_left, g_left = boundary_sums(p, phi_left, before_left, mass_left, how)
        f_right, g_right = boundary_sums(p, phi_right, before_right, mass_right, how)
        window = compose_window(phi_left, phi_right, f_left, g_left, f_right, g_right, how)
        if how.segments != "long":
            before_left += tl.sum(phi_left, 1)
            before_right += tl.sum(phi_right, 1)
        x, _ = weight_logits(p, place, queries, keys, visible, window, how)
        new = tl.maximum(top, tl.max(x, 1))
        weights = tl.exp2(x - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(weights, 1)
        top = new
        if how.dropout:
            weights *= kept_share(p, place, queries, keys)
        if not how.additive:
            weights *= window
        v = load_keys(p.v, place, keys, how.value)
        gathered = gathered * shrink[:, None] + product(narrow(weights, v.dtype, how), v, how)
    # A row that sees nothing has gathered zeros.
    inverse = tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))
    store_rows(out, place, rows, queries.inside, gathered * inverse[:, None], how.value, how)
    row = statistics + ((place.batch * p.shape.heads + place.head) * p.shape.queries + rows) * 4
    tl.store(row, top, mask=queries.inside)
    tl.store(row + 1, inverse, mask=queries.inside)
    tl.store(row + 2, norms.left, mask=queries.inside)
    tl.store(row + 3, norms.right, mask=queries.inside)
