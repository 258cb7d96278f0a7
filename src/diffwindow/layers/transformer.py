"""The layers of a Transformer: attention and feed-forward in residual blocks, with any attention anywhere."""

from dataclasses import dataclass, replace
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow.attention.key_cache import KeyCache
from diffwindow.attention.kinds import build_attention
from diffwindow.attention.stacked_attention import Init, Rotary
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.kernels import few_rows
from diffwindow.notation import Attention

Norm = Literal["post", "pre"]


@dataclass(frozen=True)
class LayerOptions:
    """What all layers of a model share."""

    embed_dim: int
    num_heads: int
    ffn_dim: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm: Norm = "post"
    init: Init = "stacked"
    rotary: Rotary | None = None
    window_tolerance: float = 0.0


class Residual(nn.Module):
    """Put a branch beside the identity: norm(x + f(x)) in the paper ("post"), x + f(norm(x)) in "pre"."""

    def __init__(self, options: LayerOptions) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(options.embed_dim)
        self.dropout = options.dropout
        self.norm_first = options.norm == "pre"

    def enter(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d"]:
        """Return what the branch gets."""
        return self.norm(x) if self.norm_first else x

    def leave(
        self, x: Float[Tensor, "*lead d"], branch: Float[Tensor, "*lead d"]
    ) -> Float[Tensor, "*lead d"]:
        """Join the branch's result with what came in."""
        joined = x + F.dropout(branch, self.dropout, training=self.training)
        return joined if self.norm_first else self.norm(joined)


class AttentionBlock(Residual):
    """Attend in a residual block: to the sequence itself, or to the projected keys of another."""

    def __init__(self, options: LayerOptions, attention: Attention) -> None:
        super().__init__(options)
        self.attention = build_attention(
            attention,
            options.embed_dim,
            options.num_heads,
            dropout=options.attention_dropout,
            window_tolerance=options.window_tolerance,
        )
        if options.init != "stacked":
            self.attention.init_projections(options.init)
        if options.rotary is not None:
            self.attention.use_rotary(options.rotary)

    def forward(
        self,
        x: Float[Tensor, "b q d"],
        visibility: Visibility,
        *,
        memory: Float[Tensor, "b k stack"] | None = None,
        cache: KeyCache | None = None,
    ) -> Float[Tensor, "b q d"]:
        """Attend to `memory`, which is projected, or to `x` and the tokens before it in `cache`."""
        queries, keys = self._project(x, memory, start=0 if cache is None else cache.length)
        if cache is not None:
            keys = cache.append(keys)
        return self.leave(x, self.attention.attend(queries, keys, visibility))

    def _project(self, x: Tensor, memory: Tensor | None, *, start: int = 0) -> tuple[Tensor, Tensor]:
        entered = self.enter(x)
        if memory is None:
            return self.attention.project_self(entered, start=start)
        return self.attention.project_queries(entered), memory


class FeedForward(Residual):
    """Transform each token in a residual block: W₂ relu(W₁ x + b₁) + b₂."""

    def __init__(self, options: LayerOptions) -> None:
        super().__init__(options)
        self.activation_dropout = options.activation_dropout
        self.inner = nn.Linear(options.embed_dim, options.ffn_dim)
        self.outer = nn.Linear(options.ffn_dim, options.embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights, zero biases."""
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d"]:
        """Transform each token."""
        hidden = F.relu(few_rows.apply(self.inner, self.enter(x)), inplace=True)
        hidden = F.dropout(hidden, self.activation_dropout, training=self.training)
        return self.leave(x, few_rows.apply(self.outer, hidden))


class TransformerLayer(nn.Module):
    """A layer of an encoder, of a decoder (with cross-attention) or of a language model."""

    def __init__(
        self, options: LayerOptions, self_attention: Attention, cross_attention: Attention | None = None
    ) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(options, self_attention)
        # queries and keys of two sequences have no distance to rotate by
        cross = replace(options, rotary=None)
        self.cross_attention = None if cross_attention is None else AttentionBlock(cross, cross_attention)
        self.feed_forward = FeedForward(options)

    def forward(
        self,
        x: Float[Tensor, "rows q d"],
        visibility: Visibility,
        *,
        memory: Float[Tensor, "b k stack"] | None = None,
        memory_visibility: Visibility = EVERYTHING,
        cache: KeyCache | None = None,
    ) -> Float[Tensor, "rows q d"]:
        """Run the layer; the rows of `x` may be several hypotheses of each sequence of `memory`."""
        x = self.self_attention(x, visibility, cache=cache)
        if self.cross_attention is not None:
            assert memory is not None
            # All hypotheses of a sentence are queries of its one memory, which is never repeated.
            queries = x.view(memory.shape[0], -1, x.shape[-1])
            x = self.cross_attention(queries, memory_visibility, memory=memory).view_as(x)
        output: Tensor = self.feed_forward(x)
        return output
