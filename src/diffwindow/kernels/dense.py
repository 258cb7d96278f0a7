"""Linear layers in training, forward and backward in C++, with their bias and, if asked, a ReLU."""

import struct
from typing import Any

import torch
from torch import Tensor

from diffwindow.kernels import build, cpu, toolchain

# The C++ `Dense`, eight bytes per field.
_LAYOUT = struct.Struct("=13q")
# widths are multiples of a panel of the C++ products
_PANEL = 16
# for fewer rows, packing the weight takes too large a share
_MIN_ROWS = 128


def can_serve(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the kernels take such tensors and beat torch: fp32, many rows, with AVX2 or AVX-512."""
    return (
        not cpu.is_observed()
        and cpu.holds_floats(x)
        and cpu.holds_floats(weight)
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and weight.shape[0] % _PANEL == 0 == weight.shape[1] % _PANEL
        and x.numel() >= _MIN_ROWS * x.shape[-1] > 0
        and (bias is None or (cpu.holds_floats(bias) and bias.shape == weight.shape[:1]))
        and not torch.is_autocast_enabled("cpu")
        and bool(toolchain.levels()[0].flags)
        and build.ready()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """Return x Wᵀ + b, or its positive part, with gradients."""
    out: Tensor = _Dense.apply(x, weight, bias, relu)
    return out


class _Dense(torch.autograd.Function):
    """The layer in the kernels; torch computes a gradient of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        y = x.new_empty(*x.shape[:-1], len(weight))
        _run("dw_dense", x.contiguous(), weight.contiguous(), relu, bias=bias, y=y)
        ctx.save_for_backward(x, weight, bias, y if relu else None)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, y = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if cpu.needs_torch(grad):
            grad = grad if y is None else grad * (y > 0)
            rows = grad.reshape(-1, grad.shape[-1])
            return grad @ weight, rows.mT @ x.flatten(0, -2), rows.sum(0) if needs_bias else None, None
        # hooks on saved tensors may have changed the layout of what forward saved
        x, weight = x.contiguous(), weight.contiguous()
        grads = (
            torch.empty_like(x) if needs_x else None,
            torch.empty_like(weight) if needs_weight else None,
            torch.empty_like(bias) if needs_bias else None,
        )
        relu = y is not None
        y = None if y is None else y.contiguous()
        _run("dw_dense_backward", x, weight, relu, y=y, grad=grad.contiguous(), grads=grads)
        return *grads, None


def _run(
    name: str,
    x: Tensor,
    weight: Tensor,
    relu: bool,
    *,
    bias: Tensor | None = None,
    y: Tensor | None,
    grad: Tensor | None = None,
    grads: tuple[Tensor | None, ...] = (None, None, None),
) -> None:
    tensors = (x, weight, None if bias is None else bias.contiguous(), y, grad, *grads)
    outputs, inputs = weight.shape
    fields = _LAYOUT.pack(
        *(0 if each is None else each.data_ptr() for each in tensors),
        x.numel() // inputs, inputs, outputs, relu, torch.get_num_threads(),
    )  # fmt: skip
    if getattr(build.load(), name)(fields):
        raise MemoryError(f"{name}: there is no memory for a linear layer of {inputs} inputs")
