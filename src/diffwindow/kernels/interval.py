"""Interval attention in C++: an operator of torch, and a direct call where nothing needs the operator."""

import math
import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffwindow.checks import MOST_KEYS
from diffwindow.kernels import build, cpu
from diffwindow.kernels.registration import (
    Operator,
    empty_output,
    expand_masks,
    with_dense_rows,
)

# The C++ `Interval` of csrc/interval.h, eight bytes per field: `Attention`, then the shared heads and sinks
# (2q), the origin (q), start and end with three strides each (8q), queries and keys, the tables of distances
# with their rows, gradients and slabs (6q), four tensors for backward.
_LAYOUT = struct.Struct(cpu.ATTENTION + "2q q 8q" + cpu.PAIR + "6q 16q")
_BACKWARD_FIELDS = 4 * 4
# The C++ `IntervalQuery`; a view is its address, its sizes and its strides.
_QUERY_LAYOUT = struct.Struct("=5q d 3q q 7q 7q" + "9q" * 5)
# what dw_interval_query returns
_DONE, _NO_MEMORY = 0, 1
# The maximum and the inverse sum of a row's softmax.
_STATISTICS = 2
# Heads are divided among so many sums of a table's gradient, so that several threads can add to it. How many
# must not depend on the threads, on which the sum would then depend.
_SLABS = 32
_TABLES = ("key_table", "value_table")


class Call(NamedTuple):
    """The operator's arguments, in the order of its schema, as `ops.interval_attention` describes them."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_table: Tensor | None
    value_table: Tensor | None
    start: Tensor | None
    end: Tensor | None
    origin: Tensor | None
    attn_mask: Tensor | None
    attn_bias: Tensor | None
    seed: Tensor | None
    is_causal: bool
    sinks: int
    scale: float | None
    dropout_p: float

    @property
    def differentiable(self) -> dict[str, Tensor]:
        """The given arguments that have a gradient, in order."""
        given = {name: getattr(self, name) for name in self._fields[:_NUM_DIFFERENTIABLE]}
        return {name: x for name, x in given.items() if x is not None}


_NUM_DIFFERENTIABLE = Call._fields.index("start")


def attend(call: Call) -> Tensor:
    """Compute a call whose arguments were checked, by the operator."""
    return _operator(call)


def attend_one(call: Call) -> Tensor | None:
    """Compute one query per head without gradients, as in a step of decoding, by a direct call of the kernel.

    Return None if this is not the plain case: the caller then checks the arguments, and `attend` computes.
    The operator takes longer in Python than attention to some thousand keys does; the kernel compares the
    shapes itself.
    """
    q, scale = call.q, call.scale
    if cpu.is_observed() or type(q) is not Tensor or not q.is_cpu or q.dim() != 4 or q.size(2) != 1:
        return None
    if not _can_serve(call):
        return None
    tensors = cpu.views((q, call.k, call.v), q.dtype)
    start, end = cpu.with_dimensions(3, call.start), cpu.with_dimensions(3, call.end)
    places = cpu.views((start, end), torch.int64, dimensions=3)
    mask = cpu.views((cpu.with_dimensions(4, call.attn_mask),), torch.bool)
    bias = cpu.views((cpu.with_dimensions(4, call.attn_bias),), torch.float32)
    origins = cpu.views((call.origin,), torch.int64, dimensions=1)
    if tensors is None or places is None or mask is None or bias is None or origins is None:
        return None
    out = empty_output(q, call.v)
    status = build.load().dw_interval_query(
        _QUERY_LAYOUT.pack(
            q.dtype is torch.bfloat16, call.is_causal, call.sinks, scale is not None,
            torch.get_num_threads(), scale or 0.0, *origins, out.data_ptr(), *places, *mask, *bias, *tensors,
        )
    )  # fmt: skip
    if status == _NO_MEMORY:
        raise MemoryError("there is no memory for the scores of a query")
    return out if status == _DONE else None


def _can_serve(call: Call) -> bool:
    """Tell whether the kernel of one query serves such options; others raise an error, or are traced."""
    return (
        call.key_table is None
        and call.value_table is None
        and call.q.dtype in (torch.float32, torch.bfloat16)
        and type(call.dropout_p) is float
        and call.dropout_p == 0
        and type(call.is_causal) is bool
        and type(call.sinks) is int
        and 0 <= call.sinks <= MOST_KEYS
        and (call.scale is None or (type(call.scale) is float and math.isfinite(call.scale)))
        and build.why_not() is None
    )


def empty_outputs(call: Call) -> tuple[Tensor, Tensor]:
    """Allocate the output, and what backward needs of a row: its softmax and, for bf16, the exact output."""
    row_width = _STATISTICS + (call.v.shape[-1] if call.v.dtype == torch.bfloat16 else 0)
    return empty_output(call.q, call.v), call.v.new_empty(*call.q.shape[:3], row_width, dtype=torch.float32)


def _forward(call: Call) -> tuple[Tensor, Tensor]:
    out, rows = empty_outputs(call)
    # named, so that copies live until the kernel has read them
    readable = _make_addressable(call)
    fields = [*_fields(readable, out, rows), *_table_fields(readable, {}), *[0] * _BACKWARD_FIELDS]
    cpu.run("dw_interval_forward", _LAYOUT, fields)
    return out, rows


def _backward(
    call: Call, grad: Tensor, out: Tensor, rows: Tensor, grads: list[Tensor], needs_bias: bool
) -> None:
    if needs_bias:
        raise NotImplementedError("the kernels of interval attention have no gradients of attn_bias")
    by_name = dict(zip(call.differentiable, grads, strict=True))
    slabs = {name: torch.zeros(_SLABS, *x.shape) for name, x in by_name.items() if name in _TABLES}
    # hooks on saved tensors may have changed the layout of what forward returned
    grad, out, rows = with_dense_rows(grad), with_dense_rows(out), rows.contiguous()
    readable = _make_addressable(call)
    fields = [*_fields(readable, out, rows), *_table_fields(readable, slabs)]
    for x in (grad, by_name["q"], by_name["k"], by_name["v"]):
        fields += cpu.strided(x)
    cpu.run("dw_interval_backward", _LAYOUT, fields)
    for name, parts in slabs.items():
        by_name[name].copy_(parts.sum(0))


def _make_addressable(call: Call) -> Call:
    """Return the arguments as kernels read them.

    Positions are int64 `[b h q]`, tables fp32 without gaps, and other tensors have dense rows.
    """
    lead = call.q.shape[:3]
    tables = {name: getattr(call, name) for name in _TABLES}
    bounds = {"start": call.start, "end": call.end}
    changed: dict[str, Any] = {
        **{name: with_dense_rows(x) for name, x in call.differentiable.items()},
        **{name: None if x is None else x.float().contiguous() for name, x in tables.items()},
        **{name: None if x is None else x.to(torch.int64).expand(lead) for name, x in bounds.items()},
        **expand_masks(call),
        "origin": None if call.origin is None else call.origin.to(torch.int64).contiguous(),
    }
    return call._replace(**changed)


def _fields(call: Call, out: Tensor, rows: Tensor) -> list[int | float]:
    """List the fields of the C++ `Interval` in order, up to the tables."""
    return [
        *cpu.attention_fields(call, out, rows),
        max(1, call.q.shape[1] // max(1, call.k.shape[1])), call.sinks,
        _address(call.origin),
        *cpu.strided(call.start), *cpu.strided(call.end), *cpu.pair_fields(call.q, call.k, call.scale),
    ]  # fmt: skip


def _table_fields(call: Call, slabs: dict[str, Tensor]) -> list[int]:
    """List the fields of the C++ `Tables` in order; `slabs` are the sums of their gradients, by name."""
    tables = [getattr(call, name) for name in _TABLES]
    sums = [slabs.get(name) for name in _TABLES]
    rows = max(0 if x is None else len(x) for x in tables)
    return [*(_address(x) for x in tables), rows, *(_address(x) for x in sums), _SLABS]


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


_operator = Operator(
    "interval_attention",
    Call,
    _NUM_DIFFERENTIABLE,
    forward=_forward,
    backward=_backward,
    empty_outputs=empty_outputs,
)
use_reference = _operator.use_reference
