"""Dropout, residual and norm of a block in one C++ kernel, forward and backward."""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from diffwindow.kernels import build, cpu

# The C++ `Residual`, eight bytes per field.
_LAYOUT = struct.Struct("=14q Q2d q")
_TYPES = (torch.float32, torch.bfloat16)


class Dropout(NamedTuple):
    """The share that is dropped, and the seed that decides what."""

    rate: float
    seed: int


class Norm(NamedTuple):
    """What `torch.nn.functional.layer_norm` takes."""

    weight: Tensor
    bias: Tensor
    eps: float


def can_serve(x: Tensor, branch: Tensor, norm: Norm | None = None) -> bool:
    """Tell whether the kernels take such tensors: fp32, bf16, or a branch in bf16 beside x in fp32."""
    return (
        not cpu.is_observed()
        and branch.numel() > 0
        and x.shape == branch.shape
        and x.dtype in _TYPES
        and branch.dtype in (torch.bfloat16, x.dtype)
        and (x.dtype == torch.float32 or not torch.is_autocast_enabled("cpu"))
        and (norm is None or (norm.weight.shape == x.shape[-1:] and norm.weight.dtype == x.dtype))
        and all(cpu.is_in_memory(each) for each in (x, branch, *(() if norm is None else norm[:2])))
        and build.ready()
    )


def drop(x: Tensor, dropout: Dropout) -> Tensor:
    """Return what dropout leaves of x; its gradient is the same of the gradient."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _run("dw_residual", x, dropout, out=out)
    return out


def join(x: Tensor, branch: Tensor, norm: Norm, dropout: Dropout) -> tuple[Tensor, Tensor]:
    """Return norm(x + dropout(branch)), and what backward needs of each row."""
    x, branch = x.contiguous(), branch.contiguous()
    out = torch.empty_like(x)
    rows = x.new_empty(*x.shape[:-1], 2, dtype=torch.float32)
    _run("dw_residual", branch, dropout, x=x, norm=norm, out=out, rows=rows)
    return out, rows


def join_backward(
    grad: Tensor, x: Tensor, branch: Tensor, rows: Tensor, norm: Norm, dropout: Dropout
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, the branch, and the norm's weight and bias."""
    # hooks on saved tensors may have changed the layout of what forward saved
    x, branch = x.contiguous(), branch.contiguous()
    grads = (torch.empty_like(x), torch.empty_like(branch))
    of_norm = x.new_empty(2, x.shape[-1], dtype=torch.float32)
    _run(
        "dw_residual_backward", branch, dropout, x=x, norm=norm, rows=rows.contiguous(),
        grad=grad.contiguous(), grad_x=grads[0], grad_branch=grads[1], grad_norm=of_norm,
    )  # fmt: skip
    weight, bias = of_norm.to(norm.weight.dtype)
    return *grads, weight, bias


_TENSORS = ("x", "branch", "weight", "bias", "out", "rows", "grad", "grad_x", "grad_branch", "grad_norm")


def _run(name: str, branch: Tensor, dropout: Dropout, *, norm: Norm | None = None, **tensors: Tensor) -> None:
    tensors["branch"] = branch
    if norm is not None:
        tensors["weight"], tensors["bias"] = norm.weight.float().contiguous(), norm.bias.float().contiguous()
    addresses = [tensors[each].data_ptr() if each in tensors else 0 for each in _TENSORS]
    width = branch.shape[-1]
    fields = _LAYOUT.pack(
        *addresses, tensors.get("x", branch).dtype == torch.bfloat16, branch.dtype == torch.bfloat16,
        branch.numel() // width, width, dropout.seed, dropout.rate, 0.0 if norm is None else norm.eps,
        torch.get_num_threads(),
    )  # fmt: skip
    if getattr(build.load(), name)(fields):
        raise MemoryError(f"{name}: there is no memory for rows of {width} numbers")
