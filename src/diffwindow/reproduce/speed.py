"""Speed: the time of one update of each row, measured in turns, so that load affects all rows alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from diffwindow.data.batching import TokenBatches
from diffwindow.data.store import Store
from diffwindow.reproduce.scales import Experiment
from diffwindow.reproduce.table import Table
from diffwindow.tasks.registry import model_config, task_of
from diffwindow.training.config import Config
from diffwindow.training.optimizer import make_optimizer
from diffwindow.training.overrides import resolve


def relative_speeds(
    table: Table, experiment: Experiment, store: Path, *, rounds: int = 7
) -> dict[str, float]:
    """Return the updates per second of each row, by key, relative to the first row.

    A round times one update of every row on the same batch; the ratio is the median over rounds.
    """
    opened = Store.open(store)
    steps = {
        row.key: _stepper(
            resolve(experiment.preset, (*experiment.overrides, *row.overrides), {"attention": row.attention}),
            opened,
        )
        for row in table.rows
    }
    base = next(iter(steps))
    ratios: dict[str, list[float]] = {key: [] for key in steps}
    # the first round warms up buffers and caches
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
    """Return a function that makes one update; all functions of a corpus see the same batches."""
    task: Any = task_of(store, model_config(store, config.model_options), config.task.options)
    model = task.build_model()
    optimizer = make_optimizer(model, config.train)
    sampler = TokenBatches(
        task.lengths("train"), max_tokens=config.train.max_tokens, max_rows=config.train.max_rows, seed=1
    )
    # as many epochs as it takes
    chosen = chain.from_iterable(repeat(sampler))

    def step() -> None:
        loss = task.loss(model, task.collate("train", next(chosen)))
        (loss.total / loss.units).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
