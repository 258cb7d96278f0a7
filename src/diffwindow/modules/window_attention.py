"""WindowAttention: multi-head attention that learns, for every query and head, where to look."""

from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffwindow import functional, ops
from diffwindow.functional import EXPECTATIONS, Expectation
from diffwindow.modules.masks import first_visible_key, visible_keys

Window = Literal["additive", "multiplicative"]
WINDOWS: tuple[str, ...] = get_args(Window)


class WindowAttention(nn.Module):
    """Attend through a learned window, with the call of `torch.nn.MultiheadAttention`.

    One stacked projection holds, in this order, the queries (global, left, right, local), the keys (the
    same) and the values; a multiplicative window has no local pair. It is initialised Xavier-uniform as a
    whole, so pointers start near uniform; biases start at zero.

    >>> attention = WindowAttention(16, num_heads=2, window="multiplicative", segment_size=5)
    >>> x = torch.randn(3, 7, 16)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([3, 7, 16]), torch.Size([3, 7, 7]))
    """

    # torch.nn.TransformerEncoderLayer and TransformerEncoder ask these whether they may skip the call of
    # this module and run a fused plain attention on its weights: they may not.
    _qkv_same_embed_dim = False
    in_proj_bias = None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        window: Window = "additive",
        segment_size: int = 1,
        expectation: Expectation = "paper",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        impl: ops.Impl = "auto",
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        ops.check_choice("window", window, WINDOWS)
        ops.check_choice("expectation", expectation, EXPECTATIONS)
        ops.check_choice("impl", impl, ops.IMPLS)
        ops.check_segment_size(segment_size)
        ops.check_dropout("dropout", dropout)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.window = window
        self.segment_size = segment_size
        self.expectation: Expectation = expectation
        self.dropout = dropout
        self.batch_first = batch_first
        self.impl: ops.Impl = impl
        # Queries and keys of the score, the two boundaries and, if additive, the local score.
        self.num_scores = 4 if window == "additive" else 3
        self.in_proj = nn.Linear(embed_dim, (2 * self.num_scores + 1) * embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights, the stacked projection as one matrix, and zero biases."""
        for projection in (self.in_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        value: Float[Tensor, "..."],
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."] | None]:
        """Attend; the arguments and results are those of `torch.nn.MultiheadAttention`.

        As there, masks are True where a query may *not* look (or a float mask of 0 and -inf), and
        `need_weights=False` is the fast way. The weights are those used, for a multiplicative window the
        product with the window. `is_causal=True` needs no `attn_mask` beside it.
        """
        batched = query.dim() == 3
        query, key, value = self._as_batches(query, key, value)
        queries, keys = self._project(query, key, value)
        visible, origin = self._masks(query, key, key_padding_mask, attn_mask, batched=batched)
        weights = None
        if need_weights:
            maps = self.maps(queries, keys, attn_mask=visible, is_causal=is_causal, segment_origin=origin)
            output = self._merge_heads(functional.attend(maps.weights, self._split_heads(keys)[-1]))
            weights = maps.weights.mean(1) if average_attn_weights else maps.weights
            weights = weights if batched else weights.squeeze(0)
        else:
            output = self.attend(queries, keys, attn_mask=visible, is_causal=is_causal, segment_origin=origin)
        if not batched:
            return output.squeeze(0), weights
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def inspect(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> ops.WindowMaps:
        """Give the weights, the window and both boundary distributions, each `[b h q k]`.

        >>> attention, x = WindowAttention(16, num_heads=2), torch.randn(3, 7, 16)
        >>> attention.inspect(x, x).window.shape
        torch.Size([3, 2, 7, 7])
        """
        batched = query.dim() == 3
        query, key, _ = self._as_batches(query, key, key)
        visible, origin = self._masks(query, key, key_padding_mask, attn_mask, batched=batched)
        queries, keys = self._project(query, key, key)
        return self.maps(queries, keys, attn_mask=visible, is_causal=is_causal, segment_origin=origin)

    def project_queries(self, query: Float[Tensor, "b q d"]) -> Float[Tensor, "b q stack"]:
        """Project queries for the scores, stacked along the width."""
        return self._project_rows(query, 0, self.num_scores)

    def project_keys(
        self, key: Float[Tensor, "b k d"], value: Float[Tensor, "b k d"] | None = None
    ) -> Float[Tensor, "b k stack"]:
        """Project keys and values, stacked along the width: what a decoder caches. Values default to keys."""
        if value is None or value is key:
            return self._project_rows(key, self.num_scores, 2 * self.num_scores + 1)
        keys = self._project_rows(key, self.num_scores, 2 * self.num_scores)
        values = self._project_rows(value, 2 * self.num_scores, 2 * self.num_scores + 1)
        return torch.cat([keys, values], dim=-1)

    def project_self(
        self, x: Float[Tensor, "b n d"]
    ) -> tuple[Float[Tensor, "b n queries"], Float[Tensor, "b n keys"]]:
        """Project a sequence that attends to itself, queries and keys, in one matrix product."""
        width = self.num_scores * self.embed_dim
        queries, keys = self.in_proj(x).split([width, width + self.embed_dim], dim=-1)
        return queries, keys

    def attend(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        *,
        attn_mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        segment_origin: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b q d"]:
        """Attend with projected queries and keys; `attn_mask` is as in `ops`, True where a query may look."""
        q, q_left, q_right, *q_local = self._split_heads(queries)
        k, k_left, k_right, *k_local, v = self._split_heads(keys)
        operation = (
            partial(ops.additive_window_attention, q, k, v, q_local[0], k_local[0])
            if self.window == "additive"
            else partial(ops.multiplicative_window_attention, q, k, v)
        )
        heads = operation(
            ops.Boundaries(q_left, k_left, q_right, k_right),
            attn_mask=attn_mask,
            is_causal=is_causal,
            segment_size=self.segment_size,
            segment_origin=segment_origin,
            expectation=self.expectation,
            dropout_p=self.dropout if self.training else 0.0,
            impl=self.impl,
        )
        return self._merge_heads(heads)

    def maps(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        *,
        attn_mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        segment_origin: Int[Tensor, " b"] | None = None,
    ) -> ops.WindowMaps:
        """Give what `attend` does with these arguments to each pair of query and key."""
        q, q_left, q_right, *q_local = self._split_heads(queries)
        k, k_left, k_right, *k_local, _ = self._split_heads(keys)
        return ops.window_maps(
            q,
            k,
            ops.Boundaries(q_left, k_left, q_right, k_right),
            (q_local[0], k_local[0]) if self.window == "additive" else None,
            attn_mask=attn_mask,
            is_causal=is_causal,
            segment_size=self.segment_size,
            segment_origin=segment_origin,
            expectation=self.expectation,
            dropout_p=self.dropout if self.training else 0.0,
        )

    @property
    def in_proj_weight(self) -> "_NoFastPath":
        """Keep torch's encoder, which looks for this name, off its fused path."""
        return _NoFastPath()

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, window={self.window!r}, "
            f"segment_size={self.segment_size}, expectation={self.expectation!r}, dropout={self.dropout}, "
            f"batch_first={self.batch_first}, impl={self.impl!r}"
        )

    def _as_batches(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Check the shapes and give all three as `[b n d]`, keeping which of them are one tensor."""
        layout = "[batch, length, embed_dim]" if self.batch_first else "[length, batch, embed_dim]"
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != self.embed_dim:
                raise ValueError(
                    f"{name} has shape {list(x.shape)}, not {layout} with embed_dim={self.embed_dim} "
                    "(or all three without the batch)"
                )

        def as_batch(x: Tensor) -> Tensor:
            if x.dim() == 2:
                return x.unsqueeze(0)
            return x if self.batch_first else x.transpose(0, 1)

        batch_query = as_batch(query)
        batch_key = batch_query if key is query else as_batch(key)
        batch_value = batch_key if value is key else as_batch(value)
        if batch_key.shape[0] != batch_query.shape[0] or batch_value.shape != batch_key.shape:
            raise ValueError(
                f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} "
                f"do not agree in batch and length; the layout is {layout}"
            )
        return batch_query, batch_key, batch_value

    def _masks(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        *,
        batched: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Read the call's masks: which keys are visible, and where the segments start."""
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        shape = (query.shape[0], self.num_heads, query.shape[1], key.shape[1])
        return visible_keys(key_padding_mask, attn_mask, shape), first_visible_key(key_padding_mask)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if query is key and key is value:
            return self.project_self(query)
        return self.project_queries(query), self.project_keys(key, value)

    def _project_rows(self, x: Tensor, first: int, last: int) -> Tensor:
        """Apply the blocks `first` to `last` of the stacked projection."""
        rows = slice(first * self.embed_dim, last * self.embed_dim)
        bias = self.in_proj.bias
        return F.linear(x, self.in_proj.weight[rows], None if bias is None else bias[rows])

    def _split_heads(self, stack: Float[Tensor, "b n stack"]) -> tuple[Tensor, ...]:
        """View a stack of projections as `[b h n e]` tensors, without a copy."""
        batch, length, width = stack.shape
        blocks, head_dim = width // self.embed_dim, self.embed_dim // self.num_heads
        heads = stack.view(batch, length, blocks, self.num_heads, head_dim)
        return heads.permute(2, 0, 3, 1, 4).unbind()

    def _merge_heads(self, heads: Float[Tensor, "b h q e"]) -> Float[Tensor, "b q d"]:
        output: Tensor = self.out_proj(heads.transpose(1, 2).flatten(2))
        return output


class _NoFastPath:
    """Stands for a weight in torch's checks, which leave alone whatever overrides `__torch_function__`."""

    def __torch_function__(self, *_: object) -> object:
        return NotImplemented
