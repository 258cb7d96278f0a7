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

import torch
from torch.utils.tensorboard import SummaryWriter

from diffwindow.files import check_inside, check_regular, open_within, to_json
from diffwindow.training.config import LOG, TENSORBOARD, TIMING, TrainConfig
from diffwindow.training.state import TrainState
from diffwindow.training.updater import UpdateResult, learning_rate

Record = dict[str, Any]


class RunLogs:
    """The logs of a run folder: `log.jsonl`, `timing.jsonl` and TensorBoard's events.

    To resume from a checkpoint, the log is truncated to the `position` it had then, and timings and events
    to `update`.
    """

    def __init__(self, folder: Path, position: int = 0, update: int = 0) -> None:
        with ExitStack() as opened:
            self._log = opened.enter_context(_open_lines(folder / LOG, position))
            end = _end_of(folder / TIMING, update)
            self._timing = opened.enter_context(_open_lines(folder / TIMING, end))
            check_inside(folder / TENSORBOARD)
            # TensorBoard forgets the later points, which the run writes again
            self._events = SummaryWriter(str(folder / TENSORBOARD), purge_step=update + 1)
            opened.callback(self._events.close)
            self._opened = opened.pop_all()

    def write(self, kind: Literal["train", "valid", "final", "speed"], update: int, values: Record) -> None:
        """Write values of an update; speeds have their own file because they differ from run to run."""
        file = self._timing if kind == "speed" else self._log
        file.write(f"{to_json({'update': update, 'kind': kind, **values})}\n".encode())
        # readers see it at once
        file.flush()
        # the final model comes after the last update, so a run that goes on purges it too
        step = update + 1 if kind == "final" else update
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._events.add_scalar(f"{kind}/{name}", value, step)

    def position(self) -> int:
        """Flush to disk and return the size of the log."""
        os.fsync(self._log.fileno())
        return self._log.tell()

    def close(self) -> None:
        """Close all files."""
        self._opened.close()


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
