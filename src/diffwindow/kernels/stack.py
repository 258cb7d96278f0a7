"""Projections stacked along the width: split without copies, in the gradients too.

Torch's own split copies the gradients of its parts together. Kernels write them side by side, as the parts
are, and then there is nothing to copy.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffwindow.kernels import cpu


def split(stack: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return what `stack.split(sizes, dim=-1)` does."""
    if not (stack.requires_grad and torch.is_grad_enabled() and stack.is_cpu) or cpu.is_observed():
        return torch.split(stack, list(sizes), dim=-1)
    parts: tuple[Tensor, ...] = _Split.apply(stack, *sizes)
    return parts


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stack: Tensor, *sizes: int) -> tuple[Tensor, ...]:
        ctx.num_sizes = len(sizes)
        return torch.split(stack, list(sizes), dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        joined = None if any(map(cpu.needs_torch, grads)) else _join_in_place(grads)
        return torch.cat(grads, -1) if joined is None else joined, *[None] * ctx.num_sizes


def _join_in_place(parts: Sequence[Tensor]) -> Tensor | None:
    """Return parts that lie side by side in the rows of one tensor as one; None if they do not."""
    first = parts[0]
    width = 0
    for x in parts:
        if not cpu.is_in_memory(x) or x.numel() == 0:
            return None
        if x.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or x.dtype != first.dtype:
            return None
        if x.stride() != first.stride() or x.stride(-1) != 1:
            return None
        if x.storage_offset() != first.storage_offset() + width:
            return None
        width += x.shape[-1]
    return first.as_strided((*first.shape[:-1], width), first.stride())


def empty_heads_like(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Allocate gradients for heads `[b h n e]` that lie side by side in the rows of a stack, likewise.

    None stands for the gradient of a tensor that has no neighbour.
    """
    grads: list[Tensor | None] = [None] * len(tensors)
    places = [i for i, x in enumerate(tensors) if _is_in_a_stack(x)]
    places.sort(key=lambda i: tensors[i].data_ptr())
    while places:
        run = [places.pop(0)]
        while places and _are_neighbours(tensors[run[-1]], tensors[places[0]]):
            run.append(places.pop(0))
        if len(run) == 1:
            continue
        batch, _, length, _ = tensors[run[0]].shape
        widths = [tensors[i].shape[1] * tensors[i].shape[3] for i in run]
        stack = tensors[run[0]].new_empty(batch, length, sum(widths))
        for i, part in zip(run, stack.split(widths, dim=-1), strict=True):
            grads[i] = part.unflatten(-1, (tensors[i].shape[1], -1)).transpose(1, 2)
    return grads


def _is_in_a_stack(x: Tensor) -> bool:
    """Tell whether the heads of each token lie side by side in a longer row."""
    _, heads, length, width = x.shape
    return (
        x.stride(3) == 1
        and (heads == 1 or x.stride(1) == width)
        and length > 1
        and x.stride(2) > heads * width > 0
    )


def _are_neighbours(x: Tensor, y: Tensor) -> bool:
    """Tell whether the rows of y start where those of x end, in the same tensor."""
    step = x.shape[1] * x.shape[3] * x.element_size()
    return (
        x.dtype == y.dtype
        and (x.shape[0], x.shape[2]) == (y.shape[0], y.shape[2])
        and (x.stride(0), x.stride(2)) == (y.stride(0), y.stride(2))
        and x.data_ptr() + step == y.data_ptr()
    )
