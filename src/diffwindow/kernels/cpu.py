"""The C++ kernels of the CPU, and when one may be called directly, without an operator that torch knows."""

import math
import struct

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from diffwindow.kernels import build
from diffwindow.kernels.operator import Call


def is_observed() -> bool:
    """Tell whether something that compiles, traces or transforms calls wants to see each operator."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


# Floats that backward needs of each row, besides the output.
_STATISTICS = 6
# The C++ `Problem` of csrc/problem.h, eight bytes per field: flags and sizes (12q), seed, dropout and
# threshold (Q2d), mask and bias with four strides each (5q 5q), the segment origin (q), four pairs
# of queries and keys with width and scale (8qqd), values and output (8q), the rows to keep
# (2q), then ten tensors for backward.
_BACKWARD_FIELDS = 4 * 10
_LAYOUT = struct.Struct("=12q Q2d 5q 5q q" + "8qqd" * 4 + "8q 2q" + f"{_BACKWARD_FIELDS}q")


def why_not() -> str | None:
    """Say why there are no compiled kernels, or None if there are."""
    return build.why_not()


def row_width(call: Call) -> int | torch.SymInt:
    """Return how many floats backward needs of each query.

    They are statistics, for bf16 the exact output and, with a threshold, a bit per tile of 32 to 64 keys.
    """
    output = call.v.shape[-1] if call.v.dtype == torch.bfloat16 else 0
    tiles = call.k.shape[2] // 32 + 3 if call.threshold > 0 else 0
    return _STATISTICS + output + (tiles + 31) // 32


def forward(call: Call, out: Tensor, rows: Tensor) -> None:
    """Fill `out` and `rows`."""
    _run("dw_forward", [*_problem(call, out, rows), *[0] * _BACKWARD_FIELDS])


def backward(call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor]) -> None:
    """Fill `grads`."""
    by_name = dict(zip(call.differentiable, grads, strict=True))
    fields = [*_problem(call, out, rows), *_strided(grad)]
    for name in ("q", "q_left", "q_right", "q_local", "k", "k_left", "k_right", "k_local", "v"):
        fields += _strided(by_name.get(name))
    _run("dw_backward", fields)


def _strided(x: Tensor | None) -> list[int]:
    return [0, 0, 0, 0] if x is None else [x.data_ptr(), *x.stride()[:3]]


def _problem(call: Call, out: Tensor, rows: Tensor) -> list[int | float]:
    """List the fields of the C++ `Problem` in order, up to those of backward."""
    q, origin = call.q, call.segment_origin
    fields: list[int | float] = [
        q.dtype == torch.bfloat16, call.q_local is not None, call.is_causal, call.exact, call.normalize,
        call.segment_size, q.shape[0], q.shape[1], q.shape[2], call.k.shape[2], call.v.shape[-1],
        torch.get_num_threads(), 0 if call.seed is None else int(call.seed.item()), call.dropout_p,
        call.threshold,
    ]  # fmt: skip
    for full in (call.attn_mask, call.attn_bias):
        fields += [0] * 5 if full is None else [full.data_ptr(), *full.stride()]
    fields.append(0 if origin is None else origin.data_ptr())
    queries = (call.q, call.q_left, call.q_right, call.q_local)
    keys = (call.k, call.k_left, call.k_right, call.k_local)
    for query, key in zip(queries, keys, strict=True):
        width = 0 if query is None else query.shape[-1]
        fields += [*_strided(query), *_strided(key), width]
        fields.append(1 / math.sqrt(max(width, 1)) if call.scale is None else call.scale)
    return [*fields, *_strided(call.v), *_strided(out), rows.data_ptr(), rows.shape[-1]]


def _run(name: str, fields: list[int | float]) -> None:
    if getattr(build.load(), name)(_LAYOUT.pack(*fields)):
        raise MemoryError(f"{name}: no memory for the working rows of {fields[9]} keys")
