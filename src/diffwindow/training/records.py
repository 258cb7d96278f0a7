"""Records of a run's log, and what the run folders below a folder have come to; without torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffwindow.files import check_regular, read_json
from diffwindow.tasks.metrics import METRICS
from diffwindow.training.config import LOG, MODEL, RUN_CONFIG

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """Read a log; leave out a last line that was cut short."""
    check_regular(path)
    return [_record(path, i, line) for i, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1)]


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        record: Record = json.loads(line)
        if isinstance(record["update"], int):
            return record
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path}, line {number} is damaged; restore the file")


@dataclass(frozen=True)
class RunSummary:
    """A run folder at a glance; `score` is the best value of the watched metric, as it is printed.

    `state` is "done", "unfinished", "not begun" or "damaged".
    """

    run: str
    attention: str
    state: str
    updates: int
    max_updates: int | None = None
    metric: str | None = None
    score: float | None = None
    best_update: int | None = None

    @classmethod
    def read(cls, folder: Path) -> RunSummary:
        """Summarise a run from its config and its log."""
        try:
            config = read_json(folder / RUN_CONFIG)
            attention, train = str(config.get("attention", "Global")), dict(config["train"])
            records = read_records(folder / LOG) if (folder / LOG).is_file() else []
        except (ValueError, KeyError, TypeError):
            return cls(str(folder), "", "damaged", 0)
        updates = max((record["update"] for record in records), default=0)
        done = (folder / MODEL).is_dir()
        state = "done" if done else "unfinished" if updates else "not begun"
        watched = str(train.get("watch", "loss"))
        best = _best(records, watched)
        return cls(
            *(str(folder), attention, state, updates, train.get("max_updates"), watched),
            *(best if best else (None, None)),
        )


def _best(records: list[Record], watched: str) -> tuple[float, int] | None:
    """Return the best finite value that validations logged of a metric, as printed, and its update."""
    metric = METRICS.get(watched)
    values = [
        (float(record[watched]), int(record["update"]))
        for record in records
        if record.get("kind") == "valid" and isinstance(record.get(watched), int | float)
    ]
    finite = [pair for pair in values if math.isfinite(pair[0])]
    if metric is None or not finite:
        return None
    value, update = max(finite, key=lambda pair: metric.sign * pair[0])
    return metric.scale * value, update


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or below a folder, in order; a run holds no other runs."""
    for place, names, files in os.walk(folder):
        if RUN_CONFIG in files:
            yield Path(place)
            names.clear()
        names[:] = sorted(name for name in names if not name.startswith("."))
