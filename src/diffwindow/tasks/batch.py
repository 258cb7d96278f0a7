"""TensorBatch: the tensors of a batch, and a sweep over all batches of a split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from diffwindow.data.batching import TokenBatches
from diffwindow.models.mode import in_eval_mode
from diffwindow.tasks.sharing import each
from diffwindow.tasks.task import B, Task

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

    None is too long. Processes may share the batches (see `sharing`).
    """
    lengths = task.lengths(split)
    longest = max(int(field.max(initial=0)) for field in lengths)
    batches = list(TokenBatches(lengths, max_tokens=max(max_tokens, longest), shuffle=False))
    results = each(lambda indices: work(indices, task.collate(split, indices).to(device)), batches)
    return list(zip(batches, results, strict=True))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[str]:
    """Switch dropout and gradients off for a while; give the device that the model is on."""
    with in_eval_mode(model), torch.no_grad():
        yield str(next(model.parameters()).device)
