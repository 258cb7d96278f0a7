"""Dropout and residuals of blocks: on a CPU with masks from a counter, fused with the norm in its kernels."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import functional
from diffwindow.kernels import cpu, few_rows
from diffwindow.kernels import residual as kernel


def dropout(x: Float[Tensor, "*lead d"], rate: float, *, training: bool) -> Float[Tensor, "*lead d"]:
    """Drop a share of the elements in training.

    On a CPU the mask is `functional.kept_weights` of a seed that torch's generator draws, whether there are
    kernels or not; other devices have torch's own dropout.
    """
    if not training or rate == 0 or not x.is_cpu:
        return F.dropout(x, rate, training=training)
    seed = functional.draw_seed(x)
    if not kernel.can_serve(x, x):
        return functional.dropout(x, rate, seed)
    dropped: Tensor = _Dropout.apply(x, rate, seed)
    return dropped


def join(
    x: Float[Tensor, "*lead d"],
    branch: Float[Tensor, "*lead d"],
    norm: nn.Module | None,
    rate: float,
    *,
    training: bool,
) -> Float[Tensor, "*lead d"]:
    """Return norm(x + dropout(branch)), or x + dropout(branch) without a norm."""
    # what runs without gradients and dropout stays torch's, bit by bit
    if training and isinstance(norm, nn.LayerNorm) and norm.bias is not None and _is_plain(norm):
        values = kernel.Norm(norm.weight, norm.bias, norm.eps)
        if kernel.can_serve(x, branch, values):
            # without dropout, as without kernels, nothing is drawn
            seed = functional.draw_seed(x) if rate > 0 else torch.zeros((), dtype=torch.int64)
            joined: Tensor = _Join.apply(x, branch, *values, rate, seed)
            return joined
    sum_ = x + dropout(branch, rate, training=training)
    return sum_ if norm is None else norm(sum_)


def _is_plain(norm: nn.LayerNorm) -> bool:
    return type(norm) is nn.LayerNorm and not few_rows.is_changed(norm)


class _Dropout(torch.autograd.Function):
    """Dropout in the kernel; its gradient drops the same elements."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: Tensor) -> Tensor:
        ctx.rate, ctx.seed = rate, seed
        return kernel.drop(x, kernel.Dropout(rate, int(seed)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if cpu.needs_torch(grad):
            return functional.dropout(grad, ctx.rate, ctx.seed), None, None
        return _Dropout.apply(grad, ctx.rate, ctx.seed), None, None


class _Join(torch.autograd.Function):
    """Dropout, residual and norm in the kernel; a gradient of its gradient is computed by `functional`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        rate: float,
        seed: Tensor,
    ) -> Tensor:
        norm, dropped = kernel.Norm(weight, bias, eps), kernel.Dropout(rate, int(seed))
        out, rows = kernel.join(x, branch, norm, dropped)
        # not the sum: x is kept for the branch anyway
        ctx.save_for_backward(x, branch, weight, bias, rows)
        ctx.eps, ctx.rate, ctx.seed = eps, rate, seed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, rows = ctx.saved_tensors
        if cpu.needs_torch(grad):
            create_graph = torch.is_grad_enabled()
            with torch.enable_grad():
                # a view is a node of its own: the gradient may itself depend on the inputs
                inputs = [
                    each.view_as(each) if each.requires_grad else each.detach().requires_grad_()
                    for each in inputs
                ]
                out = functional.join_residual(*inputs, eps=ctx.eps, dropout_p=ctx.rate, seed=ctx.seed)
            grads = torch.autograd.grad(out, inputs, grad, create_graph=create_graph)
            return *grads, None, None, None
        x, branch, weight, bias = inputs
        norm, dropped = kernel.Norm(weight, bias, ctx.eps), kernel.Dropout(ctx.rate, int(ctx.seed))
        return *kernel.join_backward(grad, x, branch, rows, norm, dropped), None, None, None
