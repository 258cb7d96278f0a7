"""A picture of trees over the words of a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from diffwindow.extras import require
from diffwindow.view.figures import choose_fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches of a letter, of the space beside a word, of a step up the tree, and of the words with a title
LETTER, SPACE, STEP, LINES = 0.09, 0.15, 0.2, 0.55
# the first and the last word
Phrase = tuple[int, int]
# a place over the words, and a height in steps
Point = tuple[float, int]


def tree_figure(words: Sequence[str], trees: Mapping[str, Iterable[Phrase]]) -> Figure:
    """Draw trees of one sentence, by title; a tree is its phrases of two words and more.

    >>> len(tree_figure(["the", "man", "fell"], {"ours": [(1, 2), (0, 2)], "theirs": [(0, 1), (0, 2)]}).axes)
    2
    """
    require("matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    fonts = choose_fonts([*words, *trees])
    names = [fonts.write(word) for word in words]
    widths = np.array([LETTER * max(len(name), 2) + SPACE for name in names])
    middles = (widths.cumsum() - widths / 2).tolist()
    phrases = [phrase_points(middles, tree) for tree in trees.values()]
    steps = [max((top for (_, top), _ in each), default=0) + 1 for each in phrases]
    with matplotlib.rc_context({"font.family": fonts.families}):
        size = (float(widths.sum()) + 0.2, STEP * sum(steps) + LINES * len(trees))
        figure = Figure(figsize=size, layout="constrained")
        plots = figure.subplots(len(trees), squeeze=False, height_ratios=steps)[:, 0]
        for axes, title, each, height in zip(plots, trees, phrases, steps, strict=True):
            axes.set_title(fonts.write_lines(title), loc="left", fontsize=10, parse_math=False)
            for (_, top), parts in each:
                # up from each part, and across from the first to the last
                axes.vlines([x for x, _ in parts], [y for _, y in parts], top, color="black", linewidth=1)
                axes.hlines(top, parts[0][0], parts[-1][0], color="black", linewidth=1)
            axes.set_xticks(middles, names, fontsize=9, parse_math=False)
            axes.set(xlim=(0, float(widths.sum())), ylim=(0, height), yticks=[])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
    return figure


def phrase_points(middles: Sequence[float], tree: Iterable[Phrase]) -> list[tuple[Point, list[Point]]]:
    """Return each phrase, the shortest first, as a point above its parts, and the points of its parts.

    >>> phrase_points([0.0, 1.0, 2.0], [(0, 2), (0, 1)])
    [((0.5, 1), [(0.0, 0), (1.0, 0)]), ((1.25, 2), [(0.5, 1), (2.0, 0)])]
    """
    # the point of the largest phrase so far that holds each word
    above: list[Point] = [(middle, 0) for middle in middles]
    found = []
    for first, last in sorted(tree, key=lambda span: span[1] - span[0]):
        parts = list(dict.fromkeys(above[first : last + 1]))
        point = (parts[0][0] + parts[-1][0]) / 2, max(height for _, height in parts) + 1
        above[first : last + 1] = [point] * (last - first + 1)
        found.append((point, parts))
    return found
