"""Checkpoints: folders written whole or not at all, whose hashes are checked before they are used."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from diffwindow.files import read_json
from diffwindow.models.weights import (
    MODEL_MANIFEST,
    WEIGHTS,
    CheckpointError,
    ModelFileError,
    average_weights,
    read_weights,
    verify,
    write_folder,
    write_tensors,
)

STATE = "state.safetensors"
# of a checkpoint's state: whether its update had the last batch of an epoch
ENDS_EPOCH = "ends_epoch"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the model's weights, the other tensors of the run, and its plain state."""

    folder: Path
    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Verify every file against the manifest and read the checkpoint."""
    state = verify(folder)
    try:
        weights, _ = read_weights(folder / WEIGHTS)
        tensors = read_weights(folder / STATE)[0] if (folder / STATE).exists() else {}
    except ModelFileError as error:
        raise CheckpointError(str(error)) from error
    return Checkpoint(folder, weights, tensors, state)


class Checkpoints:
    """A folder of checkpoints, each named by its update, such as `checkpoints/00000100`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, update: int) -> Path:
        """Return the checkpoint folder of an update."""
        return self.folder / f"{update:08d}"

    def updates(self) -> list[int]:
        """Return the updates that have a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        names = [path.name for path in self.folder.iterdir() if path.name.isdecimal()]
        return sorted(int(name) for name in names if name == self.path(int(name)).name)

    def save(
        self,
        update: int,
        save_model: Callable[[Path], None],
        state: dict[str, Any],
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        """Write the model, the plain state and other tensors of an update, all or nothing."""

        def write_files(folder: Path) -> None:
            save_model(folder)
            if tensors:
                # copies, because safetensors refuses tensors that share memory
                copies = {name: x.detach().cpu().clone() for name, x in tensors.items()}
                write_tensors(folder / STATE, copies)

        write_folder(self.path(update), write_files, state)

    def newest(self, note: Callable[[str], None]) -> Checkpoint | None:
        """Read the newest good checkpoint; report newer, damaged ones with `note` and rename them.

        Raise if every checkpoint is damaged; return None if there are none.
        """
        damaged: list[tuple[Path, CheckpointError]] = []
        for update in reversed(self.updates()):
            try:
                checkpoint = read_checkpoint(self.path(update))
            except CheckpointError as error:
                damaged.append((self.path(update), error))
                continue
            for path, problem in damaged:
                aside = path.with_name(f"{path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
                note(f"{problem}; renamed to {aside.name}, resuming from an earlier checkpoint")
            return checkpoint
        if damaged:
            raise CheckpointError(
                f"{damaged[0][1]}, and {self.folder} has no good checkpoint; restore one, or remove "
                "the folder to start again"
            )
        return None

    def scheduled(self, every: int | Literal["epoch"]) -> list[int]:
        """Return the updates that are multiples of `every` and the newest, or those that end an epoch.

        Others were saved when a signal stopped the run, or at its end within an epoch, and are no part of an
        average; the newest is, if no epoch has ended.
        """
        updates = self.updates()
        if every == "epoch":
            return [update for update in updates if self._ends_epoch(update)] or updates[-1:]
        return [update for update in updates if update % every == 0 or update == updates[-1]]

    def _ends_epoch(self, update: int) -> bool:
        """Read whether an update ended an epoch; a damaged record is told of when the checkpoint is read."""
        try:
            return bool(read_json(self.path(update) / MODEL_MANIFEST)["state"].get(ENDS_EPOCH))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False

    def average(self, updates: Sequence[int]) -> dict[str, Tensor]:
        """Return the average weights of checkpoints; each is verified first."""
        for update in updates:
            verify(self.path(update))
        return average_weights([self.path(update) / WEIGHTS for update in updates])[0]

    def prune(self, keep: Collection[int]) -> None:
        """Remove all checkpoints except those of the updates in `keep`."""
        for update in self.updates():
            if update not in keep:
                shutil.rmtree(self.path(update))

    def last_good(self) -> str:
        """Return a sentence that names the checkpoint that the run would resume from."""
        updates = self.updates()
        if not updates:
            return "there is no checkpoint yet"
        return f"the newest checkpoint is that of update {updates[-1]}, and the same command resumes from it"
