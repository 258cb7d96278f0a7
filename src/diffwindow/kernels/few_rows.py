"""Linear layers for few rows without gradients, as in a step of decoding: their own C++ kernel.

For up to some hundred rows it is faster than the library that torch calls, which copies the weights first.
"""

import struct
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffwindow.kernels import build, cpu, dense

# The C++ `FewRows`, eight bytes per field.
_LAYOUT = struct.Struct("=9q")
# 32 sentences of a beam of 5, the largest step that benchmarks/decoding.py measures
MAX_ROWS = 160
# for less work, the time to describe a call matters more than that of the products
_MIN_PRODUCTS = 1 << 16


def apply(layer: nn.Module, x: Tensor, *, relu: bool = False) -> Tensor:
    """Call a linear layer, or whatever has taken its place; with `relu`, return the positive part."""
    if is_plain(layer):
        return linear(x, layer.weight, layer.bias, relu=relu)
    output: Tensor = layer(x)
    # not in place: hooks may keep the output, and gradients may need it
    return F.relu(output) if relu else output


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Return what `torch.nn.functional.linear` does, up to rounding, or the positive part of it.

    With gradients, many rows go to the kernels of `dense`.
    """
    if torch.is_grad_enabled() and dense.can_serve(x, weight, bias):
        return dense.linear(x, weight, bias, relu=relu)
    output = _linear(x, weight, bias)
    return F.relu(output, inplace=True) if relu else output


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_grad_enabled() or cpu.is_observed() or not _can_serve(x, weight, bias):
        return F.linear(x, weight, bias)
    outputs, inputs = weight.shape
    y = torch.empty((*x.shape[:-1], outputs), dtype=x.dtype, device=x.device)
    fields = _LAYOUT.pack(
        x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(),
        x.numel() // inputs, inputs, outputs, weight.stride(0), torch.get_num_threads(),
    )  # fmt: skip
    if build.load().dw_few_rows(fields):
        raise MemoryError(f"there is no memory for a linear layer of {inputs} inputs")
    return y


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Tell whether a call of the layer does nothing but multiply by its weight and add its bias."""
    return type(layer) is nn.Linear and not is_changed(layer)


def is_changed(layer: nn.Module) -> bool:
    """Tell whether hooks, or another `forward`, take part in a call of the layer."""
    hooks = nn.modules.module
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or hooks._global_backward_hooks
        or hooks._global_backward_pre_hooks
        or "forward" in layer.__dict__
    )


def _can_serve(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the kernel takes such tensors; it has one type, and reads rows that are dense."""
    if not (type(x) is Tensor and x.dim() > 0 and weight.dim() == 2):
        return False
    inputs, outputs = x.size(-1), weight.size(0)
    if not 0 < x.numel() <= MAX_ROWS * inputs or x.numel() * outputs < _MIN_PRODUCTS:
        return False
    return (
        cpu.holds_floats(x)
        and x.is_contiguous()
        and cpu.holds_floats(weight)
        and weight.size(1) == inputs
        and (weight.stride(1) == 1 or inputs == 1)
        and (bias is None or (cpu.holds_floats(bias) and bias.shape == (outputs,) and bias.stride(0) == 1))
        and not torch.is_autocast_enabled("cpu")
        and build.ready()
    )
