"""What a run reports while it trains: its loss and its speed, as records for the logs and as a line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from diffwindow.training.config import TrainConfig
from diffwindow.training.logs import Record
from diffwindow.training.optimizer import learning_rate
from diffwindow.training.train_state import TrainState
from diffwindow.training.updater import UpdateResult


class Stopwatch:
    """Times the updates between two reports."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._updates = 0

    def count(self) -> None:
        """Count an update."""
        self._updates += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
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
