"""What the training loop knows of a task, and nothing more."""

from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
from torch import Tensor, nn


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


class Task(Protocol[B]):
    """A corpus and a model for it: everything between an index of an example and a number to minimise."""

    def build_model(self) -> nn.Module:
        """Make the model, freshly initialised from torch's generator."""

    def lengths(self, split: str) -> list[np.ndarray]:
        """Give the number of tokens of each example of a split, one array a field (see `TokenBatches`)."""

    def collate(self, split: str, indices: np.ndarray) -> B:
        """Pad the examples to a batch."""

    def loss(self, model: nn.Module, batch: B) -> Loss:
        """Give the training loss of a batch."""

    def validate(self, model: nn.Module, split: str) -> dict[str, float]:
        """Give quick metrics of a split, `loss` among them, for curves and early stopping."""
