"""Describe a call to the Triton kernels and launch them."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from diffwindow.kernels.operator import Call
from diffwindow.kernels.triton import interpreted
from diffwindow.kernels.triton_backward import key_kernel, query_kernel
from diffwindow.kernels.triton_blocks import Block, Blocks, tuned
from diffwindow.kernels.triton_forward import forward_kernel
from diffwindow.kernels.triton_tiles import Matrix, Options, Pair, Plane, Problem, Shape

# Backward takes so many queries at a time: what it carries from tile to tile then grows with the keys alone.
QUERIES_AT_ONCE = 4096


def forward(call: Call, out: Tensor, rows: Tensor) -> None:
    """Fill `out` and `rows`."""

    def run(blocks: Blocks) -> None:
        _forward(call, out, rows, blocks.forward)

    run(tuned("forward", call, run))


def _forward(call: Call, out: Tensor, rows: Tensor, block: Block) -> None:
    problem, options = describe(call, block, step_of([*call.differentiable.values(), out]))
    programs = call.q.shape[0] * call.q.shape[1] * _ceil_div(call.q.shape[2], block.rows)
    arguments = (problem, matrix(out, options.step), rows, *_lengths(call))
    _launch(forward_kernel, programs, call.q, block, *arguments, how=options)


def backward(call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor]) -> None:
    """Fill `grads`."""
    if call.q.shape[2] == 0:
        for x in grads:
            x.zero_()
        return

    def run(blocks: Blocks) -> None:
        _backward(call, grad, out, rows, grads, blocks)

    run(tuned("backward", call, run))


def _backward(
    call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor], blocks: Blocks
) -> None:
    step = step_of([*call.differentiable.values(), out, grad, *grads])
    problem, options = describe(call, blocks.query, step)
    by_name = dict(zip(call.differentiable, grads, strict=True))
    at_once = call.q.shape[2] <= QUERIES_AT_ONCE
    # Gradients of keys add up over the runs of queries, in fp32.
    sums = {
        name: x if at_once else torch.zeros_like(x, dtype=torch.float32)
        for name, x in by_name.items()
        if not name.startswith("q")
    }
    targets = {name: matrix(x, step) for name, x in (by_name | sums).items()}
    dq = [targets.get(name) for name in ("q", "q_left", "q_right", "q_local")]
    dk = [targets.get(name) for name in ("k", "v", "k_left", "k_right", "k_local")]
    heads = call.q.shape[0] * call.q.shape[1]
    tiles = count_tiles(call, problem.shape)
    key_options = options._replace(rows=blocks.key.rows)
    for first, last in _runs(call.q.shape[2]):
        carried = (heads, tiles, 6 if options.segments == "long" else 4, last - first)
        carries = torch.empty(carried, dtype=torch.float32, device=call.q.device)
        totals = torch.empty(heads, last - first, 4, dtype=torch.float32, device=call.q.device)
        inputs = (problem, matrix(grad, step), rows, totals, carries)
        extent = (*_lengths(call), first, last, tiles)
        programs = heads * _ceil_div(last - first, blocks.query.rows)
        _launch(
            query_kernel,
            programs,
            call.q,
            blocks.query,
            *inputs,
            matrix(out, step),
            *dq,
            *extent,
            how=options,
        )
        _launch(
            key_kernel,
            heads * tiles,
            call.q,
            blocks.key,
            *inputs,
            *dk,
            *extent,
            how=key_options,
            add=not at_once,
        )
    if not at_once:
        for name, x in sums.items():
            by_name[name].copy_(x)


def describe(call: Call, block: Block, step: int) -> tuple[Problem, Options]:
    """Return a call as the kernels take it: what they read at run time, and what they are compiled for."""

    def pair(q: Tensor | None, k: Tensor | None) -> Pair | None:
        if q is None or k is None:
            return None
        return Pair(
            matrix(q, step),
            matrix(k, step),
            1 / math.sqrt(max(q.shape[-1], 1)) if call.scale is None else call.scale,
        )

    size = call.segment_size
    if call.segment_origin is None:
        size = min(size, max(call.k.shape[2], 1))
    stride = size * max(block.keys // size, 1)
    shape = Shape(call.q.shape[1], None, None, size, stride, _ceil_div(stride, block.keys))
    problem = Problem(
        score=pair(call.q, call.k),
        left=pair(call.q_left, call.k_left),
        right=pair(call.q_right, call.k_right),
        local=pair(call.q_local, call.k_local),
        v=matrix(call.v, step),
        mask=_plane(None if call.attn_mask is None else call.attn_mask.view(torch.uint8)),
        bias=_plane(call.attn_bias),
        origin=call.segment_origin,
        seed=call.seed,
        shape=shape,
        drop_below=min(int(call.dropout_p * 2**32), 2**32 - 1),
        keep_scale=1 / (1 - call.dropout_p) if call.dropout_p < 1 else 0.0,
        threshold=float(call.threshold),
        sinks=call.sinks,
    )
    options = Options(
        additive=call.q_local is not None,
        causal=call.is_causal,
        exact=call.exact,
        cut=call.threshold > 0,
        normalize=call.normalize,
        sinks=call.sinks > 0,
        segments="none" if size == 1 else "short" if size <= block.keys else "long",
        mask=_plane_kind(call.attn_mask),
        bias=_plane_kind(call.attn_bias),
        dropout=call.dropout_p > 0,
        precision="tf32" if _takes_tf32(call.q) else "ieee",
        interpreted_bf16=interpreted() and call.q.dtype == torch.bfloat16,
        step=step,
        score=padded(call.q),
        left=padded(call.q_left),
        right=padded(call.q_right),
        local=padded(call.q if call.q_local is None else call.q_local),
        value=padded(call.v),
        rows=block.rows,
        keys=block.keys,
    )
    return problem, options


def padded(x: Tensor) -> int:
    """Round a head width up to a power of two, and to the least that a product takes in the tensor's type."""
    least = 8 if x.dtype == torch.float32 else 16
    return max(least, 1 << (x.shape[-1] - 1).bit_length())


def count_tiles(call: Call, shape: Any) -> int:
    """Count the tiles of keys, as many as the sequence has whose segments start at the worst key."""
    shift = 0 if call.segment_origin is None else call.segment_size - 1
    return _ceil_div(call.k.shape[2] + shift, shape.stride) * int(shape.tiles_per_stride)


def _launch(kernel: Any, programs: int, q: Tensor, block: Block, *arguments: Any, **options: Any) -> None:
    if programs:
        with torch.cuda.device_of(q):
            kernel[(programs,)](
                *arguments, **options, num_warps=block.warps, num_stages=block.stages, enable_fp_fusion=True
            )


def _lengths(call: Call) -> tuple[int, int]:
    return call.q.shape[2], call.k.shape[2]


def _takes_tf32(x: Tensor) -> bool:
    """Say whether products are to be in TF32: torch must allow it, and the GPU have it."""
    if x.dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision != "tf32":
        return False
    return not torch.version.hip or torch.cuda.get_device_properties(x.device).gcnArchName[:6] == "gfx942"


def _runs(queries: int) -> Iterator[tuple[int, int]]:
    for first in range(0, queries, QUERIES_AT_ONCE):
        yield first, min(queries, first + QUERIES_AT_ONCE)


def step_of(tensors: Iterable[Tensor]) -> int:
    """Return what strides and widths are to be counted in: 1, or 8 elements.

    Triton compiles another kernel for strides that are multiples of 16, and loads vectors there. Heads of
    width 8 have multiples of 8, which it would not notice: they are counted in eights.
    """
    common = math.gcd(*(number for x in tensors for number in (*x.stride()[:3], x.shape[-1])))
    return 8 if common % 16 == 8 else 1


def matrix(x: Tensor, step: int) -> Matrix:
    """Return the address of a tensor, and its strides and width in steps."""
    batch, head, row, _ = x.stride()
    return Matrix(x, batch // step, head // step, row // step, x.shape[-1] // step)


def _plane(x: Tensor | None) -> Plane | None:
    if x is None:
        return None
    batch, head, query, key = x.stride()
    return Plane(x, batch, head, query, key)


def _plane_kind(x: Tensor | None) -> str:
    if x is None:
        return "none"
    return "keys" if x.stride(2) == 0 or x.shape[2] == 1 else "full"


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
