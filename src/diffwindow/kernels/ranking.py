"""What a search asks of the logits of a step: log Σ e^x of each row, and its largest values, in C++."""

import struct

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffwindow.kernels import build, cpu

# The C++ `Ranking`, eight bytes per field.
_LAYOUT = struct.Struct("=8q")
# for shorter rows, the time to describe a call matters more
_MIN_WIDTH = 1024
# values are kept in order by insertion
_MAX_COUNT = 64


def logsumexp(x: Float[Tensor, "*lead v"]) -> Float[Tensor, "*lead 1"]:
    """Return what `torch.logsumexp` does over the last dimension, up to rounding."""
    if not _can_serve(x):
        return x.logsumexp(-1, keepdim=True)
    sums = torch.empty((*x.shape[:-1], 1), dtype=x.dtype)
    _run(x, sums, None, None)
    return sums


def topk(
    x: Float[Tensor, "*lead v"], count: int
) -> tuple[Float[Tensor, "*lead count"], Int[Tensor, "*lead count"]]:
    """Return what `torch.topk` does over the last dimension; of equal values the first columns.

    The columns of values of -inf may be any.
    """
    if count > _MAX_COUNT or not _can_serve(x):
        values, columns = x.topk(count)
        return values, columns
    top = torch.empty((*x.shape[:-1], count), dtype=x.dtype)
    places = torch.empty(top.shape, dtype=torch.int64)
    _run(x, None, top, places)
    return top, places


def _can_serve(x: Tensor) -> bool:
    return (
        type(x) is Tensor
        and x.dtype == torch.float32
        and x.is_cpu
        and x.layout == torch.strided
        and x.dim() > 0
        and x.size(-1) >= _MIN_WIDTH
        and x.is_contiguous()
        and not x.is_neg()
        and not x.requires_grad
        and not cpu.is_observed()
        and build.ready()
    )


def _run(x: Tensor, sums: Tensor | None, top: Tensor | None, columns: Tensor | None) -> None:
    width = x.size(-1)
    addresses = (0 if out is None else out.data_ptr() for out in (sums, top, columns))
    count = 0 if top is None else top.size(-1)
    build.load().dw_rank(
        _LAYOUT.pack(x.data_ptr(), *addresses, x.numel() // width, width, count, torch.get_num_threads())
    )
