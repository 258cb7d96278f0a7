"""Plots of a table: gains over the plain model beside the paper's, and how the models learned."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from diffwindow.figures.attention_maps import save_figure
from diffwindow.reproduce.findings import Finding
from diffwindow.reproduce.table import LEARNING, SHOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABREAST = 3


def draw_gains(found: Finding, path: Path) -> bool:
    """Draw one panel a column: ours with intervals, the paper's as diamonds; say whether there was any."""
    columns = [column for column in found["columns"] if any(row["gain"] for row in column["rows"])]
    if not columns:
        return False
    most = max(sum(row["gain"] is not None for row in column["rows"]) for column in columns)
    figure, panels = _panels(len(columns), height=1.2 + 0.35 * most)
    for axes, column in zip(panels, columns, strict=True):
        rows = [row for row in column["rows"] if row["gain"]]
        for place, row in enumerate(rows):
            gain, reach = row["gain"], row["interval"]["reach"] if row["interval"] else 0.0
            # one seed must not look like several
            fill = "white" if gain["count"] == 1 or not reach else "tab:blue"
            axes.errorbar(gain["mean"], place, xerr=reach, fmt="o", mfc=fill, color="tab:blue", capsize=3)
            if row["paper_gain"] is not None:
                axes.plot(row["paper_gain"], place, "D", mfc="none", color="tab:orange")
        axes.axvline(0.0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(_wrapped(f"{column['title']} ({found['scale']})"), fontsize=9)
        unit, more_is_better = SHOWN[column["metric"]]
        points = unit.replace(", %", " in points")
        change = "gain in" if more_is_better else "reduction of"
        axes.set_xlabel(f"{change} {points} against {column['base']}", fontsize=8)
    if len(columns) > ABREAST and len({column["metric"] for column in columns}) == 1:
        # many panels are there to be compared
        low, high = zip(*(axes.get_xlim() for axes in panels), strict=True)
        for axes in panels:
            axes.set_xlim(min(low), max(high))
    marks = ["filled: ours, 95 % interval over seeds and examples", "white: one seed, or no interval"]
    if any(row["paper_gain"] is not None for column in columns for row in column["rows"]):
        marks.append("diamonds: the paper's, on its own data")
    figure.suptitle("; ".join(marks), fontsize=8)
    save_figure(figure, path)
    return True


def draw_learning(found: Finding, path: Path) -> bool:
    """Draw one panel a column: validation by update, the mean over seeds; say whether there was any."""
    columns = [column for column in found["columns"] if any(row["learning"] for row in column["rows"])]
    if not columns:
        return False
    figure, panels = _panels(len(columns), height=3.2)
    for axes, column in zip(panels, columns, strict=True):
        for place, row in enumerate(column["rows"]):
            if row["learning"]:
                updates, values = zip(*row["learning"], strict=True)
                # ten colours, then the same ones dashed
                style = "-" if place < 10 else "--"
                axes.plot(updates, values, style, color=f"C{place}", marker=".", label=row["label"])
        if column["metric"] != "accuracy":
            # the first validations are far above the rest; round numbers label the axis
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_ylabel(LEARNING[column["metric"]], fontsize=8)
        axes.set_xlabel("update", fontsize=8)
        axes.set_title(_wrapped(f"{column['title']} ({found['scale']}), validation"), fontsize=9)
        axes.legend(fontsize=7)
    save_figure(figure, path)
    return True


def _wrapped(title: str) -> str:
    """Break a title into lines that fit over a panel."""
    return textwrap.fill(title, 48)


def _panels(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Give a figure with so many panels, three abreast."""
    from matplotlib.figure import Figure

    lines, abreast = -(-count // ABREAST), min(count, ABREAST)
    figure = Figure(figsize=(1.0 + 4.2 * abreast, 0.3 + height * lines), layout="constrained")
    panels = [axes for line in figure.subplots(lines, abreast, squeeze=False) for axes in line]
    for axes in panels[:count]:
        axes.tick_params(which="both", labelsize=8)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]
