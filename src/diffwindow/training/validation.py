"""Validations during training: what they need, their metrics, and which was the best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from diffwindow.progress import Progress
from diffwindow.tasks.task import B, Task
from diffwindow.training.config import TrainConfig
from diffwindow.training.window_shares import outside_shares

LOWER_IS_BETTER = ("loss", "nll", "perplexity")
Metrics = dict[str, float]


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric, its update, and the number of validations since."""

    value: float | None = None
    update: int = 0
    stale: int = 0

    def after(self, update: int, value: float, metric: str) -> Best:
        """Return the best after another validation; a value that is not finite is never better.

        >>> Best(0.5, 100).after(200, 0.7, "loss")
        Best(value=0.5, update=100, stale=1)
        """
        lower = any(metric == name or metric.endswith(f"_{name}") for name in LOWER_IS_BETTER)
        better = self.value is None or (value < self.value if lower else value > self.value)
        return (
            Best(value, update)
            if better and math.isfinite(value)
            else Best(self.value, self.update, self.stale + 1)
        )


def check_validation(task: Task[B], config: TrainConfig) -> None:
    """Raise before training if the first validation would fail."""
    if config.watch not in task.metrics:
        raise ValueError(
            f"train.watch={config.watch}: the validation of this task has {', '.join(task.metrics)}"
        )
    if not config.valid_every or (config.valid_every > config.max_updates and config.final == "last"):
        return
    try:
        task.lengths("valid")
    except ValueError as error:
        remedy = "train.valid_every=null train.final=last train.patience=null"
        raise ValueError(f"{error}; train without validations with {remedy}") from None


def validate(task: Task[B], model: nn.Module, watch: str, progress: Progress) -> Metrics:
    """Return the task's metrics of the validation set, and how much the model's windows leave out."""
    metrics = task.validate(model, "valid", watch=watch, progress=progress)
    return metrics | outside_shares(task, model, "valid")


def all_finite(metrics: Metrics) -> bool:
    """Return whether no metric is NaN or infinite."""
    return all(map(math.isfinite, metrics.values()))


def shown(metrics: Metrics) -> str:
    """Return metrics as they are printed.

    >>> shown({"loss": 1.23456, "accuracy": 0.5})
    'loss 1.235  accuracy 0.5'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
