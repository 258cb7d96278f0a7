"""WindowAdapter: a window beside the attention of a foreign model, on its projected queries and keys."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffwindow import functional, ops
from diffwindow.attention.kinds import WINDOWED
from diffwindow.attention.plain import plain_attention, plain_weights
from diffwindow.attention.visibility import Visibility, first_true
from diffwindow.attention.window import mix_heads
from diffwindow.checks import check_tolerance
from diffwindow.kernels import cpu
from diffwindow.models.added_windows import WindowInit
from diffwindow.notation import Attention

# How many queries of a call tell how wide windows are.
SAMPLED_QUERIES = 16


class HeadPair(nn.Module):
    """Compare a head's queries and keys anew, q A Bᵀ kᵀ, with A and B of its own per head.

    Heads do not share A and B: each has its own space of queries and keys. `forward` returns q A Bᵀ, to be
    compared with the keys as they are, so that a decoder's cached keys are never projected again.
    """

    def __init__(self, num_heads: int, head_dim: int, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(num_heads, head_dim, width))
        self.key = nn.Parameter(torch.empty(num_heads, head_dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise each head's matrices Xavier-uniform."""
        limit = math.sqrt(6 / (self.query.shape[1] + self.query.shape[2]))
        nn.init.uniform_(self.query, -limit, limit)
        nn.init.uniform_(self.key, -limit, limit)

    def forward(self, q: Float[Tensor, "b h q e"]) -> Float[Tensor, "b h q e"]:
        """Return the queries to compare with the keys."""
        projected: Tensor = q @ self.query.to(q.dtype) @ self.key.to(q.dtype).mT
        # autocast may have narrowed it
        return projected.to(q.dtype)


class WindowAdapter(nn.Module):
    """A window on projected queries and keys: the child of an attention module, which calls it to attend.

    With `init="identity"` it starts as plain attention: the query side of an additive window's local score is
    zero, and the gate of a multiplicative window is closed.

    >>> window = WindowAdapter(Attention("AW"), num_heads=2, head_dim=4)
    >>> q = k = v = torch.randn(1, 2, 5, 4)
    >>> plain = nn.functional.scaled_dot_product_attention(q, k, v)
    >>> bool(torch.allclose(window(q, k, v), plain, atol=1e-6))
    True
    """

    def __init__(
        self,
        attention: Attention,
        num_heads: int,
        head_dim: int,
        *,
        window_tolerance: float = 0.0,
        init: WindowInit = "identity",
    ) -> None:
        super().__init__()
        check_tolerance("window_tolerance", window_tolerance)
        width = attention.boundary_dim or head_dim
        if width > head_dim:
            raise ValueError(f"{attention} has wider boundaries than the heads, which are {head_dim} wide")
        self.attention = attention
        self.num_heads, self.head_dim = num_heads, head_dim
        self.window_tolerance = window_tolerance
        self.init: WindowInit = init
        self.left = HeadPair(num_heads, head_dim, width)
        self.right = HeadPair(num_heads, head_dim, width)
        additive = WINDOWED[attention.kind] == "additive"
        self.local = HeadPair(num_heads, head_dim, head_dim) if additive else None
        self.gate = nn.Parameter(torch.empty(num_heads)) if attention.gate else None
        self.width: Float[Tensor, ""] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: pairs Xavier-uniform, and what keeps the window closed at zero."""
        for pair in (self.left, self.right, self.local):
            if pair is not None:
                pair.reset_parameters()
        # One side alone: with both at zero neither would have a gradient.
        if self.local is not None and self.init == "identity":
            nn.init.zeros_(self.local.query)
        if self.gate is not None:
            nn.init.zeros_(self.gate)

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
        """Attend through the window; the options are those of `ops.window_attention`.

        Keys and values may have fewer heads than the queries: each then serves a group of them. Segments
        start at the first key that any query of a sequence sees.
        """
        if (q.shape[1], q.shape[3]) != (self.num_heads, self.head_dim):
            raise ValueError(
                f"the window is for {self.num_heads} heads of width {self.head_dim}, but the queries have "
                f"{q.shape[1]} of width {q.shape[3]}; give the attention module the right num_heads and "
                "head_dim before windows are added"
            )
        if k.shape[1] != q.shape[1]:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        # under autocast rotary queries and keys are wider than the values
        q, k = q.to(v.dtype), k.to(v.dtype)
        segment_origin = self.segment_origin(attn_mask, q.shape[0])
        # a step of decoding has one query, too few to be worth the time; a transform's tensors end with it
        if (q.shape[2] > 1 or self.width is None) and not cpu.observed():
            self.width = self._mean_width(q, k, attn_mask, segment_origin, scale, is_causal=is_causal)
        local = None if self.local is None else (self.local(q), k)
        windowed = ops.window_attention(
            q,
            k,
            v,
            ops.Boundaries(self.left(q), k, self.right(q), k),
            local,
            normalize=self.attention.normalize,
            attn_mask=attn_mask,
            attn_bias=attn_bias,
            is_causal=is_causal,
            segment_size=self.attention.segment_size,
            segment_origin=segment_origin,
            expectation=self.attention.expectation,
            window_tolerance=self.window_tolerance,
            scale=scale,
            dropout_p=dropout_p,
        )
        if self.gate is None:
            return windowed
        visibility = Visibility(attn_mask, is_causal, attn_bias=attn_bias)
        plain = plain_attention(q, k, v, visibility, dropout_p=dropout_p, scale=scale)
        return mix_heads(plain, windowed, self.gate)

    def segment_origin(self, attn_mask: Bool[Tensor, "..."] | None, batch: int) -> Int[Tensor, " b"] | None:
        """Return the key where the segments of each sequence start; None where that is the first."""
        if attn_mask is None or self.attention.segment_size == 1:
            return None
        return first_true(attn_mask.flatten(1, -2).any(1).expand(batch, -1))

    def maps(
        self,
        q: Float[Tensor, "b h q e"],
        k: Float[Tensor, "b g k e"],
        *,
        attn_mask: Bool[Tensor, "..."] | None = None,
        attn_bias: Float[Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> ops.Maps:
        """Return what `forward` does with each pair of query and key, without dropout."""
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(q.dtype)
        maps = ops.window_maps(
            q,
            k,
            ops.Boundaries(self.left(q), k, self.right(q), k),
            None if self.local is None else (self.local(q), k),
            attn_mask=attn_mask,
            attn_bias=attn_bias,
            is_causal=is_causal,
            segment_size=self.attention.segment_size,
            segment_origin=self.segment_origin(attn_mask, q.shape[0]),
            expectation=self.attention.expectation,
            window_tolerance=self.window_tolerance,
            normalize=self.attention.normalize,
            scale=scale,
        )
        if self.gate is None:
            return maps
        visibility = Visibility(attn_mask, is_causal, attn_bias=attn_bias)
        plain = plain_weights(q, k, visibility, scale=scale)
        return maps._replace(weights=mix_heads(plain, maps.weights, self.gate))

    def mean_width(self) -> float | None:
        """Return the mean number of keys between the boundaries in the last call; None before the first.

        It is the mean over heads and up to 16 queries of the call's first sequence. Later calls with one
        query, as in decoding, do not count.
        """
        return None if self.width is None or self.width.is_meta else float(self.width)

    @torch.no_grad()
    def _mean_width(
        self,
        q: Tensor,
        k: Tensor,
        attn_mask: Tensor | None,
        segment_origin: Tensor | None,
        scale: float | None,
        *,
        is_causal: bool,
    ) -> Tensor:
        step = max(1, math.ceil(q.shape[2] / SAMPLED_QUERIES))
        visible = None
        if attn_mask is not None:
            visible = attn_mask.expand(q.shape[0], -1, q.shape[2], k.shape[2])[:1, :, ::step]
        if is_causal:
            queries = torch.arange(0, q.shape[2], step, device=q.device)[:, None]
            causal = torch.arange(k.shape[2], device=q.device) <= queries
            visible = causal if visible is None else visible & causal
        q, k = q[:1, :, ::step], k[:1]
        phi_left, phi_right = (
            functional.boundary(pair(q), k, mask=visible, scale=scale) for pair in (self.left, self.right)
        )
        window = functional.soft_window(
            phi_left,
            phi_right,
            segment_size=self.attention.segment_size,
            segment_origin=None if segment_origin is None else segment_origin[:1],
            expectation="exact",
            tolerance=self.window_tolerance,
        )
        if visible is not None:
            # segments go on after what a query sees
            window = window * visible
        return window.sum(-1).mean()

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return (
            f"{self.attention}, num_heads={self.num_heads}, window_tolerance={self.window_tolerance}, "
            f"init={self.init!r}"
        )
