"""The pictures of reports, and the paper's figures: masks, and cross-attention with a window and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from diffwindow import functional
from diffwindow.data.store import Store
from diffwindow.decoding import Decoding
from diffwindow.decoding.translate import translate
from diffwindow.extras import require
from diffwindow.files import make_folder
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


@dataclass(frozen=True)
class Masks:
    """Vectors over keys by their names, as circles: white is 0, and the darkest the largest value of all."""

    title: str
    vectors: dict[str, Tensor]
    segment_size: int = 1


def _discrete_masks() -> Masks:
    """Return the vectors of Figure 1: one-hot boundaries at 3 and 8 of ten keys, and their window (Eq. 6)."""
    phi_left, phi_right = torch.eye(10)[2], torch.eye(10)[7]
    return Masks(
        "Figure 1: a discrete window, l = 3 and r = 8",
        {
            r"$\phi_l$": phi_left,
            r"$\phi_r$": phi_right,
            r"$f_l = \phi_l^T L_n$": functional.rightward(phi_left),
            r"$g_r = \phi_r^T L_n^T$": functional.leftward(phi_right),
            r"$m = f_l \odot g_r$": functional.soft_window(phi_left, phi_right, expectation="ordered"),
        },
    )


def _segment_masks() -> Masks:
    """Return the vectors of Figure 2: unsure boundaries near 3 and 8 of ten keys, in segments of two."""
    places = torch.arange(10.0)
    phi_left, phi_right = (torch.softmax(-((places - place) ** 2), -1) for place in (2, 7))
    size = 2
    sums = {
        r"$\hat\phi_l^T J_n$": functional.rightward(phi_left, size),
        r"$\hat\phi_r^T J_n^T$": functional.leftward(phi_right, size),
        r"$\hat\phi_r^T J_n$": functional.rightward(phi_right, size),
        r"$\hat\phi_l^T J_n^T$": functional.leftward(phi_left, size),
    }
    window = functional.soft_window(phi_left, phi_right, segment_size=size)
    pointers = {r"$\hat\phi_l$": phi_left, r"$\hat\phi_r$": phi_right}
    return Masks("Figure 2: a window in segments of 2", {**pointers, **sums, r"$m'$": window}, size)


# the figures that need no training
DRAWINGS: dict[str, Callable[[], Masks]] = {"figure1": _discrete_masks, "figure2": _segment_masks}


def draw_masks(masks: Masks, path: Path) -> None:
    """Draw vectors over keys below each other, with lines between segments."""
    require("matplotlib")
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    count, keys = len(masks.vectors), len(next(iter(masks.vectors.values())))
    most = max(float(vector.max()) for vector in masks.vectors.values())
    figure = Figure(figsize=(0.45 * keys + 1.8, 0.45 * count + 1.0), layout="constrained")
    axes = figure.subplots()
    for line, vector in enumerate(masks.vectors.values()):
        colours = colormaps["Reds"](vector.numpy() / most)
        axes.scatter(range(1, keys + 1), [line] * keys, s=150, color=colours, edgecolors="black", zorder=2)
    for edge in range(masks.segment_size, keys, masks.segment_size) if masks.segment_size > 1 else ():
        axes.axvline(edge + 0.5, color="grey", linestyle=":", zorder=1)
    axes.set(xlim=(0.4, keys + 0.6), ylim=(count - 0.4, -0.6), xlabel="key", title=masks.title)
    axes.set_xticks(range(1, keys + 1))
    axes.set_yticks(range(count), list(masks.vectors))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    make_folder(path.parent)
    save_figure(figure, path)


def draw_figure_3(
    plain: Path, windowed: Path, store: Path, path: Path, *, row: int = 1, title: str = ""
) -> None:
    """Draw the cross-attention of both models, averaged over heads, on a test sentence, counted from 1.

    The layer is the last that has a window. The target is the window model's own translation, so that both
    look from the same words.
    """
    rows = Store.open(store).split("test").sequences["source"]
    if not 1 <= row <= len(rows):
        raise ValueError(f"there is no row {row}: the test set of {store} has {len(rows):,} sentences")
    ours, theirs = ModelFolder.read(windowed), ModelFolder.read(plain)
    source = rows[row - 1].tolist()
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
    title = f"{title}cross-attention of layer {maps.layer}, mean over heads"
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
