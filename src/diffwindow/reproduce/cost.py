"""What a table costs at a scale: floating-point operations, and hours on common machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from diffwindow.models.build import count_parameters, read_config
from diffwindow.reproduce.scales import Experiment
from diffwindow.reproduce.table import Row
from diffwindow.tasks.presets import model_preset
from diffwindow.training.overrides import resolve

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
    return _cost(
        experiment.preset, (*experiment.overrides, *row.overrides), row.attention, experiment.vocab_size
    )


# cached: tables share rows, and counting a model of the paper's size takes a moment
@cache
def _cost(preset: str, overrides: tuple[str, ...], attention: str, vocab_size: int | None) -> Cost:
    config = resolve(preset, overrides, {"attention": attention})
    vocabulary = {"vocab_size": vocab_size} if vocab_size else {}
    model = read_config(model_preset(preset).model_dump() | config.model_options | vocabulary)
    parameters = count_parameters(model)
    if config.task.kind == "classification":
        # its embedding is only looked up; the other models make their logits with it
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
