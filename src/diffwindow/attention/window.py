"""WindowAttention: multi-head attention that learns, for every query and head, where to look."""

from typing import Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import functional, ops
from diffwindow.attention.base import Keys, Queries, Rotary, StackedAttention, check_heads
from diffwindow.attention.phrases import PhraseGates
from diffwindow.attention.visibility import (
    EVERYTHING,
    Visibility,
    close_padding,
    first_visible_key,
    hidden,
    read_masks,
)
from diffwindow.attention.window_module import WindowModule
from diffwindow.checks import (
    Options,
    WindowOptions,
    check_bool,
    check_device_name,
    check_float_type,
    check_floats,
    check_not_traced,
    check_one_structure,
    check_positive,
    check_tensor,
    check_window_options,
    read_options,
    show_options,
)
from diffwindow.kernels import few_rows
from diffwindow.messages import check_choice
from diffwindow.soft_window import Maps

Window = Literal["additive", "multiplicative"]
WINDOWS: tuple[str, ...] = get_args(Window)
# where the phrases come from that windows are made of
Phrases = Literal["given", "learned"]
PHRASES: tuple[str, ...] = get_args(Phrases)


class WindowAttention(StackedAttention, WindowModule):
    """Attend through a learned window, with the call of `torch.nn.MultiheadAttention`.

    Unlike there, `batch_first` is True by default: in a layer of `torch.nn`, give it the layer's own.

    One stacked projection holds, in this order, the queries (global, left, right, local), the keys (the
    same) and the values; a multiplicative window has no local pair. It is initialised Xavier-uniform as a
    whole, so pointers start near uniform; biases start at zero.

    Args:
        embed_dim: The width d of queries, keys, values and outputs, `[b n d]`.
        num_heads: The number of heads, which divides the width.
        dropout: The share of weights to drop in training.
        bias: Add a bias to the projections.
        window: "additive", softmax(s + o ⊙ M), or "multiplicative", softmax(s) ⊙ M.
        segment_size: As in `window_attention`; so are `expectation`, `normalize`, `sinks` and
            `window_tolerance`. Segments and sinks count from the first real key.
        window_rule: As in `window_attention`, for inference: another than "soft" raises in training mode.
        boundary_dim: The head width of the pointers; that of the other heads unless a smaller one is given.
        gate: Give a multiplicative window one learned g per head: the weights are
            softmax(s) ⊙ (1 + g(M − 1)), with g = 0 at the start, so that a window added to a trained model
            changes nothing at first. The paper has no gate.
        relative_size: Add q_i·a_{j−i}/√e to the scores, with the distance clipped at this size (the keys'
            part of Shaw et al. 2018), for self-attention.
        phrases: "given" makes windows of whole phrases, whose ends each call gives as `gates`; "learned" has
            `PhraseGates` make them from the keys, with a level per head, unless a call gives them.
        rotary: Rotate queries and keys by their positions in self-attention, where the queries are the last
            of the keys: those of the "scores" (local ones too), of the "pointers" or "both".
        batch_first: Take and return `[b n d]`, not `[n b d]`.
        impl: As in `window_attention`.
        device: Where the weights are made.
        dtype: The type of the weights.

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
    pointer_pairs = (1, 2)

    @show_options(WindowOptions)
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        window: Window = "additive",
        boundary_dim: int | None = None,
        gate: bool = False,
        relative_size: int | None = None,
        phrases: Phrases | None = None,
        rotary: Rotary | None = None,
        batch_first: bool = True,
        impl: ops.Impl = "auto",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        check_choice("window", window, WINDOWS)
        check_choice("impl", impl, ops.IMPLS)
        chosen = read_options(options, WindowAttention, WindowOptions)
        check_window_options(chosen, additive=window == "additive")
        check_bool("gate", gate)
        if phrases is not None:
            check_choice("phrases", phrases, PHRASES)
        check_one_structure(chosen.segment_size, phrases=phrases is not None)
        check_bool("batch_first", batch_first)
        if dtype is not None:
            check_float_type("dtype", dtype)
        if device is not None:
            check_device_name(device)
        check_heads(embed_dim, num_heads)
        head_dim = embed_dim // num_heads
        boundary_dim = head_dim if boundary_dim is None else boundary_dim
        check_positive("boundary_dim", boundary_dim)
        if boundary_dim > head_dim:
            raise ValueError(f"boundary_dim={boundary_dim} is above the width of a head, {head_dim}")
        if relative_size is not None:
            check_positive("relative_size", relative_size)
        # Queries and keys of the score, the two boundaries and, if additive, the local score.
        local = (head_dim,) if window == "additive" else ()
        score_dims = (head_dim, boundary_dim, boundary_dim, *local)
        super().__init__(embed_dim, num_heads, score_dims=score_dims, dropout=dropout, bias=bias)
        if gate and window != "multiplicative":
            raise ValueError(f'gate=True is for window="multiplicative", not {window!r}')
        self.gate = nn.Parameter(torch.zeros(num_heads)) if gate else None
        self.relative_size = relative_size
        self.from_queries = None if relative_size is None else "relative positions"
        rows = None if relative_size is None else torch.empty(2 * relative_size + 1, head_dim)
        self.key_table = None if rows is None else nn.Parameter(nn.init.xavier_uniform_(rows))
        self.phrases = phrases
        self.phrase_gates = PhraseGates(embed_dim, num_heads) if phrases == "learned" else None
        self.window = window
        self.kind = "AW" if window == "additive" else "MW"
        self.options = chosen
        self.boundary_dim = boundary_dim
        self.batch_first = batch_first
        self.impl = impl
        if rotary is not None:
            self.use_rotary(rotary)
        self.to(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights, zero biases and gate."""
        super().reset_parameters()
        if self.gate is not None:
            nn.init.zeros_(self.gate)
        if self.key_table is not None:
            nn.init.xavier_uniform_(self.key_table)
        if self.phrase_gates is not None:
            self.phrase_gates.reset_parameters()

    def local_query_rows(self) -> slice:
        """Return the rows of the stacked projection that make the queries of the local score, if any."""
        width = self.embed_dim if self.window == "additive" else 0
        return slice(self._query_width - width, self._query_width)

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
        *,
        gates: Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."] | None]:
        """Attend; the arguments and results are those of `torch.nn.MultiheadAttention`.

        As there, masks are True where a query may *not* look, or floats that are added to the scores, of
        which -9,000 and less hides; `need_weights=False` is faster. The weights are those used, for a
        multiplicative window the product with the window. `is_causal=True` needs no `attn_mask` beside it.
        `gates` has, for windows of phrases, the probability that a phrase ends between a key and the next,
        `[b k−1]`; beside padding one always ends.
        """
        check_bool("need_weights", need_weights)
        check_bool("average_attn_weights", average_attn_weights)
        query, key, value, batched = self._as_batches(query, key, value)
        visibility = self._read_visibility(
            query, key, key_padding_mask, attn_mask, gates, is_causal=is_causal, batched=batched
        )
        queries, keys = self._project(query, key, value, key_padding_mask)
        weights = None
        if need_weights:
            self._call_watchers(queries, keys, visibility)
            # dropout commutes with a multiplicative window
            used = F.dropout(self.maps(queries, keys, visibility).weights, self._active_dropout())
            v = self.key_heads(keys)[-1]
            seen = visibility.visible(self.query_heads(queries)[0], v)
            output = self._merge_heads(functional.attend(used, v, mask=seen))
            weights = (used.mean(1) if average_attn_weights else used).to(query.dtype)
            weights = weights if batched else weights.squeeze(0)
        else:
            output = self.attend(queries, keys, visibility)
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
        gates: Float[Tensor, "..."] | None = None,
    ) -> Maps:
        """Return the weights without dropout and the window with its boundaries, each `[b h q k]`.

        >>> attention, x = WindowAttention(16, num_heads=2), torch.randn(3, 7, 16)
        >>> attention.inspect(x, x).window.values.shape
        torch.Size([3, 2, 7, 7])
        """
        query, key, _, batched = self._as_batches(query, key, key)
        visibility = self._read_visibility(
            query, key, key_padding_mask, attn_mask, gates, is_causal=is_causal, batched=batched
        )
        return self.maps(*self._project(query, key, key, key_padding_mask), visibility)

    def _attend(self, queries: Queries, keys: Keys, visibility: Visibility) -> Float[Tensor, "b q d"]:
        q, k, v, boundaries, local = self.split_heads(queries, keys)
        options = self._call_options(visibility, q, keys, dropout_p=self._active_dropout())
        return self._merge_heads(self._window_heads(q, k, v, boundaries, local, options))

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return what `attend` does with these arguments to each pair of query and key, without dropout."""
        q, k, _, boundaries, local = self.split_heads(queries, keys)
        return self._window_maps(q, k, boundaries, local, self._call_options(visibility, q, keys))

    def split_heads(
        self, queries: Queries, keys: Keys
    ) -> tuple[Tensor, Tensor, Tensor, ops.Boundaries, ops.Local | None]:
        """View projected queries and keys as the arguments of `ops.window_attention`: q, k, v, and so on."""
        q, q_left, q_right, *q_local = self.query_heads(queries)
        k, k_left, k_right, *k_local, v = self.key_heads(keys)
        local = (q_local[0], k_local[0]) if self.window == "additive" else None
        return q, k, v, ops.Boundaries(q_left, k_left, q_right, k_right), local

    def _call_options(
        self, visibility: Visibility, q: Tensor, keys: Tensor, dropout_p: float = 0.0
    ) -> Options:
        """Join the window's options with what is visible, and the scores of relative positions, if any."""
        if self.key_table is not None:
            distances = functional.distance_scores(q, self.key_table, keys.shape[1])
            visibility = visibility._replace(attn_bias=visibility.biased(distances))
        visibility = visibility._replace(gates=self.gates_of(visibility))
        return self.options._replace(dropout_p=dropout_p, **visibility._asdict())

    def gates_of(self, visibility: Visibility) -> Float[Tensor, "..."] | None:
        """Return the gates of the phrases that windows are made of; None if they are not made of any."""
        if self.phrases is None:
            return None
        if visibility.gates is None:
            raise ValueError(
                "windows of given phrases need gates, [batch, keys − 1]: the probability that a phrase ends "
                "between a key and the next; corpora of trees have them, other texts do not"
            )
        return visibility.gates

    @property
    def in_proj_weight(self) -> "_NoFastPath":
        """Keep torch's encoder, which looks for this name, off its fused path."""
        return _NoFastPath()

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        names = WindowOptions.__annotations__
        options = ", ".join(f"{name}={getattr(self.options, name)!r}" for name in names)
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, window={self.window!r}, {options}, "
            f"boundary_dim={self.boundary_dim}, gate={self.gate is not None}, "
            f"relative_size={self.relative_size}, phrases={self.phrases!r}, "
            f"rotary={self.rotary!r}, dropout={self.dropout}, batch_first={self.batch_first}, "
            f"impl={self.impl!r}"
        )

    def _as_batches(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Return all three as `[b n d]`, keeping which of them are one tensor, and whether they were batched.

        Raise unless they fit each other and the weights.
        """
        check_not_traced()
        layout = "[batch, length, embed_dim]" if self.batch_first else "[length, batch, embed_dim]"
        for name, x in (("query", query), ("key", key), ("value", value)):
            check_floats(name, x)
            self._check_fits_weights(name, x)
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
        return batch_query, batch_key, batch_value, query.dim() == 3

    def _check_fits_weights(self, name: str, x: Tensor) -> None:
        # hooks, quantized layers and adapters may convert it
        if not few_rows.is_plain(self.in_proj):
            return
        weight, device = self.in_proj.weight, x.device
        if device != weight.device:
            raise ValueError(
                f"{name} is on {device} and the weights are on {weight.device}; move them to one device"
            )
        if x.dtype != weight.dtype and not (
            torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
        ):
            raise TypeError(
                f"{name} is {x.dtype} and the weights are {weight.dtype}; pass {name}.to({weight.dtype})"
            )

    def _read_visibility(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        gates: Tensor | None,
        *,
        is_causal: bool,
        batched: bool,
    ) -> Visibility:
        check_bool("is_causal", is_causal)
        if key_padding_mask is not None and not batched:
            check_tensor("key_padding_mask", key_padding_mask)
            key_padding_mask = key_padding_mask.unsqueeze(0)
        if gates is not None and self.phrases is None:
            raise ValueError('gates are for windows of phrases; make the attention with phrases="given"')
        if gates is None and self.phrase_gates is not None:
            # NaN in padding would pass into gradients
            real = (
                key if key_padding_mask is None else key.masked_fill(hidden(key_padding_mask)[..., None], 0.0)
            )
            gates = self.phrase_gates(self.phrase_gates.distances(real))
        elif gates is not None and not batched:
            check_tensor("gates", gates)
            gates = gates.unsqueeze(0)
        self._check_places(query.shape[1], key.shape[1], is_causal=is_causal)
        shape = (query.shape[0], self.num_heads, query.shape[1], key.shape[1])
        visible, bias = read_masks(key_padding_mask, attn_mask, shape, query.device)
        if gates is not None and key_padding_mask is not None:
            gates = close_padding(gates, ~hidden(key_padding_mask))
        return Visibility(visible, is_causal, first_visible_key(key_padding_mask), bias, gates)

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if query is key and key is value:
            return self.project_self(query)
        if key_padding_mask is not None:
            # NaN in padding would pass into the gradient of the projection
            padding = hidden(key_padding_mask)[..., None]
            cleared = key.masked_fill(padding, 0.0)
            key, value = cleared, cleared if value is key else value.masked_fill(padding, 0.0)
        queries, keys = self.project_queries(query), self.project_keys(key, value)
        start = key.shape[1] - query.shape[1]
        return self._rotate(queries, self._query_dims, start), self._rotate(keys, self._key_dims, 0)

    def _check_places(self, num_queries: int, num_keys: int, *, is_causal: bool) -> None:
        """Raise where positions would place the queries otherwise than they are: as the last of the keys."""
        if self.rotary is None and self.key_table is None:
            return
        name = "relative" if self.rotary is None else "rotary"
        if num_queries > num_keys:
            raise ValueError(
                f"{num_queries} queries for {num_keys} keys: {name} positions are for self-attention, "
                "where the queries are the last of the keys"
            )
        if is_causal and num_queries != num_keys:
            raise ValueError(
                f"is_causal=True shows query i the keys up to i, but {name} positions take {num_queries} "
                f"queries as the last of {num_keys} keys; pass an attn_mask instead"
            )


class _NoFastPath:
    """Stands for a weight in torch's checks, which leave alone whatever overrides `__torch_function__`."""

    def __torch_function__(self, *_: object) -> object:
        return NotImplemented


def window_attentions(model: nn.Module) -> list[WindowAttention]:
    """List the window attentions of a model."""
    return [module for module in model.modules() if isinstance(module, WindowAttention)]
