"""GlobalAttention: the plain Transformer's attention, with a bias of its scores if a kind has one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffwindow import functional, ops
from diffwindow.attention.base import Keys, Queries, StackedAttention
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.kernels import build, cpu
from diffwindow.soft_window import Maps


class Pairs(NamedTuple):
    """What a bias of the scores may depend on: the projected queries and where queries and keys stand."""

    queries: Float[Tensor, "b q d"]
    num_keys: int
    attn_mask: Bool[Tensor, "..."] | None = None

    def distance(self) -> Int[Tensor, "q k"]:
        """Return how far each key lies to the right of each query."""
        return functional.relative_positions(self.queries.shape[1], self.num_keys, self.queries.device)

    def real_positions(self) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Return the number of visible keys, and the position of each key among them, from 0."""
        # half precision cannot count beyond a few hundred
        dtype = torch.promote_types(self.queries.dtype, torch.float32)
        mask = self.queries.new_ones(1, self.num_keys) if self.attn_mask is None else self.attn_mask
        visible = mask.to(dtype)
        return visible.sum(-1, keepdim=True), visible.cumsum(-1) - 1


Learned = nn.Parameter | nn.Module


def nothing_learned(embed_dim: int, num_heads: int, size: int | None) -> Mapping[str, Learned]:
    """Return no parameters."""
    return {}


@dataclass(frozen=True)
class ScoreBias:
    """A bias of the scores as a function of `Pairs`, a size, and the parameters it learns.

    `function(pairs, size, *learned)` returns values to add to the scores, or a boolean mask, broadcasting
    to `[b h q k]`. `learned(embed_dim, num_heads, size)` returns the parameters by name, at their start.
    `from_queries` names what the function computes from the queries themselves, if anything.
    """

    function: Callable[..., Tensor]
    learned: Callable[[int, int, int | None], Mapping[str, Learned]] = nothing_learned
    from_queries: str | None = None


class GlobalAttention(StackedAttention):
    """Attend to every visible key: softmax(q kᵀ/√e + bias) v, where the bias is that of a kind, or none.

    All run in fused attention: PyTorch's, or on a CPU in training our own.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        score_bias: ScoreBias | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout, bias=bias)
        self.score_bias = score_bias
        self.from_queries = None if score_bias is None else score_bias.from_queries
        self.size = size
        learned = {} if score_bias is None else score_bias.learned(embed_dim, num_heads, size)
        self._learned = tuple(learned)
        for name, value in learned.items():
            setattr(self, name, value)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights, zero biases, and what the bias of the scores learns."""
        super().reset_parameters()
        if self.score_bias is None:
            return
        for name, fresh in self.score_bias.learned(self.embed_dim, self.num_heads, self.size).items():
            own = getattr(self, name)
            if isinstance(fresh, nn.Module):
                own.load_state_dict(fresh.state_dict())
            else:
                own.copy_(fresh)

    def _attend(self, queries: Queries, keys: Keys, visibility: Visibility) -> Float[Tensor, "b q d"]:
        (q,) = self.query_heads(queries)
        k, v = self.key_heads(keys)
        bias = self._bias(queries, keys, visibility)
        return self._merge_heads(plain_attention(q, k, v, visibility, bias, dropout_p=self._active_dropout()))

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, _ = self.key_heads(keys)
        scores = functional.scores(q, k)
        joined = _join(self._bias(queries, keys, visibility), visibility, q, k)
        if joined is None or not joined.is_floating_point():
            return Maps(functional.masked_softmax(scores, joined))
        return Maps(functional.masked_softmax(scores + joined, joined.isfinite()))

    def _bias(self, queries: Tensor, keys: Tensor, visibility: Visibility) -> Tensor | None:
        if self.score_bias is None:
            return None
        pairs = Pairs(queries, keys.shape[1], visibility.attn_mask)
        bias = self.score_bias.function(pairs, self.size, *(getattr(self, name) for name in self._learned))
        return bias.to(queries.dtype) if bias.is_floating_point() else bias


def plain_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    v: Float[Tensor, "b h k w"],
    visibility: Visibility,
    bias: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    scale: float | None = None,
    own_kernels: bool = True,
) -> Float[Tensor, "b h q w"]:
    """Attend to what `visibility` shows; `bias` is one more bias or mask.

    Training on a CPU runs in our kernels, the rest in PyTorch's fused attention; without `own_kernels` all
    does, with the bits of models that use it.
    """
    needs_torch = bias is not None and bias.requires_grad and dropout_p == 0
    if own_kernels and not needs_torch and _trains_on_a_cpu(q, k, v, dropout_p):
        mask, added = visibility.attn_mask, visibility.attn_bias
        if bias is not None and bias.is_floating_point():
            added = bias if added is None else bias + added
        elif bias is not None:
            mask = bias if mask is None else bias & mask
        return ops.interval_attention(
            q, k, v, attn_mask=mask, attn_bias=added, is_causal=visibility.is_causal, scale=scale,
            dropout_p=dropout_p,
        )  # fmt: skip
    # PyTorch's own causal mask is faster than an explicit one
    plain = visibility.attn_mask is None and visibility.attn_bias is None and bias is None
    mask = None if plain else _join(bias, visibility, q, k)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout_p, is_causal=plain and visibility.is_causal, scale=scale
    )


def _trains_on_a_cpu(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> bool:
    if not q.is_cpu:
        return False
    # whatever runs has the same masks: checkpointing computes a pass without gradients, then with them
    if dropout_p > 0:
        return True
    if cpu.is_observed() or not torch.is_grad_enabled():
        return False
    served = q.dtype in (torch.float32, torch.bfloat16) and build.ready()
    return served and any(x.requires_grad for x in (q, k, v))


def plain_weights(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    visibility: Visibility,
    bias: Float[Tensor, "..."] | None = None,
    *,
    scale: float | None = None,
) -> Float[Tensor, "b h q k"]:
    """Return the weights of `plain_attention`, without dropout."""
    seen = visibility.visible(q, k)
    scores = functional.scores(q, k, scale, mask=seen)
    return functional.masked_softmax(visibility.biased(scores if bias is None else scores + bias), seen)


def _join(bias: Tensor | None, visibility: Visibility, q: Tensor, k: Tensor) -> Tensor | None:
    """Join a bias (or a mask) with what is visible, as `scaled_dot_product_attention` takes it."""
    visible = visibility.visible(q, k)
    if visibility.attn_bias is not None:
        added = visibility.attn_bias.to(q.dtype)
        if bias is None:
            bias = added
        else:
            bias = bias + added if bias.is_floating_point() else added.masked_fill(~bias, float("-inf"))
    if bias is None or visible is None:
        return visible if bias is None else bias
    if not bias.is_floating_point():
        return bias & visible
    return bias.masked_fill(~visible, float("-inf"))
