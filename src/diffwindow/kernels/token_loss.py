"""Cross-entropy over a vocabulary in one C++ kernel: products, softmax, loss and gradients."""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from diffwindow.kernels import build, cpu

# The C++ `TokenLoss`, eight bytes per field.
_LAYOUT = struct.Struct("=12q d q")


class Scores(NamedTuple):
    """Per token, −log p of its label and the mean of −log p over the vocabulary; then gradients of a sum."""

    nll: Tensor
    mean_nll: Tensor
    grad_hidden: Tensor | None
    grad_weight: Tensor | None


def can_serve(hidden: Tensor, weight: Tensor, labels: Tensor) -> bool:
    """Tell whether the kernel takes such tensors; it has one type, and leaves errors to torch."""
    return (
        not cpu.is_observed()
        and hidden.numel() > 0
        and labels.dtype == torch.int64
        and hidden.shape[1:] == weight.shape[1:]
        and cpu.holds_floats(hidden)
        and cpu.holds_floats(weight)
        and not torch.is_autocast_enabled("cpu")
        and build.ready()
        and int(labels.min()) >= 0
        and int(labels.max()) < len(weight)
    )


def score(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    smoothing: float,
    *,
    needs_hidden: bool,
    needs_weight: bool,
) -> Scores:
    """Score `hidden · weightᵀ` against labels, and differentiate the sum over tokens of the smoothed loss."""
    hidden, weight, labels = hidden.contiguous(), weight.contiguous(), labels.contiguous()
    nll, mean_nll = hidden.new_empty(2, len(hidden))
    grad_hidden = torch.empty_like(hidden) if needs_hidden else None
    grad_weight = torch.empty_like(weight) if needs_weight else None
    pointers = [0 if x is None else x.data_ptr() for x in (grad_hidden, grad_weight)]
    fields = _LAYOUT.pack(
        hidden.data_ptr(), weight.data_ptr(), labels.data_ptr(), nll.data_ptr(), mean_nll.data_ptr(),
        *pointers, *hidden.shape, len(weight), hidden.stride(0), weight.stride(0), smoothing,
        torch.get_num_threads(),
    )  # fmt: skip
    if build.load().dw_token_loss(fields):
        raise MemoryError(f"there is no memory for the logits of {len(weight)} words")
    return Scores(nll, mean_nll, grad_hidden, grad_weight)
