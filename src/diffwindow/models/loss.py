"""Cross-entropy over a vocabulary, computed without holding all logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd.function import once_differentiable

from diffwindow.kernels import token_loss as kernel
from diffwindow.special_tokens import PAD


class TokenLoss(NamedTuple):
    """Sums over the real tokens: the objective, the negative log-likelihood (no gradient), and how many."""

    total: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    num_tokens: int


def token_loss(
    hidden: Float[Tensor, "*lead d"],
    weight: Float[Tensor, "v d"],
    targets: Int[Tensor, "*lead"],
    *,
    label_smoothing: float = 0.0,
    chunk_size: int = 1024,
) -> TokenLoss:
    """Score `hidden · weightᵀ` against the targets that are not padding, with smoothed labels.

    total = Σ (1 − ε) (−log p_target) + ε/v Σ_w (−log p_w), as in `F.cross_entropy`. Gradients are
    computed along the way, `chunk_size` tokens at a time, and logits are overwritten by theirs. A CPU's
    kernel, for fp32, chooses the size of its chunks itself.

    >>> loss = token_loss(torch.zeros(3, 2), torch.zeros(4, 2), torch.tensor([1, 2, 0]))
    >>> loss.num_tokens, round(loss.total.item() / loss.num_tokens, 4)
    (2, 1.3863)
    """
    real = targets != PAD
    kept, labels = hidden[real], targets[real]
    if peek_interpreter_stack() is not None:
        # a transform of torch.func differentiates operators alone
        logits = kept @ weight.T
        smoothed = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
        nll = F.cross_entropy(logits.detach(), labels, reduction="sum")
        return TokenLoss(smoothed, nll, labels.numel())
    if not torch.is_grad_enabled():
        # detach: Function.forward cannot see no_grad
        kept, weight = kept.detach(), weight.detach()
    total, nll = _ChunkedCrossEntropy.apply(kept, weight, labels, label_smoothing, chunk_size)
    return TokenLoss(total, nll.detach(), labels.numel())


@torch.no_grad()
def token_log_probs(
    hidden: Float[Tensor, "*lead d"],
    logits: Callable[[Tensor], Tensor],
    targets: Int[Tensor, "*lead"],
    *,
    chunk_size: int = 1024,
) -> Float[Tensor, "*lead"]:
    """Return log p of each target under softmax(`logits(hidden)`), without gradients; 0 for padding.

    >>> logits = torch.nn.Linear(2, 4).requires_grad_(False)
    >>> _ = logits.weight.zero_(), logits.bias.zero_()
    >>> token_log_probs(torch.zeros(3, 2), logits, torch.tensor([1, 2, 0])).exp()
    tensor([0.2500, 0.2500, 1.0000])
    """
    real = targets != PAD
    kept, labels = hidden[real], targets[real]
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    log_probs = [
        -F.cross_entropy(logits(rows).to(dtype), chosen, reduction="none")
        for rows, chosen in zip(kept.split(chunk_size), labels.split(chunk_size), strict=True)
    ]
    return hidden.new_zeros(targets.shape, dtype=dtype).masked_scatter(real, torch.cat(log_probs))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Matrix product, softmax and cross-entropy as one function of a row of tokens."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        if kernel.can_serve(hidden, weight, labels):
            nll, mean_nll, *grads = kernel.score(
                hidden, weight, labels, smoothing, needs_hidden=needs_hidden, needs_weight=needs_weight
            )
            ctx.save_for_backward(*grads)
            nll = nll.sum()
            ctx.mark_non_differentiable(nll)
            return (1 - smoothing) * nll + smoothing * mean_nll.sum(), nll
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        nll = torch.zeros_like(total)
        for start in range(0, hidden.shape[0], chunk_size):
            rows = slice(start, start + chunk_size)
            logits = (hidden[rows] @ weight.T).to(total.dtype)
            label = labels[rows, None]
            log_z = logits.logsumexp(-1)
            target_nll = log_z - logits.gather(-1, label).squeeze(-1)
            nll += target_nll.sum()
            total += (1 - smoothing) * target_nll.sum() + smoothing * (log_z - logits.mean(-1)).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            # d total / d logits = p − (1 − ε) onehot − ε/v, in the place of the logits.
            grad = logits.sub_(log_z[:, None]).exp_().sub_(smoothing / weight.shape[0])
            grad.scatter_add_(-1, label, grad.new_full(label.shape, smoothing - 1))
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad @ weight.to(grad.dtype)
            if grad_weight is not None:
                grad_weight.addmm_(grad.T.to(weight.dtype), hidden[rows].to(weight.dtype))
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll)
        return total, nll

    # the gradients are saved without a graph: a second derivative is an error, not a wrong number
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grads = (None if grad is None else grad * grad_total.to(grad.dtype) for grad in ctx.saved_tensors)
        return (*grads, None, None, None)
