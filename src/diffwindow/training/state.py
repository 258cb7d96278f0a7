"""The state of a run beside its weights, the best validation so far, and the checkpoints that hold both."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffwindow.files import check_inside, remove_temporaries
from diffwindow.tasks.metrics import METRICS
from diffwindow.tasks.task import B, Task
from diffwindow.training.checkpoints import ENDS_EPOCH, Checkpoint, Checkpoints, read_checkpoint
from diffwindow.training.config import BEST, CHECKPOINTS, CURVES, MODEL, ORIGIN, RUN_CONFIG, TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import TrainingError
from diffwindow.training.loader import UpdateBatches
from diffwindow.training.updater import (
    Updater,
    UpdateResult,
    load_state_tensors,
    state_tensors,
    tensors_under,
)

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
        sign = METRICS[metric].sign
        better = self.value is None or sign * value > sign * self.value
        if better and math.isfinite(value):
            return Best(value, update)
        return replace(self, stale=self.stale + 1)


def check_validation(task: Task[B], config: TrainConfig) -> None:
    """Raise before training if the first validation would fail."""
    if config.watch not in task.metrics or config.watch not in METRICS:
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


def all_finite(metrics: Metrics) -> bool:
    """Return whether no metric is NaN or infinite."""
    return all(map(math.isfinite, metrics.values()))


def format_metrics(metrics: Metrics) -> str:
    """Return metrics as they are printed.

    >>> format_metrics({"loss": 1.23456, "accuracy": 0.5})
    'loss 1.235  accuracy 0.5'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


# plain values of a checkpoint in the order of its file: fields of TrainState, and the scaler's state
SAVED = ("update", "batches", "best", "skipped", "skipped_in_a_row", "scaler", "validated", ENDS_EPOCH)


@dataclass
class TrainState:
    """How far a run is: updates, sampler state, best validation, results that are not logged yet."""

    batches: dict[str, int]
    update: int = 0
    best: Best = field(default_factory=Best)
    skipped: int = 0
    skipped_in_a_row: int = 0
    pending: list[UpdateResult] = field(default_factory=list)
    # the update that was validated last
    validated: int = 0
    # whether the last update had the last batch of an epoch
    ends_epoch: bool = False

    def advance(self, result: UpdateResult, work: UpdateBatches[B]) -> None:
        """Take in the result of the next update, which was made from the batches of `work`."""
        self.update, self.batches, self.ends_epoch = result.update, work.state, work.ends_epoch
        self.skipped += result.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if result.skipped else 0
        self.pending.append(result)

    def done(self, config: TrainConfig) -> bool:
        """Return whether all updates are made, or validations have stopped improving."""
        given_up = config.patience is not None and self.best.stale >= config.patience
        return self.update >= config.max_updates or given_up

    def must_validate(self, config: TrainConfig) -> bool:
        """Return whether it is time to validate: `best` is chosen from all weights, the last included."""
        if not config.valid_every or self.validated == self.update:
            return False
        return self.update % config.valid_every == 0 or (config.final == "best" and self.done(config))

    def must_save(self, config: TrainConfig) -> bool:
        """Return whether it is time to write a checkpoint."""
        every = config.save_every
        return self.done(config) or (self.ends_epoch if every == "epoch" else self.update % every == 0)

    def check_learned(self, config: TrainConfig) -> None:
        """Raise if nothing was learned: every update was skipped, or no validation was finite."""
        remedy = "start a new run with a lower train.lr"
        if self.skipped >= self.update:
            raise TrainingError(f"all {self.update} updates were bad and skipped; {remedy}")
        validated = config.valid_every and self.update >= config.valid_every
        if validated and self.best.value is None:
            raise TrainingError(f"no validation in {self.update} updates was finite; {remedy}")

    def tensors(self, updater: Updater[B]) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint other than the model's weights."""
        moments = state_tensors(updater.optimizer, updater.model)
        tensors = {f"optimizer/{name}": tensor for name, tensor in moments.items()}
        tensors |= {f"rng/{name}": tensor for name, tensor in rng_tensors().items()}
        if self.pending:
            tensors["pending"] = torch.stack([result.sums for result in self.pending])
        return tensors

    def plain(self, updater: Updater[B]) -> dict[str, Any]:
        """Return the rest as values for JSON."""
        others = {"best": asdict(self.best), "scaler": updater.scaler.state_dict()}
        return {name: others[name] if name in others else getattr(self, name) for name in SAVED}


def check_state(checkpoint: Checkpoint) -> None:
    """Raise unless a checkpoint holds everything that a run resumes from."""
    for name in (*SAVED, "log", "batches_an_update"):
        # checkpoints of earlier versions do not know
        if name != ENDS_EPOCH and checkpoint.state.get(name) is None:
            raise ValueError(
                f"{checkpoint.folder} has no {name!r} in its state, so no run can resume from it; "
                "remove it to resume from an earlier checkpoint"
            )


def restore_state(checkpoint: Checkpoint, updater: Updater[B], device: str) -> TrainState:
    """Load a checkpoint's weights, optimizer and random generators; return its state."""
    state = checkpoint.state
    load_weights(updater.model, checkpoint)
    load_state_tensors(updater.optimizer, updater.model, tensors_under("optimizer/", checkpoint.tensors))
    load_rng_tensors(tensors_under("rng/", checkpoint.tensors))
    # empty unless the run was in fp16, and it may go on in fp16 on a GPU that has no bf16
    if state["scaler"]:
        updater.scaler.load_state_dict(state["scaler"])
    sums = checkpoint.tensors.get("pending", torch.empty(0)).to(device)
    # they were checked before they were saved, so their rows are not needed
    pending = [UpdateResult(0, row, torch.empty(0), [], []) for row in sums]
    plain = {name: state.get(name, False) for name in SAVED if name not in ("best", "scaler")}
    return TrainState(best=Best(**state["best"]), pending=pending, **plain)


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint; raise if they are of another model."""
    try:
        model.load_state_dict(checkpoint.weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{checkpoint.folder} holds another model: {reason}") from None


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def rng_tensors() -> dict[str, Tensor]:
    """Return the states of torch's, numpy's and Python's random generators as tensors."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    return {
        "torch": torch.get_rng_state(),
        "numpy": _as_bytes(json.dumps(numpy_state)),
        "python": _as_bytes(json.dumps(random.getstate())),
    }


def load_rng_tensors(tensors: dict[str, Tensor]) -> None:
    """Load what `rng_tensors` returned."""
    torch.set_rng_state(tensors["torch"])
    numpy_state = json.loads(_as_text(tensors["numpy"]))
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], np.uint32)
    np.random.set_state(numpy_state)
    version, internal, gauss_next = json.loads(_as_text(tensors["python"]))
    random.setstate((version, tuple(internal), gauss_next))


def _as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _as_text(tensor: Tensor) -> str:
    return bytes(tensor.numpy().tobytes()).decode()


# what a run writes to its folder, which may be one that holds other files; with `seen-*` rank 0 asks whether
# every process sees the folder
WRITTEN = (RUN_CONFIG, ORIGIN, CURVES, MODEL, "seen-*")


class RunCheckpoints:
    """The `last` checkpoints of a run, and the `best` one; rank 0 writes and removes them."""

    def __init__(self, folder: Path, config: TrainConfig, world: World) -> None:
        self._folder = folder
        self._config = config
        self._world = world
        self.last = Checkpoints(folder / CHECKPOINTS)
        self.best = Checkpoints(folder / BEST)

    def remove_leftovers(self) -> None:
        """Remove files that a killed process was writing; raise if a folder of checkpoints is a link."""
        if not self._world.main:
            return
        for folder in (self.last.folder, self.best.folder):
            check_inside(folder)
            remove_temporaries(folder)
        remove_temporaries(self._folder, WRITTEN)

    def restore(self, updater: Updater[B], note: Callable[[str], None]) -> tuple[TrainState, int] | None:
        """Load the newest good checkpoint, if any; return its state and the size that the log had."""
        checkpoint = self._newest(note)
        if checkpoint is None:
            return None
        saved, now = checkpoint.state["batches_an_update"], self._batches_per_update
        if saved != now:
            raise ValueError(
                f"{self._folder} has updates of {saved} batches, but {self._world.size} processes with "
                f"train.accumulate={self._config.accumulate} make {now}; change train.accumulate"
            )
        state = restore_state(checkpoint, updater, self._world.device)
        note(f"resuming from update {state.update} ({checkpoint.folder})")
        return state, int(checkpoint.state["log"])

    def _newest(self, note: Callable[[str], None]) -> Checkpoint | None:
        """Return in all processes the newest good checkpoint, which rank 0 finds."""
        newest = None
        with self._world.together():
            if self._world.main:
                newest = self.last.newest(note)
                if newest is not None:
                    check_state(newest)
        update = self._world.broadcast(None if newest is None else int(newest.state["update"]))
        return newest if newest or update is None else read_checkpoint(self.last.path(update))

    def save(
        self, state: TrainState, updater: Updater[B], save_model: Callable[[Path], None], log: int
    ) -> None:
        """Write the checkpoint of a state, with the size of the log; raise if a weight is not finite."""
        if not all(bool(weight.isfinite().all()) for weight in updater.model.parameters()):
            raise TrainingError(
                f"the weights of update {state.update} are not finite; start a new run with a lower "
                "train.lr, or with train.clip_norm"
            )
        plain = state.plain(updater) | {"log": log, "batches_an_update": self._batches_per_update}
        self.last.save(state.update, save_model, plain, state.tensors(updater))

    @property
    def _batches_per_update(self) -> int:
        return self._config.accumulate * self._world.size

    def prune(self, best: int) -> None:
        """Remove all but the last checkpoints, and that of the `best` update; the newest always stays."""
        if self._world.main:
            last = self.last.scheduled(self._config.save_every)[-self._config.keep_last :]
            self.last.prune([*last, *self.last.updates()[-1:]])
            self.best.prune([best])
