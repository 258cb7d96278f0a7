"""Updater: one update of Adam from the batches of all processes, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, AdamW

from diffwindow.attention.base import watch
from diffwindow.attention.baselines import mean_span
from diffwindow.attention.window import window_attentions
from diffwindow.evaluation.windows import mean_window
from diffwindow.tasks.task import B, Task
from diffwindow.training.config import Precision, TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import TrainingError, bad_loss, is_bad
from diffwindow.training.loader import UpdateBatches


def make_optimizer(model: nn.Module, config: TrainConfig) -> Adam:
    """Return Adam, or AdamW if there is weight decay, which is not applied to vectors (biases, norms)."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") for p in model.parameters())
    kind = AdamW if config.weight_decay else Adam
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


def state_tensors(optimizer: Adam, model: nn.Module) -> dict[str, Tensor]:
    """Return the moments and steps by parameter, with keys such as `weight/exp_avg`."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def tensors_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def load_state_tensors(optimizer: Adam, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load what `state_tensors` returned."""
    for name, parameter in model.named_parameters():
        if state := tensors_under(f"{name}/", tensors):
            optimizer.state[parameter] = {
                key: value.to(parameter.device, torch.float32 if key == "step" else parameter.dtype)
                for key, value in state.items()
            }


def learning_rate(update: int, config: TrainConfig) -> float:
    """Return the learning rate of an update, counted from 1.

    >>> config = TrainConfig(max_updates=100, lr=1.0, warmup=10, warmup_from=0.0)
    >>> [learning_rate(update, config) for update in (1, 10, 40)]
    [0.1, 1.0, 0.5]
    """
    if update < config.warmup:
        return config.warmup_from + (config.lr - config.warmup_from) * update / config.warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(max(config.warmup, 1) / update)
    left = 1 - (update - config.warmup) / max(1, config.max_updates - config.warmup)
    share = left if config.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
    return config.final_lr + (config.lr - config.final_lr) * share


def short_of_warmup(config: TrainConfig) -> str | None:
    """Return a sentence if the run ends before its warm-up, else None.

    >>> short_of_warmup(TrainConfig(max_updates=10, lr=1.0, warmup=40, warmup_from=0.0))
    'train.warmup=40 is longer than the run: the rate rises to 0.25, not to train.lr=1; lower train.warmup'
    """
    if config.max_updates >= config.warmup:
        return None
    return (
        f"train.warmup={config.warmup} is longer than the run: the rate rises to "
        f"{learning_rate(config.max_updates, config):.2g}, not to train.lr={config.lr:g}; lower train.warmup"
    )


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
            watching = watch(window_attentions(self.model), lambda *call: windows.append(mean_window(*call)))
        with (
            torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None),
            watching,
        ):
            total = self._task.loss(self.model, batch)
        spans = mean_span(self.model)
        if spans is not None:
            total = total + batch.units * self._span_penalty * spans
        if windows:
            total = total + batch.units * self._window_penalty * torch.stack(windows).mean()
        return total


def pick_precision(asked: Precision, device: str) -> str:
    """Return the precision to use, the best one for `auto`; raise if the device does not support it."""
    on_gpu = device.startswith("cuda")
    gpu_has_bf16 = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    if asked == "auto":
        return "bf16" if gpu_has_bf16 else "fp16" if on_gpu else "fp32"
    if asked == "fp16" and not on_gpu:
        raise ValueError(f"train.precision=fp16 needs a GPU, not {device}; use bf16, fp32 or auto")
    if asked == "bf16" and on_gpu and not gpu_has_bf16:
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
            with world.bounded():
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
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(update, self._config)
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
            with (
                self._world.bounded(),
                self._parallel.no_sync() if self._parallel and not last else nullcontext(),
            ):
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
