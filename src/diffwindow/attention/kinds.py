"""The table of attention kinds, and the attention of one layer as the notation describes it.

To add a kind, add its function and its entry to `baselines.py`.
"""

from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import Annotated, Any, NamedTuple

from diffwindow.attention.base import ROLES, SELF_ROLES, Kind, Role, StackedAttention
from diffwindow.attention.baselines import BASELINES
from diffwindow.attention.plain import GlobalAttention
from diffwindow.attention.window import PHRASES, Phrases, Window, WindowAttention
from diffwindow.checks import (
    EXPECTATIONS,
    Expectation,
    Options,
    check_bool,
    check_positive,
    check_segment_size,
    check_sinks,
)
from diffwindow.messages import check_choice


class Option(NamedTuple):
    """An option of the notation: a field of `Attention`, which is an argument of the module too.

    `written` is its value if it is written without a number; None means that it needs one. `label` is how
    pictures show it, if they do.
    """

    name: str
    meaning: str
    written: Any = None
    takes_number: bool = False
    roles: tuple[Role, ...] = ROLES
    label: str | None = None
    # those of the field, which OPTIONS fills in
    argument: str = ""
    default: Any = None


WINDOWED: dict[str, Window] = {"AW": "additive", "MW": "multiplicative"}
KINDS = {
    "Global": Kind("the plain Transformer's attention", GlobalAttention),
    "AW": Kind(
        "additive window",
        partial(WindowAttention, window=WINDOWED["AW"]),
        options=("Seg", "Phr", "Tree", "Exact", "Ordered", "Dim", "Dist"),
    ),
    "MW": Kind(
        "multiplicative window",
        partial(WindowAttention, window=WINDOWED["MW"]),
        options=("Seg", "Phr", "Tree", "Exact", "Ordered", "Norm", "Dim", "Sink", "Gate", "Dist"),
    ),
    **BASELINES,
}


@dataclass(frozen=True)
class Attention:
    """The attention of one layer: a kind and its options, in the order in which the notation writes them."""

    kind: str = "Global"
    size: int | None = None
    _: KW_ONLY
    segment_size: Annotated[
        int, Option("Seg", "windows by segment", 5, takes_number=True, label="segments of {}")
    ] = 1
    phrases: Annotated[
        Phrases | None,
        Option("Phr", "windows of phrases that are given", "given", roles=("Enc", "Cr"), label="phrases"),
        Option(
            "Tree",
            "windows of phrases that are learned",
            "learned",
            roles=SELF_ROLES,
            label="learned phrases",
        ),
    ] = None
    expectation: Annotated[
        Expectation,
        Option("Exact", "windows without the double count", "exact", label="exact"),
        Option("Ordered", "windows whose boundaries must be in order (Eq. 6)", "ordered", label="ordered"),
    ] = "paper"
    normalize: Annotated[
        bool,
        Option("Norm", "a multiplicative window's weights divided by their sum", True, label="normalised"),
    ] = False
    boundary_dim: Annotated[
        int | None, Option("Dim", "the head width of a window's boundaries", takes_number=True)
    ] = None
    sinks: Annotated[
        int,
        Option("Sink", "first keys that are always visible", takes_number=True, label="{} sinks"),
    ] = 0
    gate: Annotated[
        bool,
        Option(
            "Gate",
            "a gate per head that starts at 0, for adding a multiplicative window to a trained model",
            True,
        ),
    ] = False
    relative_size: Annotated[
        int | None,
        Option(
            "Dist",
            "relative positions in the scores, clipped at a distance",
            16,
            takes_number=True,
            roles=SELF_ROLES,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise unless each option is one; whether its kind has it, and the sizes, the module checks."""
        check_choice("kind", self.kind, tuple(KINDS))
        check_segment_size(self.segment_size)
        if self.phrases is not None:
            check_choice("phrases", self.phrases, PHRASES)
        check_choice("expectation", self.expectation, EXPECTATIONS)
        check_sinks(self.sinks)
        check_bool("gate", self.gate)
        check_bool("normalize", self.normalize)
        for name in ("size", "boundary_dim", "relative_size"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    def chosen(self) -> dict[Option, Any]:
        """Return the options that differ from their defaults, with their values."""
        values = {one: getattr(self, one.argument) for one in OPTIONS.values()}
        return {
            one: value
            for one, value in values.items()
            if value != one.default and (one.takes_number or value == one.written)
        }

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the module for the options that the kind has."""
        names = [OPTIONS[name].argument for name in KINDS[self.kind].options]
        return {name: getattr(self, name) for name in names}

    def window_options(self, window_tolerance: float) -> Options:
        """Return the options of a window of this kind."""
        shared = {name: value for name, value in self.arguments().items() if name in Options._fields}
        return Options(window_tolerance=window_tolerance, **shared)

    def __str__(self) -> str:
        size = "" if self.size in (None, KINDS[self.kind].size) else f"={self.size}"
        options = "".join(
            f",{one.name}" if value == one.written else f",{one.name}={value}"
            for one, value in self.chosen().items()
        )
        return f"{self.kind}{size}{options}"


OPTIONS: dict[str, Option] = {
    option.name: option._replace(argument=one.name, default=one.default)
    for one in fields(Attention)
    for option in getattr(one.type, "__metadata__", ())
}
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

    >>> build_attention(Attention("AW", segment_size=5), 16, 2).options.segment_size
    5
    """
    kind = KINDS[attention.kind]
    arguments = attention.arguments()
    if kind.size is not None:
        arguments["size"] = kind.size if attention.size is None else attention.size
    if attention.kind in WINDOWED:
        arguments["window_tolerance"] = window_tolerance
    module = kind.build(embed_dim, num_heads, dropout=dropout, **arguments)
    module.kind = attention.kind
    return module
