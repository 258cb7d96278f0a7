"""WindowAdapter: a window beside the attention of a foreign model, on its projected queries and keys."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import ops
from diffwindow.attention.kinds import WINDOWED
from diffwindow.attention.visibility import first_seen_key
from diffwindow.attention.window_module import WindowModule
from diffwindow.checks import CallOptions, Options, check_window_options
from diffwindow.kernels import cpu
from diffwindow.models.added_windows import WindowInit
from diffwindow.notation import Attention
from diffwindow.soft_window import Maps, point_window

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


class WindowAdapter(WindowModule):
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
        additive = WINDOWED[attention.kind] == "additive"
        self.options = attention.window_options(window_tolerance)
        check_window_options(self.options, additive=additive)
        width = attention.boundary_dim or head_dim
        if width > head_dim:
            raise ValueError(f"{attention} has wider boundaries than the heads, which are {head_dim} wide")
        self.attention = attention
        self.num_heads, self.head_dim = num_heads, head_dim
        self.impl = "auto"
        self.init: WindowInit = init
        self.left = HeadPair(num_heads, head_dim, width)
        self.right = HeadPair(num_heads, head_dim, width)
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
        **call: Unpack[CallOptions],
    ) -> Float[Tensor, "b h q w"]:
        """Attend through the window; the options are those of `ops.window_attention`.

        Keys and values may have fewer heads than the queries: each then serves a group of them. Segments
        and sinks start at the first key that any query of a sequence sees.
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
        options = self.call_options(q.shape[0], **call)
        # a step of decoding has one query, too few to be worth the time; a transform's tensors end with it
        if (q.shape[2] > 1 or self.width is None) and not cpu.is_observed():
            self.width = self._mean_width(q, k, options)
        local = None if self.local is None else (self.local(q), k)
        boundaries = ops.Boundaries(self.left(q), k, self.right(q), k)
        return self._window_heads(q, k, v, boundaries, local, options)

    def call_options(self, batch: int, **call: Unpack[CallOptions]) -> Options:
        """Join the window's options with those of a call, and say where segments and sinks start."""
        options = self.options._replace(**call)
        mask = options.attn_mask
        if mask is None or (options.segment_size == 1 and options.sinks == 0):
            return options
        return options._replace(segment_origin=first_seen_key(mask, batch))

    def maps(
        self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b g k e"], **call: Unpack[CallOptions]
    ) -> Maps:
        """Return what `forward` does with each pair of query and key."""
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(q.dtype)
        local = None if self.local is None else (self.local(q), k)
        boundaries = ops.Boundaries(self.left(q), k, self.right(q), k)
        return self._window_maps(q, k, boundaries, local, self.call_options(q.shape[0], **call))

    def mean_width(self) -> float | None:
        """Return the mean number of keys between the boundaries in the last call; None before the first.

        It is the mean over heads and up to 16 queries of the call's first sequence. Later calls with one
        query, as in decoding, do not count.
        """
        return None if self.width is None or self.width.is_meta else float(self.width)

    @torch.no_grad()
    def _mean_width(self, q: Tensor, k: Tensor, options: Options) -> Tensor:
        step = max(1, math.ceil(q.shape[2] / SAMPLED_QUERIES))
        visible = None
        if options.attn_mask is not None:
            visible = options.attn_mask.expand(q.shape[0], -1, q.shape[2], k.shape[2])[:1, :, ::step]
        if options.is_causal:
            queries = torch.arange(0, q.shape[2], step, device=q.device)[:, None]
            causal = torch.arange(k.shape[2], device=q.device) <= queries
            visible = causal if visible is None else visible & causal
        q, k = q[:1, :, ::step], k[:1]
        window = point_window(
            ops.Boundaries(self.left(q), k, self.right(q), k),
            mask=visible,
            scale=options.scale,
            segment_size=options.segment_size,
            segment_origin=None if options.segment_origin is None else options.segment_origin[:1],
        )
        return window.width.mean()

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return (
            f"{self.attention}, num_heads={self.num_heads}, "
            f"window_tolerance={self.options.window_tolerance}, init={self.init!r}"
        )
