"""Updater: the gradients of an update's batches, and one step of the optimizer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diffwindow.attention.baselines import mean_span
from diffwindow.attention.watching import mean_window, watched, window_attentions
from diffwindow.tasks.task import B, Task
from diffwindow.training.batch_loader import UpdateBatches
from diffwindow.training.config import Precision, TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import TrainingError, bad_loss, is_bad
from diffwindow.training.optimizer import learning_rate, make_optimizer, set_rate

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Objective(nn.Module, Generic[B]):
    """The summed loss of a batch as a module, so that DDP and the compiler see one forward.

    `span_penalty` is added to the loss per unit for each key of the learned spans, and `window_penalty` times
    the mean of M over the model's windows, if it has any.
    """

    def __init__(
        self,
        task: Task[B],
        model: nn.Module,
        device: str,
        precision: str,
        *,
        span_penalty: float = 0.0,
        window_penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self._span_penalty = span_penalty
        self._window_penalty = window_penalty
        self.model = model
        self._task = task
        self._device_type = device.partition(":")[0]
        self._dtype = DTYPES.get(precision)

    def forward(self, batch: B) -> Tensor:
        """Return the loss, summed over the units of the batch."""
        windows: list[Tensor] = []
        watching: AbstractContextManager[None] = nullcontext()
        if self._window_penalty:
            watching = watched(
                window_attentions(self.model), lambda *call: windows.append(mean_window(*call))
            )
        with (
            torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None),
            watching,
        ):
            loss = self._task.loss(self.model, batch)
        total, spans = loss.total, mean_span(self.model)
        if spans is not None:
            total = total + loss.units * self._span_penalty * spans
        if windows:
            total = total + loss.units * self._window_penalty * torch.stack(windows).mean()
        return total


def pick_precision(asked: Precision, device: str) -> str:
    """Return the precision to use, the best one for `auto`; raise if the device does not support it."""
    on_gpu = device.startswith("cuda")
    if asked == "auto":
        if not on_gpu:
            return "fp32"
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if asked == "fp16" and not on_gpu:
        raise ValueError(f"train.precision=fp16 needs a GPU, not {device}; use bf16, fp32 or auto")
    if asked == "bf16" and on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ValueError("train.precision=bf16: this GPU has no bf16; use fp16, fp32 or auto")
    return asked


def seed_batch(seed: int, update: int, batch: int) -> None:
    """Seed torch for one batch of an update, the same in whichever process works on it."""
    sequence = np.random.SeedSequence([seed % 2**63, update, batch])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


@dataclass(frozen=True)
class UpdateResult:
    """The losses of an update; its tensors stay on the device until they are logged or checked.

    `sums` is [loss, units] over all processes; `losses` and `units` are those of this process by batch.
    """

    update: int
    sums: Tensor
    losses: Tensor
    units: list[int]
    rows: list[np.ndarray]
    norm: Tensor | None = None
    skipped: bool = False

    def check(self, max_loss: float) -> str | None:
        """Return a sentence if the loss is bad, else None; this waits for the device."""
        total, units = self.sums.tolist()
        if not is_bad(total / units, max_loss):
            return None
        means = [loss / count for loss, count in zip(self.losses.tolist(), self.units, strict=True)]
        return bad_loss(self.update, means, self.rows, max_loss)


class Updater(Generic[B]):
    """Accumulate gradients over batches and processes, normalise them by all units, and take a step."""

    def __init__(self, task: Task[B], model: nn.Module, config: TrainConfig, world: World) -> None:
        self._config = config
        self._world = world
        self.model = model
        self.optimizer = make_optimizer(model, config)
        precision = pick_precision(config.precision, world.device)
        device_type = world.device.partition(":")[0]
        self.scaler = torch.amp.GradScaler(device_type, enabled=precision == "fp16")
        module: nn.Module = Objective(
            task,
            model,
            world.device,
            precision,
            span_penalty=config.span_penalty,
            window_penalty=config.window_penalty,
        )
        self._parallel: DistributedDataParallel | None = None
        if world.size > 1:
            module = self._parallel = DistributedDataParallel(module, gradient_as_bucket_view=True)
        self._objective = torch.compile(module, dynamic=True) if config.compile else module
        self._exact = torch.float32 if device_type == "mps" else torch.float64
        # checking each loss is free on a CPU; on a GPU it would wait for the queued work
        self._check_now = device_type == "cpu" or config.on_bad_loss == "skip"

    def __call__(self, update: int, work: UpdateBatches[B], *, measure: bool) -> UpdateResult:
        """Make an update; with `measure`, compute the norm of the gradients even if it is not clipped."""
        units = [batch.units for batch in work.batches]
        losses = self._accumulate(update, work, sum(units))
        sums = self._world.total(torch.stack([losses.sum(), self._number(sum(units))]))
        result = UpdateResult(update, sums, losses, units, work.rows)
        problem = result.check(self._config.max_loss) if self._check_now else None
        norm = None
        if problem is None and (measure or self._config.clip_norm or self._config.on_bad_loss == "skip"):
            norm = self._clip()
            if self._check_now and not self.scaler.is_enabled() and not torch.isfinite(norm):
                problem = f"the gradients of update {update} are not finite"
        if problem is None:
            set_rate(self.optimizer, learning_rate(update, self._config))
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self._config.on_bad_loss == "stop":
            raise TrainingError(
                f"{problem}; lower train.lr, or skip such updates with train.on_bad_loss=skip"
            )
        self.optimizer.zero_grad(set_to_none=True)
        if problem is not None:
            return replace(result, sums=torch.zeros_like(sums), skipped=True)
        return replace(result, norm=norm)

    def _accumulate(self, update: int, work: UpdateBatches[B], units: int) -> Tensor:
        """Add the gradients of the mean loss over all units of the update in all processes."""
        # DDP averages over processes, so each multiplies by their number; for powers of two this is exact
        scale = self._world.size / self._world.total(self._number(units))
        losses = []
        for number, batch in enumerate(work.batches):
            seed_batch(self._config.seed, update, number * self._world.size + self._world.rank)
            last = number == len(work.batches) - 1
            # synchronise once, with the gradients of the last batch
            with self._parallel.no_sync() if self._parallel and not last else nullcontext():
                total: Tensor = self._objective(batch.to(self._world.device))
                self.scaler.scale(total * scale.to(total.dtype)).backward()
            losses.append(total.detach().to(self._exact))
        return torch.stack(losses)

    def _clip(self) -> Tensor:
        """Clip the gradients if train.clip_norm is set; return their norm before."""
        self.scaler.unscale_(self.optimizer)
        limit = self._config.clip_norm or float("inf")
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def _number(self, value: float) -> Tensor:
        return torch.full((), value, dtype=self._exact, device=self._world.device)
