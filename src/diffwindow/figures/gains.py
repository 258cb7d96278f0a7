"""Models compared in panels: gains over a base model, and how each model learned."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    figure, all_axes = _panels(len(panels), height=1.2 + 0.35 * most)
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
        axes.set_title(_wrapped(panel.title), fontsize=9)
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
    """Draw the validations of each model by update."""
    figure, all_axes = _panels(len(panels), height=3.2)
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
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_ylabel(panel.axis, fontsize=8)
        axes.set_xlabel("update", fontsize=8)
        axes.set_title(_wrapped(panel.title), fontsize=9)
        axes.legend(fontsize=7)
    return figure


def _wrapped(title: str) -> str:
    """Break a title into lines that fit over a panel."""
    return textwrap.fill(title, 48)


def _panels(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, three side by side."""
    from matplotlib.figure import Figure

    lines, columns = -(-count // COLUMNS), min(count, COLUMNS)
    figure = Figure(figsize=(1.0 + 4.2 * columns, 0.3 + height * lines), layout="constrained")
    panels = [axes for line in figure.subplots(lines, columns, squeeze=False) for axes in line]
    for axes in panels[:count]:
        axes.tick_params(which="both", labelsize=8)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]
