"""The C++ kernels of the CPU, and when one may be called directly, without an operator that torch knows."""

import math
import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad

from diffwindow.kernels import build

if TYPE_CHECKING:
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


def needs_torch(grad: Tensor) -> bool:
    """Tell whether backward must be made of operations of torch.

    That is for second derivatives, and for many gradients at once, as `is_grads_batched=True` asks for.
    """
    return torch.is_grad_enabled() or is_legacy_batchedtensor(grad)


def holds_floats(x: Tensor) -> bool:
    """Tell whether these are fp32 numbers that a kernel can read."""
    return x.dtype == torch.float32 and is_in_memory(x)


def is_in_memory(x: Tensor) -> bool:
    """Tell whether a kernel can read the elements of a tensor by their addresses."""
    return (
        type(x) in (Tensor, torch.nn.Parameter) and x.is_cpu and x.layout == torch.strided and not x.is_neg()
    )


def views(tensors: tuple[Tensor | None, ...], dtype: torch.dtype, *, dimensions: int = 4) -> list[int] | None:
    """List the address, sizes and strides of each; return None if one is not a plain tensor in memory."""
    views: list[int] = []
    with_gradients = torch.is_grad_enabled()
    for x in tensors:
        if x is None:
            views += (0,) * (1 + 2 * dimensions)
            continue
        if type(x) is not Tensor or x.dtype is not dtype or not x.is_cpu or x.is_neg():
            return None
        if with_gradients and x.requires_grad:
            return None
        try:
            view = (x.data_ptr(), *x.shape, *x.stride())
        except RuntimeError:
            # sparse and nested tensors have no address or no strides
            return None
        if len(view) != 1 + 2 * dimensions:
            return None
        views += view
    return views


def with_dimensions(dimensions: int, x: Tensor | None) -> Tensor | None:
    """Add leading dimensions of size 1; what is no tensor is refused by the views."""
    return x if not isinstance(x, Tensor) or x.dim() >= dimensions else x[(None,) * (dimensions - x.dim())]


# Floats that backward needs of each row, besides the output.
_STATISTICS = 6
# The C++ `Attention` of csrc/problem.h, eight bytes per field: flags and sizes (8q), seed and dropout (Qd),
# mask and bias with four strides each (5q 5q), values and output (8q), the rows to keep (2q).
ATTENTION = "=8q Qd 5q 5q 8q 2q"
# A pair of queries and keys with width and scale.
PAIR = "8qqd"
# `Problem` adds flags, the segment size and the sinks (5q), the threshold (d), the segment origin (q), four
# pairs, then for backward ten tensors and the gradient of the bias with five strides.
_BACKWARD_FIELDS = 4 * 10 + 7
_LAYOUT = struct.Struct(ATTENTION + "5q d q" + PAIR * 4 + f"{_BACKWARD_FIELDS}q")


def why_not() -> str | None:
    """Say why there are no compiled kernels, or None if there are."""
    return build.why_not()


def row_width(call: "Call") -> int | torch.SymInt:
    """Return how many floats backward needs of each query.

    They are statistics, for bf16 the exact output and, with a threshold, a bit per tile of 32 to 64 keys.
    """
    output = call.v.shape[-1] if call.v.dtype == torch.bfloat16 else 0
    tiles = call.k.shape[2] // 32 + 3 if call.threshold > 0 else 0
    return _STATISTICS + output + (tiles + 31) // 32


def forward(call: "Call", out: Tensor, rows: Tensor) -> None:
    """Fill `out` and `rows`."""
    run("dw_forward", _LAYOUT, [*_problem(call, out, rows), *[0] * _BACKWARD_FIELDS])


def backward(
    call: "Call", grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor], bias: Tensor | None
) -> None:
    """Fill `grads`, and add the gradient of the bias to `bias`, if there is one."""
    by_name = dict(zip(call.differentiable, grads, strict=True))
    fields = [*_problem(call, out, rows), *strided(grad)]
    for name in ("q", "q_left", "q_right", "q_local", "k", "k_left", "k_right", "k_local", "v"):
        fields += strided(by_name.get(name))
    if bias is None:
        fields += [0] * 7
    else:
        steps = (0 if n == 1 else step for n, step in zip(bias.shape, bias.stride(), strict=True))
        fields += [bias.data_ptr(), bias.shape[0], *steps]
    run("dw_backward", _LAYOUT, fields)


def strided(x: Tensor | None) -> list[int]:
    """List the address and the strides of a tensor, all 0 without one; the last stride is 1."""
    return [0, 0, 0, 0] if x is None else [x.data_ptr(), *x.stride()[:3]]


def attention_fields(call: Any, out: Tensor, rows: Tensor) -> list[int | float]:
    """List the fields of the C++ `Attention` in order; `call` is one of any operator."""
    q = call.q
    fields: list[int | float] = [
        q.dtype == torch.bfloat16, call.is_causal, *q.shape[:3], call.k.shape[2], call.v.shape[-1],
        torch.get_num_threads(), 0 if call.seed is None else int(call.seed.item()), call.dropout_p,
    ]  # fmt: skip
    for full in (call.attn_mask, call.attn_bias):
        fields += [0] * 5 if full is None else [full.data_ptr(), *full.stride()]
    return [*fields, *strided(call.v), *strided(out), rows.data_ptr(), rows.shape[-1]]


def pair_fields(q: Tensor | None, k: Tensor | None, scale: float | None) -> list[int | float]:
    """List the fields of a C++ `Pair`; without a scale it is 1/√width."""
    width = 0 if q is None else q.shape[-1]
    return [*strided(q), *strided(k), width, 1 / math.sqrt(max(width, 1)) if scale is None else scale]


def _problem(call: "Call", out: Tensor, rows: Tensor) -> list[int | float]:
    """List the fields of the C++ `Problem` in order, up to those of backward."""
    origin = call.segment_origin
    fields = [
        *attention_fields(call, out, rows), call.q_local is not None, call.exact, call.normalize,
        call.segment_size, call.sinks, call.threshold, 0 if origin is None else origin.data_ptr(),
    ]  # fmt: skip
    queries = (call.q, call.q_left, call.q_right, call.q_local)
    keys = (call.k, call.k_left, call.k_right, call.k_local)
    for query, key in zip(queries, keys, strict=True):
        fields += pair_fields(query, key, call.scale)
    return fields


def run(name: str, layout: struct.Struct, fields: list[int | float]) -> None:
    """Call a kernel of the library by name with its packed fields."""
    if getattr(build.load(), name)(layout.pack(*fields)):
        raise MemoryError(f"{name}: no memory for the working rows of {fields[5]} keys")
