"""The pictures of a report: gains over the plain model beside the paper's, and how the models learned."""

from __future__ import annotations

from pathlib import Path

from diffwindow.figures.attention_maps import save_figure
from diffwindow.figures.gains import COLUMNS, Gain, GainPanel, LearningPanel, gain_figure, learning_figure
from diffwindow.reproduce.findings import Finding
from diffwindow.reproduce.table import LEARNING, SHOWN


def draw_gains(finding: Finding, path: Path) -> bool:
    """Draw one panel per column with a gain; return whether there was any."""
    columns = [column for column in finding["columns"] if any(row["gain"] for row in column["rows"])]
    if not columns:
        return False
    one_metric = len({column["metric"] for column in columns}) == 1
    panels = [_gain_panel(column, finding["scale"]) for column in columns]
    save_figure(gain_figure(panels, same_scale=one_metric and len(columns) > COLUMNS), path)
    return True


def draw_learning(finding: Finding, path: Path) -> bool:
    """Draw the validations of one panel per column, means over seeds; return whether there were any."""
    columns = [column for column in finding["columns"] if any(row["learning"] for row in column["rows"])]
    if not columns:
        return False
    panels = [
        LearningPanel(
            title=f"{column['title']} ({finding['scale']}), validation",
            axis=LEARNING[column["metric"]],
            curves={row["label"]: row["learning"] for row in column["rows"]},
            # the first perplexities are far above the rest
            log_scale=column["metric"] != "accuracy",
        )
        for column in columns
    ]
    save_figure(learning_figure(panels), path)
    return True


def _gain_panel(column: Finding, scale: str) -> GainPanel:
    unit, more_is_better = SHOWN[column["metric"]]
    change = "gain in" if more_is_better else "reduction of"
    gains = [
        Gain(
            row["label"],
            row["gain"]["mean"],
            row["interval"]["reach"] if row["interval"] else 0.0,
            row["gain"]["count"],
            row["paper_gain"],
        )
        for row in column["rows"]
        if row["gain"]
    ]
    axis = f"{change} {unit.replace(', %', ' in points')} against {column['base']}"
    return GainPanel(f"{column['title']} ({scale})", axis, gains)
