"""The state of a run beside its weights: progress, optimizer, random generators."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffwindow.tasks.task import B
from diffwindow.training.checkpoints import Checkpoint
from diffwindow.training.config import TrainConfig
from diffwindow.training.failures import TrainingError
from diffwindow.training.optimizer import load_state_tensors, state_tensors
from diffwindow.training.updater import Updater, UpdateResult
from diffwindow.training.validation import Best


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

    def advance(self, result: UpdateResult, batches: dict[str, int]) -> None:
        """Take in the result of the next update, after which the sampler has the state `batches`."""
        self.update, self.batches = result.update, batches
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
        return {
            "update": self.update,
            "batches": self.batches,
            "best": asdict(self.best),
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "scaler": updater.scaler.state_dict(),
            "validated": self.validated,
        }


def check_state(checkpoint: Checkpoint) -> None:
    """Raise unless a checkpoint holds everything that a run resumes from."""
    for name in ("update", "batches", "best", "skipped", "scaler", "log", "batches_an_update"):
        if checkpoint.state.get(name) is None:
            raise ValueError(
                f"{checkpoint.folder} has no {name!r} in its state, so no run can resume from it; "
                "remove it to resume from an earlier checkpoint"
            )


def restore_state(checkpoint: Checkpoint, updater: Updater[B], device: str) -> TrainState:
    """Load a checkpoint's weights, optimizer and random generators; return its state."""
    state = checkpoint.state
    load_weights(updater.model, checkpoint)
    load_state_tensors(updater.optimizer, updater.model, _under("optimizer/", checkpoint.tensors))
    load_rng_tensors(_under("rng/", checkpoint.tensors))
    # empty unless the run was in fp16, and it may go on in fp16 on a GPU that has no bf16
    if state["scaler"]:
        updater.scaler.load_state_dict(state["scaler"])
    sums = checkpoint.tensors.get("pending", torch.empty(0)).to(device)
    return TrainState(
        batches=state["batches"],
        update=state["update"],
        best=Best(**state["best"]),
        skipped=state["skipped"],
        skipped_in_a_row=state.get("skipped_in_a_row", 0),
        # an older checkpoint says only whether a signal stopped the validation of its update
        validated=state.get("validated", 0 if state.get("must_validate") else state["update"]),
        # they were checked before they were saved, so their rows are not needed
        pending=[UpdateResult(0, row, torch.empty(0), [], []) for row in sums],
    )


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint; raise if they are of another model."""
    try:
        model.load_state_dict(checkpoint.weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{checkpoint.folder} holds another model: {reason}") from None


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


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
