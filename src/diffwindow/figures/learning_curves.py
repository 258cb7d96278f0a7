"""The curves of a run as a picture: training and validation loss, other metrics, learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffwindow.files import replacing

Record = dict[str, Any]


def series(records: list[Record], kind: str) -> dict[str, tuple[list[int], list[float]]]:
    """Gather each metric's updates and values.

    >>> series([{"update": 2, "kind": "train", "loss": 0.5}], "train")
    {'loss': ([2], [0.5])}
    """
    gathered: dict[str, tuple[list[int], list[float]]] = {}
    for record in records:
        if record["kind"] != kind:
            continue
        for name, value in record.items():
            if name not in ("update", "kind") and isinstance(value, int | float):
                updates, values = gathered.setdefault(name, ([], []))
                updates.append(record["update"])
                values.append(value)
    return gathered


def draw_curves(records: list[Record], path: Path) -> None:
    """Draw what a log holds to a PNG file."""
    from matplotlib.figure import Figure

    train, valid = series(records, "train"), series(records, "valid")
    others = [name for name in valid if name != "loss"]
    panels = ["loss", *others[:3], "lr"]
    figure = Figure(figsize=(4 * len(panels), 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, source in (("training", train), ("validation", valid)):
            if name in source:
                axes.plot(*source[name], label=label, marker="." if label == "validation" else None)
        axes.set_title({"lr": "learning rate"}.get(name, name))
        axes.set_xlabel("update")
        if name == "loss" and axes.lines:
            axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
