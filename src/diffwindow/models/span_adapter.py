"""SpanAdapter: a fitted window beside the attention of a foreign model, which reads the last keys alone."""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from diffwindow import ops
from diffwindow.attention.visibility import first_true
from diffwindow.kernels import span_query
from diffwindow.soft_window import Maps

Spans = Literal["query", "query-mlp", "head"]
Per = Literal["head", "kv_group"]
Rotation = tuple[Float[Tensor, "#b q r"], Float[Tensor, "#b q r"]]
# Units of the layer that sees the queries of all heads, with spans="query-mlp".
HIDDEN = 64


class SpanSettings(BaseModel):
    """What the windows of a fitted model are: see `diffwindow.hf.fit_windows`.

    A window has one of the spans `choices`, or reaches back to the first key. `block` is the context that the
    spans were fitted in.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    spans: Spans
    per: Per
    sinks: Annotated[int, Field(ge=0)]
    choices: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)]
    block: Annotated[int, Field(ge=1)]

    def __str__(self) -> str:
        return f"Span(spans={self.spans}, per={self.per}, sinks={self.sinks})"


class SpanAdapter(nn.Module):
    """A window that ends at the query: the child of an attention module, which calls it to attend.

    The query sees its last `span` keys, itself among them, and the first `sinks` keys. The span is the
    likeliest of the settings' choices, or everything; their logits are linear in the query before it is
    rotated and in the logarithm of its position. With `spans="head"` they are constant. There is one span
    for each head, or for each group of heads that share keys. Nothing here is trained by gradients.

    >>> settings = SpanSettings(spans="head", per="head", sinks=1, choices=(2,), block=8)
    >>> window = SpanAdapter(settings, num_heads=2, num_groups=2, head_dim=4)
    >>> _ = window.bias.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> q = torch.zeros(1, 2, 5, 4)
    >>> window.maps(q, q, is_causal=True).weights[0, 0]
    tensor([[1.0000, 0.0000, 0.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000, 0.0000, 0.0000],
            [0.3333, 0.3333, 0.3333, 0.0000, 0.0000],
            [0.3333, 0.0000, 0.3333, 0.3333, 0.0000],
            [0.3333, 0.0000, 0.0000, 0.3333, 0.3333]])
    """

    def __init__(self, settings: SpanSettings, num_heads: int, num_groups: int, head_dim: int) -> None:
        super().__init__()
        self.attention = settings
        self.num_heads, self.num_groups, self.head_dim = num_heads, num_groups, head_dim
        self.impl: ops.Impl = "auto"
        # what the attention module rotated the queries of the last call by, set by a hook
        self.rotation: Rotation | None = None
        self.width: Float[Tensor, ""] | None = None
        # the share of visible keys in each unit's windows in the last call of several queries
        self.share: Float[Tensor, " u"] | None = None
        units = num_heads if settings.per == "head" else num_groups
        features, choices = num_heads * head_dim // units, len(settings.choices) + 1
        self.bias = frozen(units, choices)
        if settings.spans != "head":
            self.position = frozen(units, choices)
            self.weight = frozen(units, features, choices)
        if settings.spans == "query-mlp":
            self.hidden = frozen(num_heads * head_dim, HIDDEN)
            self.hidden_bias = frozen(HIDDEN)
            self.out = frozen(units, HIDDEN, choices)

    def reset_parameters(self) -> None:
        """Start with windows over everything."""
        for parameter in self.parameters():
            parameter.data.zero_()
        self.bias.data[:, -1] = 1.0

    @property
    def units(self) -> int:
        """Count the windows of the layer."""
        return self.bias.shape[0]

    def forward(
        self,
        q: Float[Tensor, "b h q e"],
        k: Float[Tensor, "b g k e"],
        v: Float[Tensor, "b g k w"],
        *,
        attn_mask: Bool[Tensor, "..."] | None = None,
        attn_bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        dropout_p: float = 0.0,
    ) -> Float[Tensor, "b h q w"]:
        """Attend to the keys in the windows; the options are those of `ops.interval_attention`."""
        # under autocast rotary queries and keys are wider than the values
        q, k = q.to(v.dtype), k.to(v.dtype)
        start, end, origin, told = self.intervals(q, k.shape[2], attn_mask)
        return ops.interval_attention(
            q,
            k,
            v,
            start,
            end,
            sinks=self.attention.sinks,
            origin=origin,
            # kernels are faster without a mask
            attn_mask=None if told else attn_mask,
            attn_bias=attn_bias,
            is_causal=is_causal,
            scale=scale,
            dropout_p=dropout_p,
            impl=self.impl,
        )

    def maps(
        self,
        q: Float[Tensor, "b h q e"],
        k: Float[Tensor, "b g k e"],
        *,
        attn_mask: Bool[Tensor, "..."] | None = None,
        attn_bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        dropout_p: float = 0.0,
    ) -> Maps:
        """Return the weight of each pair of query and key; there is no soft window."""
        keys = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
        weights = self.forward(
            q, k, keys, attn_mask=attn_mask, attn_bias=attn_bias, is_causal=is_causal, scale=scale
        )  # fmt: skip
        return Maps(weights, None)

    def intervals(
        self, q: Float[Tensor, "b h q e"], num_keys: int, mask: Bool[Tensor, "..."] | None
    ) -> span_query.Places:
        """Return the first and the last key of each window, and the first real key of each sequence."""
        if self.impl in ("auto", "cpu") and (placed := self._place_one(q, num_keys, mask)) is not None:
            return placed
        index, origin = place_queries(q.shape[0], q.shape[2], num_keys, mask, q.device)
        position = index if origin is None else (index - origin[:, None]).clamp(min=0)
        span = self.spans(q, position)
        if q.shape[2] > 1:
            self._measure(span, position)
        first = torch.zeros_like(index[:, :1]) if origin is None else origin[:, None]
        start = torch.maximum(index[:, None] - span + 1, first[:, None])
        start = start.repeat_interleave(self.num_heads // self.units, dim=1)
        return span_query.Places(start, index[:, None], origin, told=mask is None)

    def _place_one(
        self, q: Float[Tensor, "b h q e"], num_keys: int, mask: Bool[Tensor, "..."] | None
    ) -> span_query.Places | None:
        """Return the windows of a step of decoding, if the kernel serves it."""
        chosen = self.attention
        return span_query.place(
            q, self.rotation, mask, num_keys, self._parameters,
            choices=chosen.choices, sinks=chosen.sinks, block=chosen.block,
        )  # fmt: skip

    def spans(self, q: Float[Tensor, "b h q e"], position: Int[Tensor, "b q"]) -> Int[Tensor, "b u q"]:
        """Return how many keys back, itself included, each query sees."""
        lengths = torch.tensor([*self.attention.choices, torch.iinfo(torch.int32).max], device=q.device)
        if self.attention.spans == "head":
            return lengths[self.bias.argmax(-1)][None, :, None].expand(q.shape[0], -1, q.shape[2])
        features = q.float() if self.rotation is None else unrotate(q.float(), *self.rotation)
        return lengths[self.logits(features, position).argmax(-1)]

    def logits(self, q: Float[Tensor, "b h q e"], position: Int[Tensor, "b q"]) -> Float[Tensor, "b u q c"]:
        """Score the choices for queries that are not rotated."""
        logits = group_queries(q, self.units) @ self.weight.float()
        place = log_position(position, self.attention.block)
        logits = (
            logits + place[:, None, :, None] * self.position.float()[:, None] + self.bias.float()[:, None]
        )
        if self.attention.spans == "query-mlp":
            seen = group_queries(q, 1) @ self.hidden.float() + self.hidden_bias.float()
            logits = logits + nn.functional.relu(seen) @ self.out.float()
        return logits

    def mean_width(self) -> float | None:
        """Return the mean number of keys in the windows of the last call; None before the first.

        Later calls with one query, as in decoding, do not count.
        """
        return None if self.width is None or self.width.is_meta else float(self.width)

    def static_spans(self) -> list[int | None]:
        """Return the span of each window of `spans="head"`; None for one that sees everything."""
        choices = (*self.attention.choices, None)
        return [choices[choice] for choice in self.bias.argmax(-1).tolist()]

    @torch.no_grad()
    def _measure(self, span: Int[Tensor, "b u q"], position: Int[Tensor, "b q"]) -> None:
        visible = position[:, None] + 1
        seen = torch.minimum(span + self.attention.sinks, visible)
        self.width = seen.float().mean()
        self.share = (seen / visible).mean((0, 2))

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return f"{self.attention}, num_heads={self.num_heads}"


def place_queries(
    batch: int, queries: int, num_keys: int, mask: Bool[Tensor, "..."] | None, device: torch.device
) -> tuple[Int[Tensor, "b q"], Int[Tensor, " b"] | None]:
    """Return which key belongs to each query of a causal attention, and the first real key per sequence.

    A mask tells both: it may hide padding before, and room of a static cache behind.

    >>> place_queries(1, 2, 5, None, torch.device("cpu"))
    (tensor([[3, 4]]), None)
    >>> mask = torch.tensor([[False, True, True, False], [False, True, True, True]])
    >>> place_queries(1, 2, 4, mask, torch.device("cpu"))
    (tensor([[2, 3]]), tensor([1]))
    """
    if mask is None:
        index = torch.arange(num_keys - queries, num_keys, device=device)
        return index.expand(batch, -1), None
    rows = mask.reshape(-1, *mask.shape[-2:]).expand(batch, queries, num_keys)
    index = num_keys - 1 - rows.flip(-1).int().argmax(-1)
    return index, first_true(rows.any(1))


def unrotate(
    q: Float[Tensor, "b h q e"], cos: Float[Tensor, "#b q r"], sin: Float[Tensor, "#b q r"]
) -> Float[Tensor, "b h q e"]:
    """Undo the rotation of queries by their positions, q cos + rotate_half(q) sin; r may be less than e.

    >>> q, angle = torch.randn(1, 1, 3, 4), torch.randn(1, 3, 2).repeat(1, 1, 2)
    >>> halves = torch.cat([-q[..., 2:], q[..., :2]], dim=-1)
    >>> rotated = q * angle.cos() + halves * angle.sin()
    >>> bool(torch.allclose(unrotate(rotated, angle.cos(), angle.sin()), q, atol=1e-6))
    True
    """
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    turned, rest = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    back = turned * cos + torch.cat([second, -first], dim=-1) * sin
    # rotations of long contexts are scaled as well
    return torch.cat([back / (cos.square() + sin.square()), rest], dim=-1)


def group_queries(q: Float[Tensor, "b h q e"], units: int) -> Float[Tensor, "b u q f"]:
    """Join the queries of the heads that share a window.

    >>> group_queries(torch.arange(4.0).view(1, 4, 1, 1), 2)
    tensor([[[[0., 1.]],
    <BLANKLINE>
             [[2., 3.]]]])
    """
    grouped: Tensor = q.unflatten(1, (units, -1))
    return grouped.transpose(2, 3).flatten(3)


def log_position(position: Int[Tensor, "..."], block: int) -> Float[Tensor, "..."]:
    """Return the logarithm of positions, which ends at what windows were fitted on."""
    logarithm: Tensor = torch.log1p(position.clamp(max=block - 1).float())
    return logarithm


def frozen(*shape: int) -> nn.Parameter:
    """Return a parameter that no optimiser changes."""
    return nn.Parameter(torch.zeros(*shape), requires_grad=False)
