"""Objective: a task's loss as a module, so that DDP and the compiler see one forward."""

from __future__ import annotations

from typing import Generic

import torch
from torch import Tensor, nn

from diffwindow.modules.span_attention import mean_span
from diffwindow.tasks.task import B, Task
from diffwindow.training.config import Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Objective(nn.Module, Generic[B]):
    """Compute the summed loss of a batch, with autocast where the precision asks for it.

    `span_penalty` is added to the loss per unit for each key of the learned spans, if the model has any.
    """

    def __init__(
        self, task: Task[B], model: nn.Module, device: str, precision: str, *, span_penalty: float = 0.0
    ) -> None:
        super().__init__()
        self._span_penalty = span_penalty
        self.model = model
        self._task = task
        self._device_type = device.partition(":")[0]
        self._dtype = DTYPES.get(precision)

    def forward(self, batch: B) -> Tensor:
        """Return the loss, a sum over the batch's units."""
        with torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None):
            loss = self._task.loss(self.model, batch)
        spans = mean_span(self.model)
        return loss.total if spans is None else loss.total + loss.units * self._span_penalty * spans


def pick_precision(asked: Precision, device: str) -> str:
    """Turn `auto` into the best that the device has; what it has not is an error."""
    on_gpu = device.startswith("cuda")
    if asked == "auto":
        if not on_gpu:
            return "fp32"
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if asked == "fp16" and not on_gpu:
        raise ValueError(f"train.precision=fp16 needs a GPU, not {device}; use bf16, fp32 or auto")
    if asked == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
        raise ValueError("train.precision=bf16: this GPU has no bf16; use fp16, fp32 or auto")
    return asked
