"""A picture of what models read at one place of a sentence: its words, coloured by attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.extras import require
from diffwindow.view.figures import choose_fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# inches of a letter, of the space around a word, of a word's box, and of a title
LETTER, PADDING, BOX, LINE = 0.105, 0.3, 0.45, 0.3
# heights in boxes: of the highest window, of the space below it, and of the percentages below the words
WINDOW, SPACE, BELOW = 0.9, 0.1, 0.5
# attention from which its percentage is written below a word
WRITTEN = 0.05
COLOURS, GREEN = "Purples", "#00785f"
# attention from which white letters are easier to read than black ones
DARK = 0.65


@dataclass(frozen=True)
class Reading:
    """The attention to each word of a sentence, the window over them if there is one, and a title."""

    title: str
    attention: NDArray[Any]
    window: NDArray[Any] | None = None


def reading_figure(
    words: Sequence[str], readings: Sequence[Reading], *, marked: int | None = None, title: str = ""
) -> Figure:
    """Draw each reading as the sentence with its words coloured; the word that is `marked` is framed.

    >>> readings = [Reading("plain", np.array([0.1, 0.9])), Reading("window", np.array([1, 0]), np.ones(2))]
    >>> len(reading_figure(["the", "keys"], readings).axes)
    2
    """
    require("matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    fonts = choose_fonts([*words, title, *(reading.title for reading in readings)])
    names = [fonts.write(word) for word in words]
    ends = np.cumsum([LETTER * max(len(name), 2) + PADDING for name in names])
    starts = np.concatenate([[0.0], ends[:-1]])
    heights = [1 + BELOW + (0.0 if reading.window is None else SPACE + WINDOW) for reading in readings]
    with matplotlib.rc_context({"font.family": fonts.families}):
        figure = Figure(
            figsize=(float(ends[-1]) + 0.2, BOX * sum(heights) + LINE * (len(readings) + bool(title))),
            layout="constrained",
        )
        if title:
            figure.suptitle(fonts.write_lines(title), fontsize=10, parse_math=False)
        plots = figure.subplots(len(readings), squeeze=False, height_ratios=heights)[:, 0]
        for axes, reading, height in zip(plots, readings, heights, strict=True):
            axes.set_title(fonts.write_lines(reading.title), loc="left", fontsize=10, parse_math=False)
            _draw_words(axes, names, starts, ends, reading, marked)
            axes.set(xlim=(0, ends[-1]), ylim=(-BELOW, height - BELOW))
            axes.axis("off")
    return figure


def _draw_words(
    axes: Axes,
    names: Sequence[str],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    reading: Reading,
    marked: int | None,
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps[COLOURS]
    middles = (starts + ends) / 2
    for place, (name, share) in enumerate(zip(names, reading.attention, strict=True)):
        frame = (
            {"edgecolor": GREEN, "linewidth": 2.5, "zorder": 2}
            if place == marked
            else {"edgecolor": "lightgrey"}
        )
        axes.add_patch(
            Rectangle(
                (starts[place], 0), ends[place] - starts[place], 1, facecolor=colours(float(share)), **frame
            )
        )
        colour = "white" if share > DARK else "black"
        style: Any = {"ha": "center", "va": "center", "color": colour, "parse_math": False}
        axes.text(middles[place], 0.5, name, fontsize=10, **style)
        if share >= WRITTEN:
            axes.text(middles[place], -0.1, f"{100 * share:.0f} %", ha="center", va="top", fontsize=8)
    if reading.window is not None:
        heights = 1 + SPACE + WINDOW * reading.window / max(float(reading.window.max()), 1.0)
        axes.stairs(heights, [*starts, ends[-1]], baseline=1 + SPACE, fill=True, color=GREEN, alpha=0.25)
        axes.stairs(heights, [*starts, ends[-1]], baseline=1 + SPACE, color=GREEN, linewidth=1.5)
