"""Speed: the time of an update of each row, in turns, so that a busy machine is busy for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffwindow.data.batching import TokenBatches
from diffwindow.data.store import Store
from diffwindow.reproduce.scales import Setting
from diffwindow.reproduce.table import Table
from diffwindow.tasks.registry import model_config, task_of
from diffwindow.training.config import Config
from diffwindow.training.optimizer import make_optimizer
from diffwindow.training.overrides import resolve


def relative_speeds(table: Table, setting: Setting, store: Path, *, rounds: int = 7) -> dict[str, float]:
    """Give the updates a second of each row, by key, as a ratio to those of the first.

    A round times one update of every row on the same batch; the ratio is the median over rounds.
    """
    opened = Store.open(store)
    steps = {
        row.key: _stepper(
            resolve(setting.preset, (*setting.overrides, *row.overrides), {"attention": row.attention}),
            opened,
        )
        for row in table.rows
    }
    base = next(iter(steps))
    ratios: dict[str, list[float]] = {key: [] for key in steps}
    # the first updates pay for buffers and caches
    for number in range(rounds + 1):
        seconds = {key: _timed(step) for key, step in steps.items()}
        for key in steps if number else ():
            ratios[key].append(seconds[base] / seconds[key])
    return {key: statistics.median(values) for key, values in ratios.items()}


def _timed(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _stepper(config: Config, store: Store) -> Callable[[], None]:
    """Give a function that makes an update; functions of one corpus walk through the same batches."""
    task: Any = task_of(store, model_config(store, config.model_options), config.task.options)
    model = task.build_model()
    optimizer = make_optimizer(model, config.train)
    sampler = TokenBatches(task.lengths("train"), max_tokens=config.train.max_tokens, seed=1)
    chosen = iter(sampler)

    def step() -> None:
        loss = task.loss(model, task.collate("train", next(chosen)))
        (loss.total / loss.units).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
