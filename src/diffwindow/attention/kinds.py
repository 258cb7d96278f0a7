"""The table of attention kinds, and the attention of one layer as the notation describes it.

To add a kind, add its function and its entry to `baselines.py`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from diffwindow.attention.base import Kind, StackedAttention
from diffwindow.attention.baselines import BASELINES, CAUSAL_BASELINES
from diffwindow.attention.plain import GlobalAttention
from diffwindow.attention.window import Window, WindowAttention
from diffwindow.checks import EXPECTATIONS, Expectation, check_bool, check_positive, check_segment_size
from diffwindow.messages import check_choice


class Option(NamedTuple):
    """An option of the notation, and the constructor's argument that it sets."""

    meaning: str
    argument: str


OPTIONS = {
    "Seg": Option("windows by segment", "segment_size"),
    "Exact": Option("windows without the double count", "expectation"),
    "Norm": Option("a multiplicative window's weights divided by their sum", "normalize"),
    "Dim": Option("the head width of a window's boundaries", "boundary_dim"),
    "Gate": Option(
        "a gate per head that starts at 0, for adding a multiplicative window to a trained model", "gate"
    ),
    "Dist": Option("relative positions in the scores, clipped at a distance", "relative_size"),
}
WINDOWED: dict[str, Window] = {"AW": "additive", "MW": "multiplicative"}
KINDS = {
    "Global": Kind("the plain Transformer's attention", GlobalAttention),
    "AW": Kind(
        "additive window",
        partial(WindowAttention, window=WINDOWED["AW"]),
        options=("Seg", "Exact", "Dim", "Dist"),
    ),
    "MW": Kind(
        "multiplicative window",
        partial(WindowAttention, window=WINDOWED["MW"]),
        options=("Seg", "Exact", "Norm", "Dim", "Gate", "Dist"),
    ),
    **BASELINES,
    **CAUSAL_BASELINES,
}
# the segment size of `Seg`, and the largest distance of `Dist`, without a number
SEGMENT_SIZE, RELATIVE_SIZE = 5, 16


@dataclass(frozen=True)
class Attention:
    """The attention of one layer: a kind and its options."""

    kind: str = "Global"
    size: int | None = None
    segment_size: int = 1
    expectation: Expectation = "paper"
    boundary_dim: int | None = None
    gate: bool = False
    relative_size: int | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        """Raise unless each option is one; whether its kind has it, and the sizes, the module checks."""
        check_choice("kind", self.kind, tuple(KINDS))
        check_segment_size(self.segment_size)
        check_choice("expectation", self.expectation, EXPECTATIONS)
        check_bool("gate", self.gate)
        check_bool("normalize", self.normalize)
        for name in ("size", "boundary_dim", "relative_size"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    def __str__(self) -> str:
        size = "" if self.size in (None, KINDS[self.kind].size) else f"={self.size}"
        segment = {1: "", SEGMENT_SIZE: ",Seg"}.get(self.segment_size, f",Seg={self.segment_size}")
        exact = ",Exact" if self.expectation == "exact" else ""
        norm = ",Norm" if self.normalize else ""
        narrow = "" if self.boundary_dim is None else f",Dim={self.boundary_dim}"
        gate = ",Gate" if self.gate else ""
        relative = {None: "", RELATIVE_SIZE: ",Dist"}.get(self.relative_size, f",Dist={self.relative_size}")
        return f"{self.kind}{size}{segment}{exact}{norm}{narrow}{gate}{relative}"


GLOBAL = Attention()


def build_attention(
    attention: Attention,
    embed_dim: int,
    num_heads: int,
    *,
    dropout: float = 0.0,
    window_tolerance: float = 0.0,
) -> StackedAttention:
    """Build the module of an attention of the notation; the tolerance is for windows.

    >>> build_attention(Attention("AW", segment_size=5), 16, 2).segment_size
    5
    """
    kind = KINDS[attention.kind]
    arguments = {OPTIONS[name].argument: getattr(attention, OPTIONS[name].argument) for name in kind.options}
    if kind.size is not None:
        arguments["size"] = kind.size if attention.size is None else attention.size
    if attention.kind in WINDOWED:
        arguments["window_tolerance"] = window_tolerance
    module = kind.build(embed_dim, num_heads, dropout=dropout, **arguments)
    module.kind = attention.kind
    return module
