"""The fused CPU kernels as `torch.library` operators: shapes for tracing, gradients, the call into C++."""

import math
import struct
from typing import Any

import torch
from torch import Tensor

from diffwindow.kernels import build

DTYPES = (torch.float32, torch.bfloat16)

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor q_left, Tensor k_left, Tensor q_right, Tensor k_right, "
    "Tensor? q_local, Tensor? k_local, Tensor? attn_mask, Tensor? segment_origin, Tensor? seed, "
    "bool is_causal, int segment_size, bool exact, float? scale, float dropout_p"
)
_library = torch.library.Library("diffwindow", "DEF")
_library.define(f"window_attention({_INPUTS}) -> (Tensor, Tensor)")
_library.define(f"window_attention_backward(Tensor grad, Tensor out, Tensor rows, {_INPUTS}) -> Tensor[]")

# Places of tensors in `_INPUTS`: queries and keys in the order of the C++ pairs, and the values.
_PAIRS = ((0, 1), (3, 4), (5, 6), (7, 8))
_VALUES = 2
_TENSORS = 9
# After the tensors come mask, origin and seed, and after those the options.
_OPTIONS = _TENSORS + 3
# Floats that backward needs of each row, besides the output.
_STATISTICS = 6
# The C++ `Problem`, eight bytes a field.
_BACKWARD_FIELDS = 4 * (1 + _TENSORS)
_LAYOUT = struct.Struct("=11q Qd 5q q" + "8qqd" * 4 + "8q 2q" + f"{_BACKWARD_FIELDS}q")


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def why_not(dtype: torch.dtype, device: str) -> str | None:
    """Say why the kernels cannot take such tensors, or None when they can."""
    if device != "cpu":
        return f"the tensors are on {device}, not on the CPU"
    if dtype not in DTYPES:
        return f"{dtype} is not float32 or bfloat16"
    return build.why_not()


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: tuple[Tensor, Tensor, Tensor, Tensor],
    local: tuple[Tensor, Tensor] | None,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    segment_size: int,
    segment_origin: Tensor | None,
    exact: bool,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    """Run window attention in the fused kernels: multiplicative unless `local` is given."""
    q_local, k_local = local or (None, None)
    # Drawn from torch's generator, so that torch.manual_seed repeats it.
    seed = torch.randint(2**63 - 1, ()) if dropout_p > 0 else None
    out: Tensor
    out, _ = torch.ops.diffwindow.window_attention(
        q, k, v, *boundaries, q_local, k_local, attn_mask, segment_origin, seed,
        is_causal, segment_size, exact, scale, dropout_p,
    )  # fmt: skip
    return out


@torch.library.impl(_library, "window_attention", "CPU")
def _forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    out, rows = _empty_outputs(inputs[0], inputs[_VALUES])
    inputs = _addressable(inputs)
    _call("dw_forward", [*_problem(inputs, out, rows), *[0] * _BACKWARD_FIELDS])
    return out, rows


@torch.library.impl(_library, "window_attention_backward", "CPU")
def _backward(grad: Tensor, out: Tensor, rows: Tensor, *inputs: Any) -> list[Tensor]:
    grads = _empty_grads(inputs)
    inputs = _addressable(inputs)
    grad = _dense(grad)
    fields = [*_problem(inputs, out, rows), *_strided(grad)]
    by_place = [*grads, None, None]
    for place in (*(q for q, _ in _PAIRS), *(k for _, k in _PAIRS), _VALUES):
        fields += _strided(by_place[place])
    _call("dw_backward", fields)
    return grads


def _forward_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(inputs[0], inputs[_VALUES])


def _backward_shapes(grad: Tensor, out: Tensor, rows: Tensor, *inputs: Any) -> list[Tensor]:
    return _empty_grads(inputs)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:_OPTIONS])
    ctx.options = inputs[_OPTIONS:]


def _differentiate(ctx: Any, grad: Tensor, grad_rows: Tensor | None) -> tuple[Tensor | None, ...]:
    grads = torch.ops.diffwindow.window_attention_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*grads, *[None] * (_OPTIONS + len(ctx.options) - len(grads)))


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError('the fused kernels have no second derivative; use impl="reference"')


torch.library.register_fake("diffwindow::window_attention", _forward_shapes, lib=_library)
torch.library.register_fake("diffwindow::window_attention_backward", _backward_shapes, lib=_library)
torch.library.register_autograd(
    "diffwindow::window_attention", _differentiate, setup_context=_keep, lib=_library
)
torch.library.register_autograd("diffwindow::window_attention_backward", _refuse, lib=_library)


def _empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the output, heads innermost as the next layer wants it, and what backward needs of a row."""
    batch, heads, queries, _ = q.shape
    out = v.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
    width = _STATISTICS + (v.shape[-1] if v.dtype == torch.bfloat16 else 0)
    return out, v.new_empty(batch, heads, queries, width, dtype=torch.float32)


def _empty_grads(inputs: tuple[Any, ...]) -> list[Tensor]:
    return [torch.empty_like(x) for x in inputs[:_TENSORS] if x is not None]


def _addressable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give the inputs as C++ reads them: rows contiguous, the mask strided `[b h q k]`, origins int64."""
    tensors = [x if x is None else _dense(x) for x in inputs[:_TENSORS]]
    mask, origin = inputs[_TENSORS : _TENSORS + 2]
    if mask is not None:
        mask = mask.expand(*inputs[0].shape[:3], inputs[1].shape[2])
    if origin is not None:
        origin = origin.to(torch.int64).contiguous()
    return (*tensors, mask, origin, *inputs[_TENSORS + 2 :])


def _dense(x: Tensor) -> Tensor:
    """Copy a tensor whose rows are not contiguous; its batches, heads and rows may lie anywhere."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strided(x: Tensor | None) -> list[int]:
    return [0, 0, 0, 0] if x is None else [x.data_ptr(), *x.stride()[:3]]


def _problem(inputs: tuple[Any, ...], out: Tensor, rows: Tensor) -> list[int | float]:
    """List the fields of the C++ `Problem` in order, up to those of backward."""
    q, k, v = inputs[:3]
    mask, origin, seed, is_causal, segment_size, exact, scale, dropout_p = inputs[_TENSORS:]
    additive = inputs[_PAIRS[-1][0]] is not None
    fields: list[int | float] = [
        q.dtype == torch.bfloat16, additive, is_causal, exact, segment_size,
        q.shape[0], q.shape[1], q.shape[2], k.shape[2], v.shape[-1], torch.get_num_threads(),
        0 if seed is None else seed.item(), dropout_p,
    ]  # fmt: skip
    fields += [0] * 5 if mask is None else [mask.data_ptr(), *mask.stride()]
    fields.append(0 if origin is None else origin.data_ptr())
    for query, key in _PAIRS:
        x = inputs[query]
        width = 0 if x is None else x.shape[-1]
        fields += [*_strided(x), *_strided(inputs[key]), width]
        fields.append(1 / math.sqrt(max(width, 1)) if scale is None else scale)
    return [*fields, *_strided(v), *_strided(out), rows.data_ptr(), rows.shape[-1]]


def _call(name: str, fields: list[int | float]) -> None:
    if getattr(build.load(), name)(_LAYOUT.pack(*fields)):
        raise MemoryError(f"{name}: no memory for the working rows of {fields[8]} keys")
