"""Where the windows of each head begin and end, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from diffwindow.extras import require
from diffwindow.figures.attention_maps import choose_fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
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
        colours = [COLOURS[(row.layer - 1) % len(COLOURS)] for row in heads]
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
