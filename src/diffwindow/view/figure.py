"""Static figures of attention: one heat map a panel, with tokens on both axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.extras import require
from diffwindow.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches that a token takes on an axis, a letter of its name, and what titles and colour bars take beside
CELL, LETTER, MARGIN = 0.24, 0.085, 1.0
# a warm page-like scale from nothing to all, readable in print and by the colour-blind
COLOURS = "magma_r"


@dataclass(frozen=True)
class Panel:
    """A matrix of queries by keys, and its title; its highest value has the darkest colour."""

    title: str
    values: NDArray[Any]
    # a query with the first and last key of a stretch to draw a frame around
    outline: tuple[int, int, int] | None = None


def attention_figure(
    panels: Sequence[Panel],
    *,
    queries: Sequence[str],
    keys: Sequence[str],
    names: tuple[str, str] = ("query", "key"),
    title: str = "",
) -> Figure:
    """Draw panels side by side: typically a window, our attention, and that of a plain model.

    `names` says what the rows and the columns are.

    >>> panel = Panel("window", np.eye(2))
    >>> len(attention_figure([panel], queries=["the", "keys"], keys=["the", "keys"]).axes)
    2
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    for panel in panels:
        if panel.values.shape != (len(queries), len(keys)):
            raise ValueError(
                f"{panel.title!r} has shape {panel.values.shape}, "
                f"but there are {len(queries)} queries and {len(keys)} keys"
            )
    width = len(panels) * (CELL * len(keys) + MARGIN) + LETTER * max(map(len, queries), default=0)
    height = CELL * len(queries) + MARGIN + LETTER * max(map(len, keys), default=0)
    figure = Figure(figsize=(max(width, 4.0), height), layout="compressed")
    if title:
        figure.suptitle(title)
    plots = figure.subplots(1, len(panels), squeeze=False)[0]
    for number, (axes, panel) in enumerate(zip(plots, panels, strict=True)):
        # the queries are the same in every panel, and told once
        _draw(axes, panel, queries if number == 0 else [""] * len(queries), keys)
        axes.set_xlabel(names[1], fontsize=9)
    plots[0].set_ylabel(names[0], fontsize=9)
    return figure


def _draw(axes: Axes, panel: Panel, queries: Sequence[str], keys: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    highest = float(np.max(panel.values, initial=0.0)) or 1.0
    image = axes.imshow(panel.values, cmap=COLOURS, vmin=0.0, vmax=highest, aspect="equal")
    axes.set_title(panel.title, fontsize=10)
    axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8)
    axes.set_yticks(range(len(queries)), queries, fontsize=8)
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
    with replacing(path, follow_link=True) as temporary:
        # the layout leaves long names of tokens hanging over the edge
        figure.savefig(temporary, format=kind, dpi=150, bbox_inches="tight")
