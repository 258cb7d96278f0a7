"""The Task protocol: all that the training loop knows of a task."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from diffwindow.data.batching import TokenBatches
from diffwindow.sharing import each


class TaskOptions(BaseModel):
    """Settings of the loss and of the examples, not of the model; each task knows which are its own.

    `block_size` cuts a language model's running text into blocks; without it, each line is an example.
    `max_length` lets a classifier read only the first tokens of a text; without it, it reads all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    block_size: Annotated[int, Field(ge=1)] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None
    valid_tokens: Annotated[int, Field(ge=1)] = 4096


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
        """Names of the metrics that `validate` returns."""

    def build_model(self) -> nn.Module:
        """Build the model, freshly initialised from torch's generator."""

    def lengths(self, split: str) -> list[np.ndarray]:
        """Return the tokens per example of a split, one array per field (see `TokenBatches`)."""

    def collate(self, split: str, indices: np.ndarray) -> B:
        """Pad the examples to a batch, a function of the indices alone: another thread runs it ahead."""

    def loss(self, model: nn.Module, batch: B) -> Loss:
        """Return the training loss of a batch."""

    def validate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Return quick metrics of a split, `loss` among them, for curves and early stopping."""

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model and its tokenizer as a folder that `from_pretrained` reads."""


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
    task: Task[B], split: str, device: str, work: Callable[[np.ndarray, B], R], *, max_tokens: int
) -> list[tuple[np.ndarray, R]]:
    """Work on every example of a split once, shortest first; return each batch's indices and result.

    No example is too long. Processes may share the batches (see `sharing`).
    """
    lengths = task.lengths(split)
    longest = max(int(field.max(initial=0)) for field in lengths)
    batches = list(TokenBatches(lengths, max_tokens=max(max_tokens, longest), shuffle=False))
    results = each(lambda indices: work(indices, task.collate(split, indices).to(device)), batches)
    return list(zip(batches, results, strict=True))
