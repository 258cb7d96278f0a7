"""From the notation's kinds of attention to their modules."""

from collections.abc import Callable

from diffwindow.attention.baselines import (
    BandAttention,
    BellAttention,
    GaussianAttention,
    LocalnessAttention,
    RelativeAttention,
    SpanAttention,
)
from diffwindow.attention.plain_attention import GlobalAttention
from diffwindow.attention.stacked_attention import StackedAttention
from diffwindow.attention.window_attention import Window, WindowAttention
from diffwindow.notation import Attention

WINDOWED: dict[str, Window] = {"AW": "additive", "MW": "multiplicative"}
SIZED: dict[str, Callable[..., StackedAttention]] = {
    "Rel": RelativeAttention,
    "Gauss": GaussianAttention,
    "Band": BandAttention,
    "Bell": BellAttention,
    "Span": SpanAttention,
}
PLAIN: dict[str, Callable[..., StackedAttention]] = {"Global": GlobalAttention, "Loc": LocalnessAttention}


def build_attention(
    attention: Attention, embed_dim: int, num_heads: int, *, dropout: float = 0.0
) -> StackedAttention:
    """Build the module of an attention of the notation.

    >>> build_attention(Attention("AW", segment_size=5), 16, 2).segment_size
    5
    """
    if attention.kind in WINDOWED:
        return WindowAttention(
            embed_dim,
            num_heads,
            window=WINDOWED[attention.kind],
            segment_size=attention.segment_size,
            expectation=attention.expectation,
            boundary_dim=attention.boundary_dim,
            gate=attention.gate,
            dropout=dropout,
        )
    if attention.size is None:
        return PLAIN[attention.kind](embed_dim, num_heads, dropout=dropout)
    return SIZED[attention.kind](embed_dim, num_heads, size=attention.size, dropout=dropout)
