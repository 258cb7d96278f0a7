"""A plot of gains over the plain model: ours with intervals, the paper's as open marks."""

from __future__ import annotations

from pathlib import Path

from diffwindow.reproduce.findings import Finding
from diffwindow.reproduce.table import SHOWN
from diffwindow.view.figure import save_figure


def draw_gains(found: Finding, path: Path) -> bool:
    """Draw one panel a column; say whether there was anything to draw."""
    from matplotlib.figure import Figure

    columns = [column for column in found["columns"] if any(row["gain"] for row in column["rows"])]
    if not columns:
        return False
    height = 1.4 + 0.35 * max(sum(row["gain"] is not None for row in column["rows"]) for column in columns)
    figure = Figure(figsize=(2.0 + 3.6 * len(columns), height), layout="constrained")
    for axes, column in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        rows = [row for row in column["rows"] if row["gain"]]
        for place, row in enumerate(rows):
            gain = row["gain"]
            reach = gain["reach"] or 0.0
            axes.errorbar(gain["mean"], place, xerr=reach, fmt="o", color="tab:blue", capsize=3)
            if row["paper_gain"] is not None:
                axes.plot(row["paper_gain"], place, "D", mfc="none", color="tab:orange")
        axes.axvline(0.0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=8)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(f"{column['title']} ({found['scale']})", fontsize=9)
        axes.set_xlabel(f"gain in {SHOWN[column['metric']][0]} over {column['base']}", fontsize=8)
    figure.suptitle("filled: ours, 95 % interval over seeds; open: the paper's, on its own data", fontsize=8)
    save_figure(figure, path)
    return True
