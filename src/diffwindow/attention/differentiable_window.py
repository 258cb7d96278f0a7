"""DifferentiableWindow: select a window of keys for each query, in attention or anywhere else."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffwindow.attention.base import check_heads
from diffwindow.attention.visibility import first_seen_key, rotate
from diffwindow.checks import (
    EXPECTATIONS,
    Boundaries,
    Expectation,
    check_bool,
    check_device_name,
    check_float_type,
    check_floats,
    check_mask,
    check_not_traced,
    check_positive,
    check_segment_size,
    check_tolerance,
)
from diffwindow.messages import check_choice
from diffwindow.soft_window import SoftWindow, point_window


class DifferentiableWindow(nn.Module):
    """Point at the two ends of a window over the keys, for each query and head (Eq. 7-11).

    It is the paper's component on its own: projections W_L and W_R of queries and keys, two pointers
    φ = softmax(q kᵀ/√e), and the window M between them. It has no values and no scores: what is done with the
    `SoftWindow` that it returns is up to you. Weights start Xavier-uniform, biases at zero.

    Args:
        query_dim: The width of the queries, `[b q query_dim]`.
        key_dim: The width of the keys, `[b k key_dim]`.
        num_heads: The number of windows for each query.
        head_dim: The width e of a pointer's queries and keys; query_dim / num_heads by default.
        segment_size: Let this many keys share their value of M; 1 is a window by token.
        expectation: "paper" counts two boundaries on one key twice (M ≤ 2), "exact" once (M ≤ 1).
        window_tolerance: Set M to 0 where it is below this.
        rotary: "pointers" rotates queries and keys by their positions, where the queries are the last of the
            keys, so that pointers may depend on distances; None does not.
        bias: Add a bias to the projections.
        device: Where the weights are made.
        dtype: The type of the weights.

    >>> select = DifferentiableWindow(query_dim=8, key_dim=6, num_heads=2)
    >>> window = select(torch.randn(3, 4, 8), torch.randn(3, 10, 6))
    >>> window.values.shape, window.width.shape
    (torch.Size([3, 2, 4, 10]), torch.Size([3, 2, 4]))
    >>> window.pool(torch.randn(3, 10, 5)).shape
    torch.Size([3, 2, 4, 5])
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        num_heads: int = 1,
        head_dim: int | None = None,
        *,
        segment_size: int = 1,
        expectation: Expectation = "paper",
        window_tolerance: float = 0.0,
        rotary: Literal["pointers"] | None = None,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("query_dim", query_dim), ("key_dim", key_dim), ("num_heads", num_heads)):
            check_positive(name, value)
        if head_dim is None:
            check_heads(query_dim, num_heads, name="query_dim")
            head_dim = query_dim // num_heads
        check_positive("head_dim", head_dim)
        check_segment_size(segment_size)
        check_choice("expectation", expectation, EXPECTATIONS)
        check_tolerance("window_tolerance", window_tolerance)
        if rotary is not None:
            check_choice("rotary", rotary, ("pointers",))
            if head_dim % 2:
                raise ValueError(f"head_dim={head_dim} is odd; rotary positions need pairs")
        check_bool("bias", bias)
        if dtype is not None:
            check_float_type("dtype", dtype)
        if device is not None:
            check_device_name(device)
        self.query_dim, self.key_dim = query_dim, key_dim
        self.num_heads, self.head_dim = num_heads, head_dim
        self.segment_size = segment_size
        self.expectation = expectation
        self.window_tolerance = window_tolerance
        self.rotary = rotary
        width = 2 * num_heads * head_dim
        # of each the left pointer's first, then the right one's
        self.query_proj = nn.Linear(query_dim, width, bias=bias, device=device, dtype=dtype)
        self.key_proj = nn.Linear(key_dim, width, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights and zero biases."""
        for projection in (self.query_proj, self.key_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Float[Tensor, "b q query_dim"],
        key: Float[Tensor, "b k key_dim"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> SoftWindow:
        """Return the window of each query and head, `[b h q k]`.

        Args:
            query: What selects a window, `[b q query_dim]`.
            key: What it selects from, `[b k key_dim]`.
            mask: Booleans, True where a query may look: `[b k]` for padding, `[b q k]` or `[b h q k]`; any of
                b, h and q may be 1. Segments start at the first key that any query of a sequence sees.
        """
        check_not_traced()
        self._check_inputs(query, key)
        origin = None
        if mask is not None:
            mask = _as_four_dimensional(mask, (query.shape[0], self.num_heads, query.shape[1], key.shape[1]))
            # NaN in padding would pass into the gradient of the projection
            key = key.masked_fill(~mask.flatten(1, 2).any(1)[..., None], 0.0)
            origin = first_seen_key(mask, query.shape[0]) if self.segment_size > 1 else None
        q_left, q_right = self._split(self.query_proj(query), start=key.shape[1] - query.shape[1])
        k_left, k_right = self._split(self.key_proj(key), start=0)
        return point_window(
            Boundaries(q_left, k_left, q_right, k_right),
            mask=mask,
            segment_size=self.segment_size,
            segment_origin=origin,
            expectation=self.expectation,
            window_tolerance=self.window_tolerance,
        )

    def extra_repr(self) -> str:
        """Show the settings in the module's repr."""
        return (
            f"{self.query_dim}, {self.key_dim}, num_heads={self.num_heads}, head_dim={self.head_dim}, "
            f"segment_size={self.segment_size}, expectation={self.expectation!r}, "
            f"window_tolerance={self.window_tolerance}, rotary={self.rotary!r}"
        )

    def _split(self, x: Float[Tensor, "b n width"], start: int) -> tuple[Tensor, Tensor]:
        """View projected queries or keys as `[b h n e]` of each pointer, rotated if they are to be."""
        heads = x.unflatten(-1, (2 * self.num_heads, self.head_dim))
        if self.rotary is not None:
            heads = rotate(heads, start=start)
        left, right = heads.transpose(1, 2).chunk(2, dim=1)
        return left, right

    def _check_inputs(self, query: Tensor, key: Tensor) -> None:
        for name, x, width in (("query", query, self.query_dim), ("key", key, self.key_dim)):
            check_floats(name, x)
            if x.dim() != 3 or x.shape[-1] != width:
                raise ValueError(f"{name} has shape {list(x.shape)}, not [batch, length, {name}_dim={width}]")
        if query.shape[0] != key.shape[0]:
            raise ValueError(
                f"query has a batch of {query.shape[0]} and key one of {key.shape[0]}; pass as many of both"
            )
        if self.rotary is not None and query.shape[1] > key.shape[1]:
            raise ValueError(
                f"{query.shape[1]} queries for {key.shape[1]} keys: rotary positions take the queries as the "
                "last of the keys"
            )


def _as_four_dimensional(
    mask: Bool[Tensor, "..."], shape: tuple[int, int, int, int]
) -> Bool[Tensor, "b2 h2 q2 k"]:
    """View a mask as one that broadcasts to `[b h q k]`."""
    check_mask("mask", mask)
    batch, heads, queries, keys = shape
    if mask.dim() in (2, 3, 4):
        seen = mask[(slice(None), *[None] * (4 - mask.dim()))]
        if all(n in (1, m) for n, m in zip(seen.shape, shape, strict=True)) and seen.shape[3] == keys:
            return seen
    raise ValueError(
        f"mask has shape {list(mask.shape)}, not [{batch}, {keys}], [{batch}, {queries}, {keys}] or "
        f"[{batch}, {heads}, {queries}, {keys}] (batch, heads, queries, keys)"
    )
