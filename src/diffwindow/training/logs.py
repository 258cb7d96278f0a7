"""The logs of a run: records that a resumed run repeats byte for byte, timings, TensorBoard, progress."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Literal
from uuid import uuid4

import torch
from torch.utils.tensorboard import SummaryWriter

from diffwindow.extras import require
from diffwindow.files import check_inside, open_within, read_json, to_json, write_json
from diffwindow.training.config import LOG, RUN_CONFIG, TENSORBOARD, TIMING, WANDB_ID, TrainConfig
from diffwindow.training.records import Record
from diffwindow.training.state import TrainState
from diffwindow.training.updater import UpdateResult, learning_rate


class RunLogs:
    """The logs of a run folder: `log.jsonl`, `timing.jsonl`, TensorBoard's events, and Weights & Biases.

    To resume from a checkpoint, the log is truncated to the `position` it had then, and timings and events
    to `update`. `wandb` is a project on Weights & Biases, which logs nothing unless it is given.
    """

    def __init__(self, folder: Path, position: int = 0, update: int = 0, wandb: str | None = None) -> None:
        with ExitStack() as opened:
            self._log = opened.enter_context(_open_lines(folder / LOG, position))
            end = _end_of(folder / TIMING, update)
            self._timing = opened.enter_context(_open_lines(folder / TIMING, end))
            check_inside(folder / TENSORBOARD)
            # TensorBoard forgets the later points, which the run writes again
            self._events = SummaryWriter(str(folder / TENSORBOARD), purge_step=update + 1)
            opened.callback(self._events.close)
            self._wandb = _open_wandb(folder, wandb) if wandb else None
            if self._wandb is not None:
                opened.callback(self._wandb.finish)
            self._opened = opened.pop_all()

    def write(self, kind: Literal["train", "valid", "final", "speed"], update: int, values: Record) -> None:
        """Write values of an update; speeds have their own file because they differ from run to run."""
        file = self._timing if kind == "speed" else self._log
        file.write(f"{to_json({'update': update, 'kind': kind, **values})}\n".encode())
        # readers see it at once
        file.flush()
        # the final model comes after the last update, so a run that goes on purges it too
        step = update + 1 if kind == "final" else update
        scalars = {
            f"{kind}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log({"update": update, **scalars})

    def position(self) -> int:
        """Flush to disk and return the size of the log."""
        os.fsync(self._log.fileno())
        return self._log.tell()

    def close(self) -> None:
        """Close all files."""
        self._opened.close()


def _open_wandb(folder: Path, project: str) -> Any:
    """Start or go on with the run's own page on Weights & Biases; its place is told by environment variables.

    Values are logged by update, so a run that resumes from an earlier checkpoint repeats some points.
    """
    require("wandb")
    import wandb

    path = folder / WANDB_ID
    if not path.is_file():
        write_json(path, {"id": uuid4().hex[:12]})
    config = read_json(folder / RUN_CONFIG) if (folder / RUN_CONFIG).is_file() else {}
    try:
        run = wandb.init(
            project=project,
            dir=str(folder),
            id=str(read_json(path).get("id")),
            name=folder.resolve().name,
            config=config,
            resume="allow",
        )
    except wandb.Error as error:
        advice = "set WANDB_MODE=offline to log to the disk, or leave train.wandb out"
        raise ValueError(f"train.wandb={project}: {str(error).rstrip('.')}; {advice}") from None
    run.define_metric("*", step_metric="update")
    return run


def _open_lines(path: Path, position: int) -> IO[bytes]:
    """Open a file to append to it, truncated to a position."""
    file = open_within(path, "ab")
    size = file.tell()
    if size < position:
        file.close()
        raise ValueError(f"{path} has lost its end: it has {size} bytes instead of {position}; restore it")
    file.truncate(position)
    return file


def _end_of(path: Path, update: int) -> int:
    """Return the position after the last record up to an update.

    Timings are not flushed to disk, so a power cut may leave damaged lines: they are cut off too.
    """
    end = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            if not line.endswith(b"\n") or json.loads(line)["update"] > update:
                break
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        end += len(line)
    return end


class Stopwatch:
    """Times the updates between two reports."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._updates = 0

    def count(self) -> None:
        """Count an update."""
        self._updates += 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out the time that the context takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._started += time.perf_counter() - began

    def lap(self, results: Sequence[UpdateResult]) -> Record:
        """Return the speed since the last lap, whose updates are the last of `results`; start the next."""
        now = time.perf_counter()
        seconds, updates = now - self._started, self._updates
        self._started, self._updates = now, 0
        units = float(_sums(results[-updates:])[:, 1].sum())
        return {"seconds": seconds, "updates_per_s": updates / seconds, "units_per_s": units / seconds}


def loss_record(results: Sequence[UpdateResult], state: TrainState, config: TrainConfig) -> Record:
    """Return the mean loss per unit of some updates, None if all were skipped, and where the run stands."""
    total, units = _sums(results).sum(0).tolist()
    norm = results[-1].norm
    return {
        "epoch": state.batches["epoch"],
        "loss": total / units if units else None,
        "units": int(units),
        "lr": learning_rate(state.update, config),
        "grad_norm": None if norm is None else float(norm),
        "skipped": state.skipped,
    }


def progress_line(update: int, max_updates: int, loss: Record, speed: Record, unit: str) -> str:
    """Return the line that shows how a run is doing.

    >>> loss = {"loss": 2.5, "lr": 1e-3}
    >>> progress_line(50, 650, loss, {"updates_per_s": 2.0, "units_per_s": 4321.0}, "tokens")
    '50/650  loss 2.500  lr 1.00e-03  4,321 tokens/s  2.0 updates/s  0:05:00 left'
    """
    mean = "every update skipped" if loss["loss"] is None else f"loss {loss['loss']:.3f}"
    pace = f"{speed['units_per_s']:,.0f} {unit}/s  {speed['updates_per_s']:.1f} updates/s"
    left = _clock((max_updates - update) / speed["updates_per_s"])
    return f"{update}/{max_updates}  {mean}  lr {loss['lr']:.2e}  {pace}  {left} left"


def _sums(results: Sequence[UpdateResult]) -> torch.Tensor:
    """Return [loss, units] of each update."""
    return torch.stack([result.sums for result in results])


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{int(seconds % 60):02d}"
