"""What a table costs at a scale: floating-point operations, measured speed, and hours on common machines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from pathlib import Path

from diffwindow.data.batching import TokenBatches
from diffwindow.data.store import Store
from diffwindow.reproduce.scales import Experiment
from diffwindow.reproduce.table import Row, Table
from diffwindow.tasks.entries import TASKS
from diffwindow.tasks.presets import model_preset
from diffwindow.tasks.task import model_config, task_of
from diffwindow.training.config import Config
from diffwindow.training.overrides import resolve
from diffwindow.training.updater import make_optimizer

# forward and backward take about six operations per parameter and token
OPERATIONS = 6
# operations per second in practice: of one core, from runs of Table 5 and of small translation models, and
# of one recent GPU
CORE, GPU = 48e9, 60e12
# seconds that a GPU waits for Python in each update, however small
LAUNCH = 0.01


@dataclass(frozen=True)
class Cost:
    """The training of one row with one seed."""

    updates: int
    operations: float

    @property
    def core_hours(self) -> float:
        """Return the hours on one core."""
        return self.operations / CORE / 3600

    @property
    def gpu_hours(self) -> float:
        """Return the hours on one GPU."""
        return max(self.operations / GPU, LAUNCH * self.updates) / 3600


def cost(experiment: Experiment, row: Row) -> Cost:
    """Estimate an upper bound: every update full, every parameter used for every token."""
    return _cost(experiment.preset, experiment.overrides_of(row), row.attention, experiment.vocab_size)


# cached: tables share rows, and counting a model of the paper's size takes a moment
@cache
def _cost(preset: str, overrides: tuple[str, ...], attention: str, vocab_size: int | None) -> Cost:
    config = resolve(preset, overrides, {"attention": attention})
    vocabulary = {"vocab_size": vocab_size} if vocab_size else {}
    base = model_preset(preset)
    model = type(base)(**base.model_dump() | config.model_options | vocabulary)
    parameters = model.count_parameters()
    if not TASKS[config.task.kind].predicts_tokens:
        # its embedding is only looked up
        parameters -= model.vocab_size * model.embed_dim
    train = config.train
    tokens = train.max_tokens * train.accumulate
    if train.max_rows is not None:
        # rows are sentences of about twenty tokens
        tokens = min(tokens, 20 * train.max_rows)
    return Cost(train.max_updates, float(OPERATIONS) * parameters * tokens * train.max_updates)


def format_hours(hours: float) -> str:
    """Describe how long something takes, roughly.

    >>> format_hours(71.28), format_hours(2.06), format_hours(0.51), format_hours(0.001)
    ('71 hours', '2.1 hours', '31 minutes', 'under a minute')
    """
    minutes = round(60 * hours)
    if minutes < 100:
        return f"{minutes} minutes" if minutes > 1 else "under a minute" if minutes < 1 else "a minute"
    return f"{hours:.1f} hours" if hours < 9.95 else f"{hours:,.0f} hours"


def relative_speeds(
    table: Table, experiment: Experiment, store: Path, *, rounds: int = 7
) -> dict[str, float]:
    """Return the updates per second of each row, by key, relative to the first row.

    A round times one update of every row on the same batch; the ratio is the median over rounds.
    """
    opened = Store.open(store)
    steps = {}
    for row in table.rows:
        config = resolve(experiment.preset, experiment.overrides_of(row), {"attention": row.attention})
        steps[row.key] = _stepper(config, opened)
    base = next(iter(steps))
    ratios: dict[str, list[float]] = {key: [] for key in steps}
    # the first round warms up buffers and caches
    for number in range(rounds + 1):
        seconds = {key: step() for key, step in steps.items()}
        for key in steps if number else ():
            ratios[key].append(seconds[base] / seconds[key])
    return {key: statistics.median(values) for key, values in ratios.items()}


def _stepper(config: Config, store: Store) -> Callable[[], float]:
    """Return a function that times one update; all functions of a corpus see the same batches."""
    task = task_of(store, model_config(store, config.model_options), config.task.options)
    model = task.build_model()
    optimizer = make_optimizer(model, config.train)
    sampler = TokenBatches(
        task.lengths("train"), max_tokens=config.train.max_tokens, max_rows=config.train.max_rows, seed=1
    )
    # as many epochs as it takes
    chosen = chain.from_iterable(repeat(sampler))

    def step() -> float:
        started = time.perf_counter()
        batch = task.collate("train", next(chosen))
        (task.loss(model, batch) / batch.units).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    return step
