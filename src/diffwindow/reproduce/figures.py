"""The pictures of reports, and Figure 3: cross-attention of a window model and of a plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray

from diffwindow.data.store import Store
from diffwindow.decoding import Decoding
from diffwindow.decoding.translate import translate
from diffwindow.models.translator import Translator
from diffwindow.reproduce.findings import Finding
from diffwindow.special_tokens import BOS
from diffwindow.tasks.metrics import METRICS
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.view.capture import capture
from diffwindow.view.figures import (
    COLUMNS,
    Gain,
    GainPanel,
    LearningPanel,
    Panel,
    attention_figure,
    gain_figure,
    learning_figure,
    save_figure,
)


def draw_figure_3(plain: Path, windowed: Path, store: Path, path: Path, *, row: int = 0) -> None:
    """Draw the cross-attention of both models, averaged over heads, on a test sentence.

    The layer is the last that has a window. The target is the window model's own translation, so that both
    look from the same words.
    """
    rows = Store.open(store).split("test").sequences["source"]
    ours, theirs = ModelFolder.read(windowed), ModelFolder.read(plain)
    source = rows[row].tolist()
    best = translate(cast(Translator, ours.model), ours.tokenizer, [source[:-1]], Decoding())[0][0]
    target = ours.tokenizer.encode(best.text)
    given, predicted = torch.tensor([[BOS, *target]]), [*ours.tokenizer.tokens(target), "</s>"]
    traces = []
    for model in (ours.model, theirs.model):
        with torch.no_grad(), capture(model) as trace:
            model(torch.tensor([source]), given)
        traces.append(trace)
    windows = [maps for maps in traces[0].layers if maps.role == "Cr" and maps.window is not None]
    if not windows:
        raise ValueError(f"{windowed} has no window in its cross-attention")
    maps = windows[-1]
    panels = [
        # two boundaries in one segment count twice there
        Panel("window M (0 to 2)", _mean(maps.window)),
        Panel("our attention", _mean(maps.weights)),
        Panel("plain attention", _mean(traces[1]["Cr", maps.layer].weights)),
    ]
    keys = [*ours.tokenizer.tokens(source[:-1]), "</s>"]
    title = f"cross-attention of layer {maps.layer}, mean over heads"
    names = ("translation", "source")
    save_figure(attention_figure([panels], queries=predicted, keys=keys, names=names, title=title), path)


def _mean(maps: Any) -> NDArray[Any]:
    mean: NDArray[Any] = torch.from_numpy(maps).mean(0).numpy()
    return mean


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
            axis=METRICS[column["metric"]].learning[1],
            curves={row["label"]: row["learning"] for row in column["rows"]},
            log_scale=METRICS[METRICS[column["metric"]].learning[0]].log_scale,
        )
        for column in columns
    ]
    save_figure(learning_figure(panels), path)
    return True


def _gain_panel(column: Finding, scale: str) -> GainPanel:
    metric = METRICS[column["metric"]]
    change = "gain in" if metric.more_is_better else "reduction of"
    gains = []
    for row in column["rows"]:
        if gain := row["gain"]:
            reach = row["interval"]["reach"] if row["interval"] else 0.0
            gains.append(Gain(row["label"], gain["mean"], reach, gain["count"], row["paper_gain"]))
    axis = f"{change} {metric.title.replace(', %', ' in points')} against {column['base']}"
    return GainPanel(f"{column['title']} ({scale})", axis, gains)
