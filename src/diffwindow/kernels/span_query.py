"""The fitted windows of one query per head, as in a step of decoding, in one C++ call."""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diffwindow.kernels import build, cpu

# The C++ `SpanQuery`, eight bytes per field.
_LAYOUT = struct.Struct("=7q 6q 3q 9q 9q 7q 7q")
_PARAMETERS = ("bias", "position", "weight", "hidden", "hidden_bias", "out")
# what dw_span_query returns
_NO_MEMORY, _NOT_SERVED, _TOLD = 1, 2, 3


class Places(NamedTuple):
    """The first and the last key of each window and the first real key per sequence; None counts from 0.

    `told` is whether windows over everything would show what the mask shows, and nothing else.
    """

    start: Tensor
    end: Tensor
    origin: Tensor | None
    told: bool


def place(
    q: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
    mask: Tensor | None,
    num_keys: int,
    parameters: Mapping[str, Tensor | None],
    *,
    choices: Sequence[int],
    sinks: int,
    block: int,
) -> Places | None:
    """Place the windows of a `SpanAdapter` with such parameters; None if this is not the plain case."""
    if cpu.is_observed() or q.dim() != 4 or q.size(2) != 1 or q.dtype not in (torch.float32, torch.bfloat16):
        return None
    weights = [parameters.get(name) for name in _PARAMETERS]
    if not all(x is None or (cpu.holds_floats(x) and x.is_contiguous()) for x in weights):
        return None
    queries, turns = cpu.views((q,), q.dtype), cpu.views(rotation or (None, None), q.dtype, dimensions=3)
    masks = cpu.views((mask,), torch.bool)
    bias, hidden = weights[0], parameters.get("hidden_bias")
    if bias is None or queries is None or turns is None or masks is None or not build.ready():
        return None
    batch, heads = q.shape[:2]
    start, end = torch.empty(batch, heads, 1, dtype=torch.int64), torch.empty(batch, 1, 1, dtype=torch.int64)
    origin = None if mask is None else torch.empty(batch, dtype=torch.int64)
    status = build.load().dw_span_query(
        _LAYOUT.pack(
            q.dtype is torch.bfloat16, bias.size(0), sinks, block, bias.size(1),
            0 if hidden is None else hidden.numel(), num_keys,
            *(0 if x is None else x.data_ptr() for x in (*weights, start, end, origin)),
            *masks, *queries, *turns,
        ),
        struct.pack(f"={len(choices)}q", *choices),
    )  # fmt: skip
    if status == _NO_MEMORY:
        raise MemoryError("there is no memory for the windows of a query")
    return None if status == _NOT_SERVED else Places(start, end, origin, status == _TOLD)
