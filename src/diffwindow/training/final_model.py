"""The final model of a run: the last, the best, or the average of the last checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from diffwindow.models.weights import CheckpointError
from diffwindow.training.checkpoints import read_checkpoint
from diffwindow.training.config import TrainConfig
from diffwindow.training.logs import Record
from diffwindow.training.run_checkpoints import RunCheckpoints
from diffwindow.training.train_state import TrainState, load_weights
from diffwindow.training.validation import Best


def load_final_weights(
    model: nn.Module, state: TrainState, config: TrainConfig, checkpoints: RunCheckpoints
) -> str:
    """Load the weights that `train.final` asks for into the trained model; return where they are from."""
    try:
        if config.final == "average":
            updates = checkpoints.to_average()
            model.load_state_dict(checkpoints.last.average(updates))
            return f"the average of updates {', '.join(map(str, updates))}"
        if config.final == "best" and state.best.value is not None:
            load_weights(model, read_checkpoint(checkpoints.best.path(state.best.update)))
            return f"the best, of update {state.best.update}"
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; train.final={config.final} needs it: restore it from a copy, or start a new run"
        ) from None
    return f"of update {state.update}"


def worse_average(value: float, records: Sequence[Record], config: TrainConfig) -> str | None:
    """Return a sentence if the averaged model validates worse than the last one in the log, else None.

    `value` is the average's metric to watch.
    """
    valid = [record for record in records if record["kind"] == "valid"]
    if not valid or valid[-1][config.watch] is None:
        return None
    last = Best(valid[-1][config.watch], valid[-1]["update"])
    if value == last.value or last.after(last.update, value, config.watch).value != last.value:
        return None
    return (
        f"the averaged model validates worse than that of update {last.update}: {config.watch} "
        f"{value:.4g}, not {last.value:.4g}; keep the last one with train.final=last, or average "
        f"fewer than train.average_last={config.average_last} checkpoints"
    )
