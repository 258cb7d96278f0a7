"""The parts of a Transformer: token embedding, attention and feed-forward blocks, and the stacks of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffwindow.attention.base import Init, Rotary
from diffwindow.attention.cache import KeyCache
from diffwindow.attention.kinds import build_attention
from diffwindow.attention.phrases import PhraseGates
from diffwindow.attention.visibility import EVERYTHING, Visibility, sinusoids
from diffwindow.kernels import few_rows
from diffwindow.kernels.int8 import NOT_TRAINED, Int8Linear
from diffwindow.models import residual
from diffwindow.models.decoding_state import DecodingState
from diffwindow.models.loss import TokenLoss, token_loss
from diffwindow.notation import Attention
from diffwindow.special_tokens import PAD

# rotary positions are the attention's: tokens are embedded without any
Positions = Literal["sinusoidal", "rotary", "none"]


class TokenEmbedding(nn.Module):
    """Embed tokens as √d times their rows, and give logits with the same matrix.

    Rows start normal with deviation d^-½, so that what enters the first layer has unit variance; padding
    starts at zero. `word_starts` tells which tokens begin a word, if phrases of the input are learned.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        positions: Positions = "sinusoidal",
        *,
        word_starts: bool = False,
    ) -> None:
        super().__init__()
        self.word_starts: Tensor | None
        self.register_buffer("word_starts", torch.ones(vocab_size) if word_starts else None)
        self.vocab_size, self.embed_dim = vocab_size, embed_dim
        self.positions = positions
        self.weight = nn.Parameter(torch.empty(vocab_size, embed_dim))
        # takes the place of the weight in a model of eight bits
        self.rounded: Int8Linear | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the rows, the one of padding with zeros."""
        if self.weight.is_meta:
            # nothing to initialise, and torch would import torch._dynamo to do it, which takes seconds
            return
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        with torch.no_grad():
            self.weight[PAD].zero_()

    def forward(
        self, tokens: Int[Tensor, "*lead"], positions: Int[Tensor, "*lead"] | None = None
    ) -> Float[Tensor, "*lead d"]:
        """Embed tokens and add the sinusoids, if any, of positions, which count along the last dimension."""
        try:
            rows = self._rows(tokens) * math.sqrt(self.embed_dim)
        except IndexError:
            raise ValueError(
                f"the ids of the tokens are from {tokens.min()} to {tokens.max()}, but the vocabulary has "
                f"{self.vocab_size}; encode the text with the model's tokenizer"
            ) from None
        if self.positions != "sinusoidal":
            return rows
        if positions is None:
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
        return rows + sinusoids(positions, self.embed_dim).to(rows.dtype)

    def word_gates(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b gaps"] | None:
        """Return gates of 0 inside of words and 1 before the tokens that begin one, if those are known."""
        return None if self.word_starts is None else self.word_starts[tokens[:, 1:]]

    def _rows(self, tokens: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead d"]:
        if self.rounded is not None:
            return self.rounded.rows(tokens)
        return F.embedding(tokens, self.weight, padding_idx=PAD)

    def logits(self, hidden: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Score every token of the vocabulary."""
        if self.rounded is not None:
            output: Tensor = self.rounded(hidden)
            return output
        return few_rows.linear(hidden, self.weight)

    def loss(
        self, hidden: Float[Tensor, "*lead d"], labels: Int[Tensor, "*lead"], *, label_smoothing: float = 0.0
    ) -> TokenLoss:
        """Score labels against the logits, without holding these."""
        if self.rounded is not None:
            raise ValueError(NOT_TRAINED)
        return token_loss(hidden, self.weight, labels, label_smoothing=label_smoothing)

    def round_weight(self) -> None:
        """Keep the matrix in eight bits from now on."""
        self.rounded = Int8Linear(self.weight)
        del self.weight

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        return f"{self.vocab_size}, {self.embed_dim}, positions={self.positions!r}"


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
        norm = None if self.norm_first else self.norm
        return residual.join(x, branch, norm, self.dropout, training=self.training)


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
        entered = self.enter(x)
        if memory is not None:
            queries, keys = self.attention.project_queries(entered), memory
        elif cache is None:
            queries, keys = self.attention.project_self(entered)
        else:
            queries, keys = self.attention.project_self(entered, start=cache.length)
            keys = cache.append(keys)
        return self.leave(x, self.attention.attend(queries, keys, visibility))


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
        hidden = few_rows.apply(self.inner, self.enter(x), relu=True)
        hidden = residual.dropout(hidden, self.activation_dropout, training=self.training)
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


class TransformerStack(nn.Module):
    """Layers one above the other; "pre" normalisation ends with a norm, the paper's "post" does not.

    If phrases are learned, `phrases` makes the gates of all layers from what enters the first.
    """

    def __init__(
        self,
        options: LayerOptions,
        self_attentions: Sequence[Attention],
        cross_attentions: Sequence[Attention] | None = None,
    ) -> None:
        super().__init__()
        crosses: Sequence[Attention | None] = cross_attentions or [None] * len(self_attentions)
        # the layers that the stack gives gates to
        self.learned = [i for i, attention in enumerate(self_attentions) if attention.phrases == "learned"]
        self.layers = nn.ModuleList(
            TransformerLayer(
                options, replace(attention, phrases="given") if index in self.learned else attention, cross
            )
            for index, (attention, cross) in enumerate(zip(self_attentions, crosses, strict=True))
        )
        self.phrases = (
            PhraseGates(options.embed_dim, len(self.learned) * options.num_heads) if self.learned else None
        )
        self.norm = nn.LayerNorm(options.embed_dim) if options.norm == "pre" else None
        self.dropout = options.dropout

    def forward(
        self,
        x: Float[Tensor, "rows q d"],
        visibility: Visibility,
        *,
        memory: Sequence[Float[Tensor, "b k _"]] = (),
        memory_visibility: Visibility = EVERYTHING,
        caches: Sequence[KeyCache] = (),
    ) -> Float[Tensor, "rows q d"]:
        """Run all layers, each with its projected `memory` and its cache where there are any."""
        gates = self._learned_gates(x, visibility, caches)
        x = residual.dropout(x, self.dropout, training=self.training)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                visibility._replace(gates=gates[index]) if index in gates else visibility,
                memory=memory[index] if memory else None,
                memory_visibility=memory_visibility,
                cache=caches[index] if caches else None,
            )
        return x if self.norm is None else self.norm(x)

    def _learned_gates(
        self, x: Float[Tensor, "rows q d"], visibility: Visibility, caches: Sequence[KeyCache]
    ) -> dict[int, Float[Tensor, "rows h gaps"]]:
        """Return the gates of each layer that has learned phrases; gates that are given bound them."""
        if self.phrases is None:
            return {}
        gates = self.phrases(self.phrases.distances(caches[-1].append(x) if caches else x))
        if visibility.gates is not None:
            gates = gates * visibility.gates[:, None]
        return dict(zip(self.learned, gates.chunk(len(self.learned), dim=1), strict=True))

    @property
    def num_caches(self) -> int:
        """Count what decoding keeps of a prefix: the keys of each layer and, for phrases, what entered."""
        return len(self.layers) + (self.phrases is not None)

    def step(self, x: Float[Tensor, "s w d"], state: DecodingState) -> Float[Tensor, "s w d"]:
        """Run the next token of each hypothesis, and keep its keys in `state`."""
        rows = x.view(-1, 1, x.shape[-1])
        output: Tensor = self(
            rows,
            state.visibility(),
            memory=state.memory,
            memory_visibility=state.memory_visibility,
            caches=state.caches,
        )
        return output.view_as(x)

    def project_memory(self, encoded: Float[Tensor, "b k d"]) -> list[Float[Tensor, "b k _"]]:
        """Project the output of an encoder to the keys of each layer's cross-attention."""
        return [block.attention.project_keys(encoded) for block in self.cross_blocks()]

    def self_blocks(self) -> list[AttentionBlock]:
        """Return the self-attention of each layer."""
        return [cast(TransformerLayer, layer).self_attention for layer in self.layers]

    def cross_blocks(self) -> list[AttentionBlock]:
        """Return the cross-attention of each layer that has one."""
        blocks = [cast(TransformerLayer, layer).cross_attention for layer in self.layers]
        return [block for block in blocks if block is not None]
