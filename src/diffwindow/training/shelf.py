"""The checkpoints of a run by update: the newest good one, the last few, the best."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from diffwindow.models.manifest import CheckpointError, verify
from diffwindow.models.weights import WEIGHTS, average_weights
from diffwindow.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

Tell = Callable[[str], None]


class Shelf:
    """A folder of checkpoints named by their update, as `checkpoints/00000100`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, update: int) -> Path:
        """Give the folder of an update's checkpoint."""
        return self.folder / f"{update:08d}"

    def updates(self) -> list[int]:
        """Give the updates that have a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def save(
        self,
        update: int,
        save_model: Callable[[Path], None],
        tensors: dict[str, Tensor],
        state: dict[str, Any],
    ) -> None:
        """Write the checkpoint of an update."""
        write_checkpoint(self.path(update), save_model, tensors, state)

    def newest(self, tell: Tell) -> Checkpoint | None:
        """Read the newest good checkpoint; damaged ones after it are reported and put aside.

        None is good: that is an error, and all stay where they are. None is there: a run begins.
        """
        damaged: list[tuple[Path, CheckpointError]] = []
        for update in reversed(self.updates()):
            try:
                found = read_checkpoint(self.path(update))
            except CheckpointError as error:
                damaged.append((self.path(update), error))
                continue
            for path, problem in damaged:
                aside = path.with_name(f"{path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
                tell(f"{problem}; put aside as {aside.name}, going on from one before it")
            return found
        if damaged:
            raise CheckpointError(
                f"{damaged[0][1]}, and {self.folder} has no good checkpoint; restore one, or remove "
                "the folder to begin again"
            )
        return None

    def scheduled(self, every: int) -> list[int]:
        """Give the updates of the schedule and the newest: one saved on a signal before it is left out."""
        updates = self.updates()
        return [update for update in updates if update % every == 0 or update == updates[-1]]

    def average(self, updates: Sequence[int]) -> dict[str, Tensor]:
        """Average the weights of checkpoints, each verified first."""
        for update in updates:
            verify(self.path(update))
        return average_weights([self.path(update) / WEIGHTS for update in updates])[0]

    def prune(self, keep: Collection[int]) -> None:
        """Remove all checkpoints but some."""
        for update in self.updates():
            if update not in keep:
                shutil.rmtree(self.path(update))

    def last_good(self) -> str:
        """Say which checkpoint a run would go on from."""
        updates = self.updates()
        if not updates:
            return "there is no checkpoint yet"
        return f"the checkpoint of update {updates[-1]} is good, and the same command goes on from it"
