"""Static figures: attention maps, spans of windows, learning curves, and gains with their intervals."""

from __future__ import annotations

import io
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffwindow.extras import require
from diffwindow.files import replacing, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# inches of a token on an axis, at most and at least, and of all tokens of a side beyond that
CELL, SMALLEST, SIDE = 0.24, 0.09, 6.0
# inches of a letter of a title and of a token's name, of a title's line, and of what stands beside the cells
LETTER, SMALL_LETTER, LINE, MARGIN = 0.092, 0.075, 0.2, 1.0
# a warm page-like scale from nothing to all, readable in print and by the colour-blind
COLOURS = "magma_r"
# text in a PDF stays text, with its font in the file; in an SVG it becomes outlines
FONTS: Any = {"pdf.fonttype": 42, "svg.fonttype": "path"}


@dataclass(frozen=True)
class Panel:
    """A matrix of queries by keys, and its title; its highest value has the darkest colour."""

    title: str
    values: NDArray[Any]
    # a query with the first and last key of a stretch to draw a frame around
    outline: tuple[int, int, int] | None = None


def attention_figure(
    rows: Sequence[Sequence[Panel]],
    *,
    queries: Sequence[str],
    keys: Sequence[str],
    names: tuple[str, str] = ("query", "key"),
    title: str = "",
) -> Figure:
    """Draw rows of panels, as many in each: typically a window, our attention, and that of a plain model.

    Tokens are named at the left and below; `names` says what the queries and the keys are.

    >>> panel = Panel("window", np.eye(2))
    >>> len(attention_figure([[panel]], queries=["the", "keys"], keys=["the", "keys"]).axes)
    2
    """
    require("matplotlib")
    import matplotlib

    for panel in (panel for row in rows for panel in row):
        if panel.values.shape != (len(queries), len(keys)):
            raise ValueError(
                f"{panel.title!r} has shape {panel.values.shape}, "
                f"but there are {len(queries)} queries and {len(keys)} keys"
            )
    fonts = choose_fonts([*queries, *keys, title, *(panel.title for row in rows for panel in row)])
    rows = [[replace(panel, title=fonts.write_lines(panel.title)) for panel in row] for row in rows]
    queries, keys = ([fonts.write(token) for token in tokens] for tokens in (queries, keys))
    with matplotlib.rc_context({"font.family": fonts.families}):
        return _grid(rows, queries, keys, names, fonts.write_lines(title))


def _grid(
    rows: Sequence[Sequence[Panel]],
    queries: Sequence[str],
    keys: Sequence[str],
    names: tuple[str, str],
    title: str,
) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    cell = max(SMALLEST, min(CELL, SIDE / max(len(queries), len(keys), 1)))
    panel_width = MARGIN + max(cell * len(keys), 1.0)
    row_label, column_label = (SMALL_LETTER * max(map(len, names), default=0) for names in (queries, keys))
    width = max(len(rows[0]) * panel_width + row_label + MARGIN / 2, 4.0)
    heading = _wrap(title, width)
    titles = [[_wrap(panel.title, panel_width - 0.3) for panel in row] for row in rows]
    lines = sum(max(text.count("\n") + 1 for text in row) for row in titles) + heading.count("\n") + 1
    height = len(rows) * (cell * len(queries) + MARGIN / 3) + LINE * lines + column_label + MARGIN / 2
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.08, hspace=0.04))
    if heading:
        figure.suptitle(heading, fontsize=11, parse_math=False)
    plots = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for place, (axes, panel) in enumerate(zip(plots.flat, (p for row in rows for p in row), strict=True)):
        row, column = divmod(place, len(rows[0]))
        # the tokens are the same in every panel: the queries are named in the first column, the keys below
        query_names = queries if column == 0 else [""] * len(queries)
        key_names = keys if row == len(rows) - 1 else []
        _draw(axes, panel, titles[row][column], query_names, key_names, cell=cell)
        if row == len(rows) - 1:
            axes.set_xlabel(names[1], fontsize=9)
        if column == 0:
            axes.set_ylabel(names[0], fontsize=9)
    return figure


def _wrap(text: str, inches: float) -> str:
    most = max(int(inches / LETTER), 8)
    return "\n".join(textwrap.fill(line, most) for line in text.splitlines())


def _draw(
    axes: Axes, panel: Panel, title: str, queries: Sequence[str], keys: Sequence[str], *, cell: float
) -> None:
    from matplotlib.patches import Rectangle

    highest = float(np.max(panel.values, initial=0.0)) or 1.0
    image = axes.imshow(panel.values, cmap=COLOURS, vmin=0.0, vmax=highest, aspect="equal")
    axes.set_title(title, fontsize=10, parse_math=False)
    size = max(3.5, 8 * cell / CELL)
    # a token may hold dollar signs, which are not mathematics
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(range(len(queries)), queries, fontsize=size, parse_math=False)
    axes.tick_params(length=0)
    axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02).ax.tick_params(labelsize=7)
    if panel.outline is not None:
        query, first, last = panel.outline
        corner, width = (first - 0.5, query - 0.5), last - first + 1
        axes.add_patch(
            Rectangle(corner, width, 1, fill=False, edgecolor="tab:cyan", linewidth=2, clip_on=False)
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all; the ending of the name says the format."""
    formats: Mapping[str, Any] = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in formats:
        raise ValueError(f"{path} does not end in a format of figures: {', '.join(sorted(formats))}")
    import matplotlib

    # drawn in memory: on a full disk matplotlib's own files raise anything
    content = io.BytesIO()
    with matplotlib.rc_context(FONTS):
        # the layout leaves long names of tokens hanging over the edge
        figure.savefig(content, format=kind, dpi=150, bbox_inches="tight")
    write_atomically(path, content.getvalue(), follow_link=True)


class Fonts(NamedTuple):
    """The families of fonts for some texts, and the characters that none of them has."""

    families: list[str]
    missing: set[int]

    def write(self, text: str) -> str:
        """Write the characters that no font has as escapes, control characters among them.

        >>> Fonts([], {5}).write("a\\x05b")
        'a\\\\x05b'
        """
        return "".join(c.encode("unicode_escape").decode() if ord(c) in self.missing else c for c in text)

    def write_lines(self, text: str) -> str:
        """Write each line of a text so."""
        return "\n".join(map(self.write, text.splitlines()))


def choose_fonts(texts: Iterable[str]) -> Fonts:
    """Return the usual fonts, and others for what they lack; warn about letters that no font has."""
    import matplotlib
    from matplotlib import ft2font
    from matplotlib.font_manager import FontProperties, findfont

    characters = set("".join(texts))
    controls = {ord(c) for c in characters if not c.isprintable()}
    usual = list(matplotlib.rcParams["font.family"])
    letters = {ord(c) for c in characters} - controls - _characters(findfont(FontProperties()))
    families, missing = _fonts_with(letters) if letters else ([], letters)
    if missing:
        shown = "".join(map(chr, sorted(missing)[:5])) + ("…" if len(missing) > 5 else "")
        warnings.warn(
            f"no font on this machine has {shown}, so the figure shows escapes; install one that does, such "
            "as Noto Sans CJK",
            stacklevel=3,
        )
    if not hasattr(ft2font, "__libraqm_version__") and any(
        unicodedata.bidirectional(c) in ("R", "AL") for c in characters
    ):
        warnings.warn(
            "this matplotlib draws words that run from right to left in reverse; install 3.11 or later",
            stacklevel=3,
        )
    return Fonts([*usual, *families], missing | controls)


def _fonts_with(missing: set[int]) -> tuple[list[str], set[int]]:
    """Return families that together have these characters, and the characters that no font has."""
    from matplotlib.font_manager import fontManager

    # one font of each family, and none that has a box for every character
    candidates = {font.name: font.fname for font in fontManager.ttflist if "Last Resort" not in font.name}
    known = {name: _characters(path) & missing for name, path in candidates.items()}
    families: list[str] = []
    while best := max(known, key=lambda name: len(known[name] & missing), default=None):
        if not known[best] & missing:
            break
        families.append(best)
        missing = missing - known[best]
    return families, missing


def _characters(font: str) -> set[int]:
    """Return the characters that a font file has; none if it cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return set(get_font(font).get_charmap())
    except (OSError, RuntimeError):
        return set()


# Okabe and Ito's colours, which colour-blind people can tell apart
LAYER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ROW = 0.2


class Span(NamedTuple):
    """Where the windows of a head begin and end, in keys from the query; layer and head count from 1."""

    role: str
    layer: int
    head: int
    start: float
    end: float


def span_figure(rows: Sequence[Span], *, title: str = "") -> Figure:
    """Draw a bar per head from the start to the end of its windows, the query at 0.

    >>> len(span_figure([Span("Enc", 1, 1, -2.0, 0.5)]).axes)
    1
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    roles = list(dict.fromkeys(row.role for row in rows))
    counts = [sum(row.role == role for row in rows) for role in roles]
    figure = Figure(figsize=(6.4, ROW * sum(counts) + 0.9 * len(roles) + 0.6), layout="constrained")
    if title:
        fonts = choose_fonts([title])
        heading = fonts.write_lines(title)
        figure.suptitle(heading, fontsize=11, fontfamily=fonts.families, parse_math=False)
    plots = figure.subplots(len(roles), 1, squeeze=False, height_ratios=counts)[:, 0]
    for axes, role in zip(plots, roles, strict=True):
        heads = [row for row in rows if row.role == role]
        colours = [LAYER_COLOURS[(row.layer - 1) % len(LAYER_COLOURS)] for row in heads]
        places = range(len(heads))
        starts, widths = [row.start for row in heads], [row.end - row.start for row in heads]
        axes.barh(places, widths, left=starts, color=colours, height=0.7)
        axes.use_sticky_edges = False
        # a window of one key has no length to see
        axes.plot(starts, places, linestyle="", marker="|", color="black", markersize=6)
        axes.axvline(0, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(places, [f"{row.layer}.{row.head}" for row in heads], fontsize=8)
        axes.invert_yaxis()
        axes.set_ylabel(f"{role}: layer.head", fontsize=9)
        axes.set_xlabel("keys from the diagonal" if role == "Cr" else "keys from the query", fontsize=9)
    return figure


Record = dict[str, Any]


def series(records: list[Record], kind: str) -> dict[str, tuple[list[int], list[float]]]:
    """Gather each metric's updates and values.

    >>> series([{"update": 2, "kind": "train", "loss": 0.5}], "train")
    {'loss': ([2], [0.5])}
    """
    gathered: dict[str, tuple[list[int], list[float]]] = {}
    for record in records:
        if record["kind"] != kind:
            continue
        for name, value in record.items():
            if name not in ("update", "kind") and isinstance(value, int | float):
                updates, values = gathered.setdefault(name, ([], []))
                updates.append(record["update"])
                values.append(value)
    return gathered


def draw_curves(records: list[Record], path: Path) -> None:
    """Draw what a log holds to a PNG file."""
    from matplotlib.figure import Figure

    train, valid = series(records, "train"), series(records, "valid")
    others = [name for name in valid if name != "loss"]
    panels = ["loss", *others[:3], "lr"]
    figure = Figure(figsize=(4 * len(panels), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, source in (("training", train), ("validation", valid)):
            if name in source:
                axes.plot(*source[name], label=label, marker="." if label == "validation" else None)
        axes.set_title({"lr": "learning rate"}.get(name, name))
        axes.set_xlabel("update")
        if name == "loss" and axes.lines:
            axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


COLUMNS = 3


@dataclass(frozen=True)
class Gain:
    """The gain of one model, half of the width of its interval, and the paper's gain if it has one."""

    label: str
    mean: float
    reach: float
    seeds: int
    paper: float | None = None


@dataclass(frozen=True)
class GainPanel:
    """The gains of several models on one corpus; `axis` says what is gained."""

    title: str
    axis: str
    gains: Sequence[Gain]


@dataclass(frozen=True)
class LearningPanel:
    """Validations by update of several models on one corpus, each a list of (update, value)."""

    title: str
    axis: str
    curves: dict[str, Sequence[tuple[int, float]]]
    log_scale: bool = False


def gain_figure(panels: Sequence[GainPanel], *, same_scale: bool = False) -> Figure:
    """Draw gains with their intervals, the paper's as diamonds; `same_scale` lets panels be compared."""
    most = max(len(panel.gains) for panel in panels)
    figure, all_axes = _panels(panels, height=1.2 + 0.35 * most)
    for axes, panel in zip(all_axes, panels, strict=True):
        for place, gain in enumerate(panel.gains):
            # one seed must not look like several
            fill = "white" if gain.seeds == 1 or not gain.reach else "tab:blue"
            axes.errorbar(gain.mean, place, xerr=gain.reach, fmt="o", mfc=fill, color="tab:blue", capsize=3)
            if gain.paper is not None:
                axes.plot(gain.paper, place, "D", mfc="none", color="tab:orange")
        axes.axvline(0.0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(panel.gains)), [gain.label for gain in panel.gains])
        axes.set_ylim(len(panel.gains) - 0.5, -0.5)
        axes.set_xlabel(panel.axis, fontsize=8)
    if same_scale:
        low, high = zip(*(axes.get_xlim() for axes in all_axes), strict=True)
        for axes in all_axes:
            axes.set_xlim(min(low), max(high))
    marks = ["filled: ours, 95 % interval over seeds and examples", "white: one seed, or no interval"]
    if any(gain.paper is not None for panel in panels for gain in panel.gains):
        marks.append("diamonds: the paper's, on its own data")
    figure.suptitle("; ".join(marks), fontsize=8)
    return figure


def learning_figure(panels: Sequence[LearningPanel]) -> Figure:
    """Draw the validations of each model by update; of a perplexity, without the fall of the first tenth."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    figure, all_axes = _panels(panels, height=3.2)
    for axes, panel in zip(all_axes, panels, strict=True):
        for place, (label, curve) in enumerate(panel.curves.items()):
            if curve:
                updates, values = zip(*curve, strict=True)
                # ten colours, then the same ones dashed
                style = "-" if place < 10 else "--"
                axes.plot(updates, values, style, color=f"C{place}", marker=".", label=label)
        if panel.log_scale:
            # round numbers label the axis
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 5, 10]))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_ylim(top=_without_start(panel.curves.values()))
        axes.set_ylabel(panel.axis, fontsize=8)
        axes.set_xlabel("update", fontsize=8)
        axes.legend(fontsize=7)
    return figure


def _without_start(curves: Iterable[Sequence[tuple[int, float]]]) -> float:
    """Return the highest value after a tenth of the updates of its curve.

    >>> _without_start([[(100, 500.0), (200, 50.0), (1000, 8.0)], [(100, 300.0), (200, 60.0), (1000, 9.0)]])
    60.0
    """
    return max(value for curve in curves for update, value in curve if 10 * update > curve[-1][0])


def _panels(panels: Sequence[GainPanel | LearningPanel], *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with the titled axes of each panel, three side by side."""
    from matplotlib.figure import Figure

    count = len(panels)
    lines, columns = -(-count // COLUMNS), min(count, COLUMNS)
    figure = Figure(figsize=(1.0 + 4.2 * columns, 0.3 + height * lines), layout="constrained")
    all_axes = [axes for line in figure.subplots(lines, columns, squeeze=False) for axes in line]
    for axes, panel in zip(all_axes, panels, strict=False):
        axes.tick_params(which="both", labelsize=8)
        axes.set_title(textwrap.fill(panel.title, 48), fontsize=9)
    for unused in all_axes[count:]:
        unused.remove()
    return figure, all_axes[:count]
