"""AttentionTrace: what the attentions of a model did with one sentence, by role, layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from diffwindow.checks import Expectation, WindowRule
from diffwindow.files import replacing, to_json, write_atomically
from diffwindow.messages import quote

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float32]
# a head by its number from 0, their mean, or all of them side by side
Head = int | Literal["mean", "all"]
FRAME_HEIGHT = 860
# the maps of a layer
ARRAYS = ("weights", "window", "phi_left", "phi_right")


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one attention, `[heads, queries, keys]` each; a plain attention has weights alone.

    `queries` and `keys` name the sides: two of "source", "target" and "text". `layer` counts from 1, and
    `phrases` says whether the windows are made of phrases.
    """

    role: str
    layer: int
    kind: str
    queries: str
    keys: str
    weights: Array
    window: Array | None = None
    phi_left: Array | None = None
    phi_right: Array | None = None
    segment_size: int = 1
    segment_origin: int = 0
    expectation: Expectation = "paper"
    window_tolerance: float = 0.0
    sinks: int = 0
    window_rule: WindowRule = "soft"
    phrases: bool = False

    def visible(self) -> NDArray[np.bool_]:
        """Return which query sees which key: a decoder's queries do not see the keys after them."""
        queries, keys = self.weights.shape[1:]
        everything = np.ones((queries, keys), dtype=bool)
        return np.tril(everything, keys - queries) if self.role == "Dec" else everything


@dataclass(frozen=True)
class GoldSpan:
    """Where a query should look, as a corpus knows it: from key `first` to key `last`, both included."""

    role: str
    query: int
    first: int
    last: int


@dataclass
class AttentionTrace:
    """The maps of every attention that ran, and the tokens of each side.

    In a notebook a trace shows itself as the page of `to_html`.

    >>> maps = LayerMaps("Enc", 1, "Global", "text", "text", np.full((2, 3, 3), 1 / 3, np.float32))
    >>> trace = AttentionTrace([maps], {"text": ["the", "old", "keys"]})
    >>> trace["Enc", 1].weights.shape
    (2, 3, 3)
    """

    layers: list[LayerMaps] = field(default_factory=list)
    tokens: dict[str, list[str]] = field(default_factory=dict)
    label: str = "model"
    title: str = ""
    gold: GoldSpan | None = None

    def __getitem__(self, place: tuple[str, int]) -> LayerMaps:
        """Return the maps of a role's layer, as `trace["Enc", 1]`."""
        for maps in self.layers:
            if (maps.role, maps.layer) == place:
                return maps
        known = ", ".join(f"{maps.role} {maps.layer}" for maps in self.layers) or "none"
        raise KeyError(f"there is no layer {place[0]} {place[1]}; this trace has {known}")

    @property
    def roles(self) -> list[str]:
        """Return the roles that have layers, in the order in which they ran."""
        return list(dict.fromkeys(maps.role for maps in self.layers))

    def arrays(self) -> dict[str, Array]:
        """Return all arrays by name, as `Enc.1.weights` and `Enc.1.window`: ready for `numpy.savez`."""
        named = {}
        for maps in self.layers:
            for name in ARRAYS:
                if (array := getattr(maps, name)) is not None:
                    named[f"{maps.role}.{maps.layer}.{name}"] = array
        return named

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as plain data for JSON: the tokens of each side, and the maps of each layer."""
        layers = []
        for maps in self.layers:
            arrays = {name: x.tolist() for name in ARRAYS if (x := getattr(maps, name)) is not None}
            named = {name: getattr(maps, name) for name in ("role", "layer", "kind", "queries", "keys")}
            layers.append(named | arrays)
        return {
            "attention": self.label,
            "title": self.title,
            "tokens": tokens_by_side(self),
            "gold": None if self.gold is None else asdict(self.gold),
            "layers": layers,
        }

    def save(self, path: str | Path) -> None:
        """Write the numbers: `.npz` has `arrays` and the tokens as `tokens.SIDE`, `.json` has `to_dict`."""
        path = Path(path)
        ending = path.suffix.lower()
        if ending == ".json":
            write_atomically(path, f"{to_json(self.to_dict())}\n".encode(), follow_link=True)
        elif ending == ".npz":
            tokens = {f"tokens.{side}": np.array(names) for side, names in tokens_by_side(self).items()}
            arrays: dict[str, Any] = self.arrays() | tokens
            with replacing(path, follow_link=True) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)
        else:
            raise ValueError(f"{path} does not end in .npz or .json")

    def with_tokens(self, tokens: Sequence[str] | Mapping[str, Sequence[str]]) -> AttentionTrace:
        """Return the trace with names for its tokens: one list, or a list for each side."""
        sides = sizes(self.layers)
        given = tokens if isinstance(tokens, Mapping) else dict.fromkeys(sides, tokens)
        for side, labels in given.items():
            if isinstance(labels, str) or not isinstance(labels, Sequence):
                raise TypeError(f"tokens={quote(labels)} is not a list; pass a name for each position")
            if side not in sides:
                raise ValueError(f"there is no side {side!r}; this trace has {', '.join(map(repr, sides))}")
            if len(labels) != sides[side]:
                raise ValueError(f"{len(labels)} tokens for the {sides[side]} positions of {side!r}")
        return replace(self, tokens={**self.tokens, **{side: list(map(str, given[side])) for side in given}})

    def figure(
        self,
        role: str | None = None,
        layer: int | None = None,
        head: Head = "mean",
        *,
        against: AttentionTrace | None = None,
    ) -> Figure:
        """Draw a layer for a paper: its window, its attention, and that of another model side by side.

        Without `role` and `layer`, the first layer with a window is drawn. `head` is a number from 0, "mean",
        or "all" for a grid with a row per head.
        """
        from diffwindow.view.panels import trace_figure

        return trace_figure(self, role, layer, head, against=against)

    def draw(
        self,
        path: str | Path,
        role: str | None = None,
        layer: int | None = None,
        head: Head = "mean",
        *,
        against: AttentionTrace | None = None,
    ) -> None:
        """Write the figure, or the page if the name ends in .html; the file is whole or not there."""
        from diffwindow.view.figures import save_figure

        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            write_atomically(path, self.to_html(against=against).encode("utf-8"), follow_link=True)
        else:
            save_figure(self.figure(role, layer, head, against=against), path)

    def to_html(
        self,
        *,
        against: AttentionTrace | None = None,
        checkpoints: Mapping[str, AttentionTrace] | None = None,
        rules: Mapping[WindowRule, AttentionTrace] | None = None,
    ) -> str:
        """Return a page that needs no network: the maps, and a window that follows the query.

        `checkpoints` are traces of the same sentence, by name and oldest first, for a slider. `rules` are
        traces of the same model with other windows at test time, for a switch.
        """
        from diffwindow.view.page import page_html
        from diffwindow.view.payload import page_data

        return page_html(page_data(self, against=against, checkpoints=checkpoints, rules=rules))

    def _repr_html_(self) -> str:
        """Show the page in a frame that can run its script and nothing else."""
        page = escape(self.to_html(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{page}" title="Windows" '
            f'style="width:100%;height:{FRAME_HEIGHT}px;border:0" loading="lazy"></iframe>'
        )


def tokens_by_side(trace: AttentionTrace) -> dict[str, list[str]]:
    """Return the tokens of each side; where they have no names, their positions."""
    return {
        side: trace.tokens.get(side, [str(place) for place in range(size)])
        for side, size in sizes(trace.layers).items()
    }


def sizes(layers: Sequence[LayerMaps]) -> dict[str, int]:
    """Return the number of tokens of each side; raise if two layers disagree."""
    found: dict[str, int] = {}
    for maps in layers:
        for side, size in zip((maps.queries, maps.keys), maps.weights.shape[1:], strict=True):
            if found.setdefault(side, size) != size:
                raise ValueError(f"{side!r} has {found[side]} tokens in one layer and {size} in another")
    return found
