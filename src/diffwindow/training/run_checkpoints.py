"""RunCheckpoints: the checkpoints that a run resumes from, and that of its best validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diffwindow.files import check_inside, remove_temporaries
from diffwindow.tasks.task import B
from diffwindow.training.checkpoints import Checkpoint, Checkpoints, read_checkpoint
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.failures import TrainingError
from diffwindow.training.run_folder import BEST, CHECKPOINTS, CONFIG, CURVES, MODEL, ORIGIN
from diffwindow.training.train_state import TrainState, check_state, restore_state
from diffwindow.training.updater import Updater

# what a run writes to its folder, which may be one that holds other files
WRITTEN = (CONFIG, ORIGIN, CURVES, MODEL, "seen-*")


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
        (update,) = self._world.broadcast_numbers([-1.0 if newest is None else float(newest.state["update"])])
        if update < 0:
            return None
        return newest or read_checkpoint(self.last.path(int(update)))

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
        self.last.save(state.update, save_model, state.tensors(updater), plain)

    @property
    def _batches_per_update(self) -> int:
        return self._config.accumulate * self._world.size

    def to_average(self) -> list[int]:
        """Return the updates whose checkpoints make the average of the run."""
        return self.last.scheduled(self._config.save_every)[-self._config.average_last :]

    def prune(self, best: int) -> None:
        """Remove all but the last checkpoints, and that of the `best` update."""
        if self._world.main:
            self.last.prune(self.last.scheduled(self._config.save_every)[-self._config.keep_last :])
            self.best.prune([best])
