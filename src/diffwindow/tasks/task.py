"""The Task protocol: all that the training loop knows of a task."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor, nn

from diffwindow.decoding.batches import by_batch
from diffwindow.progress import SILENT, Progress


@runtime_checkable
class Batch(Protocol):
    """Tensors of a batch, which move to a device together; `units` counts what the loss is summed over."""

    @property
    def units(self) -> int:
        """Count the target tokens, or the examples."""

    def to(self, device: str) -> Self:
        """Move the tensors to a device."""


B = TypeVar("B", bound=Batch)


class Loss(NamedTuple):
    """A loss summed over its units, so that sums over accumulated or distributed batches are exact."""

    total: Tensor
    units: int


@runtime_checkable
class Task(Protocol[B]):
    """A corpus and a model for it: everything from the index of an example to the loss."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Name the metrics that `validate` can return."""

    @property
    def unit(self) -> str:
        """Name what the loss is summed over, in the plural: tokens or examples."""

    def build_model(self) -> nn.Module:
        """Build the model, freshly initialised from torch's generator."""

    def lengths(self, split: str) -> list[np.ndarray]:
        """Return the tokens per example of a split, one array per field (see `TokenBatches`)."""

    def collate(self, split: str, indices: np.ndarray) -> B:
        """Pad the examples to a batch, a function of the indices alone: another thread runs it ahead."""

    def loss(self, model: nn.Module, batch: B) -> Loss:
        """Return the training loss of a batch."""

    def validate(
        self, model: nn.Module, split: str, *, watch: str = "loss", progress: Progress = SILENT
    ) -> dict[str, float]:
        """Return quick metrics of a split, including `loss`, for curves and early stopping.

        Metrics that take long, such as BLEU, are computed only if they are the one to `watch`.
        """


R = TypeVar("R")


@dataclass(frozen=True)
class TensorBatch:
    """Tensors that move to a device together; `units` counts what the loss is summed over."""

    units: int

    def to(self, device: str) -> Self:
        """Move the tensors to a device."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def sweep(
    task: Task[B],
    split: str,
    device: str,
    work: Callable[[np.ndarray, B], R],
    *,
    max_tokens: int,
    progress: Progress = SILENT,
) -> list[tuple[np.ndarray, R]]:
    """Work on every example of a split once, shortest first; return the indices and the result of each batch.

    Batches are those of `by_batch`.
    """
    stage = "validation" if split == "valid" else "evaluation"
    return by_batch(
        task.lengths(split),
        lambda indices: work(indices, task.collate(split, indices).to(device)),
        max_tokens=max_tokens,
        progress=lambda done, total: progress(stage, done / total),
    )
