"""The best validation so far, and how long ago it was."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diffwindow.tasks.task import B
from diffwindow.training.checkpoints import Checkpoint
from diffwindow.training.optimizer import load_state_tensors, state_tensors
from diffwindow.training.rng import load_rng_tensors, rng_tensors
from diffwindow.training.updater import Outcome, Updater

LOWER_IS_BETTER = ("loss", "nll", "ppl", "perplexity")


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric, its update, and the validations since."""

    value: float | None = None
    update: int = 0
    stale: int = 0

    def after(self, update: int, value: float, metric: str) -> Best:
        """Give the state after another validation; a value that is not finite is never better.

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


@dataclass
class TrainState:
    """How far a run is: updates, where its batches stand, the best validation, what is not logged yet."""

    batches: dict[str, int]
    update: int = 0
    best: Best = field(default_factory=Best)
    skipped: int = 0
    skipped_in_a_row: int = 0
    pending: list[Outcome] = field(default_factory=list)

    def tensors(self, updater: Updater[B]) -> dict[str, Tensor]:
        """Give the tensors of a checkpoint beside the model's weights."""
        moments = state_tensors(updater.optimizer, updater.model)
        tensors = {f"optimizer/{name}": tensor for name, tensor in moments.items()}
        tensors |= {f"rng/{name}": tensor for name, tensor in rng_tensors().items()}
        if self.pending:
            tensors["pending"] = torch.stack([outcome.sums for outcome in self.pending])
        return tensors

    def plain(self, updater: Updater[B]) -> dict[str, Any]:
        """Give the rest as values for JSON."""
        return {
            "update": self.update,
            "batches": self.batches,
            "best": asdict(self.best),
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "scaler": updater.scaler.state_dict(),
        }


def restored(checkpoint: Checkpoint, updater: Updater[B], device: str) -> TrainState:
    """Put a checkpoint's weights, optimizer and generators back, and give the state it was made from."""
    state = checkpoint.state
    load_weights(updater.model, checkpoint)
    load_state_tensors(updater.optimizer, updater.model, _under("optimizer/", checkpoint.tensors))
    load_rng_tensors(_under("rng/", checkpoint.tensors))
    updater.scaler.load_state_dict(state["scaler"])
    sums = checkpoint.tensors.get("pending", torch.empty(0)).to(device)
    return TrainState(
        batches=state["batches"],
        update=state["update"],
        best=Best(**state["best"]),
        skipped=state["skipped"],
        skipped_in_a_row=state.get("skipped_in_a_row", 0),
        # looked at before they were saved: their rows are of no more interest
        pending=[Outcome(0, row, torch.empty(0), [], []) for row in sums],
    )


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Put weights into a model; those of another are an error."""
    try:
        model.load_state_dict(checkpoint.weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"{checkpoint.folder} holds another model: {reason}") from None


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
