"""A picture of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diffwindow.extras import require
from diffwindow.view.figures import COLOURS, choose_fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches of a cell, and of the names beside them; the most labels whose counts are written into the cells
CELL, MARGIN, WRITTEN = 0.55, 1.6, 20
# inches of a side at most
SIDE = 9.0


def confusion_figure(labels: Sequence[str], counts: Sequence[Sequence[int]], *, title: str = "") -> Figure:
    """Draw counts by right label (row) and predicted label; the colour is the share of the row.

    >>> len(confusion_figure(["bad", "good"], [[3, 1], [0, 4]]).axes)
    2
    """
    require("matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    numbers = np.array(counts)
    shares = numbers / np.maximum(numbers.sum(1, keepdims=True), 1)
    fonts = choose_fonts([*labels, title])
    names = [fonts.write(label) for label in labels]
    side = min(CELL * len(names), SIDE - MARGIN)
    with matplotlib.rc_context({"font.family": fonts.families}):
        figure = Figure(figsize=(max(side + MARGIN + 0.6, 3.4), side + MARGIN), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap=COLOURS, vmin=0.0, vmax=1.0)
        size = min(9.0, 72 * side / len(names) * 0.8)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=size, parse_math=False)
        axes.set_yticks(range(len(names)), names, fontsize=size, parse_math=False)
        axes.tick_params(length=0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("right label")
        if title:
            axes.set_title(fonts.write_lines(title), fontsize=10, parse_math=False)
        if len(names) <= WRITTEN:
            for (row, column), count in np.ndenumerate(numbers):
                dark = shares[row, column] > 0.5
                colour = "white" if dark else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=size)
        bar = figure.colorbar(image, ax=axes, shrink=0.8)
        bar.set_label("share of the right label", fontsize=9)
    return figure
