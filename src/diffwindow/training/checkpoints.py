"""A folder written whole or not at all, whose hashes are checked before anything in it is used."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from diffwindow.files import flush
from diffwindow.models.manifest import CheckpointError, verify, write_manifest
from diffwindow.models.weights import WEIGHTS, ModelFileError, average_weights, read_weights

STATE = "state.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """An opened, verified checkpoint: the model's weights, the loop's tensors, its plain state."""

    folder: Path
    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(
    folder: Path, save_model: Callable[[Path], None], tensors: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Write a checkpoint beside `folder`, flush it to disk, then give it its name."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        save_model(temporary)
        if tensors:
            # copies, because safetensors refuses tensors that share memory
            save_file({name: x.detach().cpu().clone() for name, x in tensors.items()}, temporary / STATE)
        write_manifest(temporary, state)
        for path in temporary.iterdir():
            flush(path)
        flush(temporary)
        _rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_checkpoint(folder: Path) -> Checkpoint:
    """Verify every file against the manifest and read the checkpoint."""
    state = verify(folder)
    try:
        weights, _ = read_weights(folder / WEIGHTS)
        tensors = read_weights(folder / STATE)[0] if (folder / STATE).exists() else {}
    except ModelFileError as error:
        raise CheckpointError(str(error)) from error
    return Checkpoint(folder, weights, tensors, state)


def _rename(temporary: Path, folder: Path) -> None:
    """Rename a folder over another; what was there is moved aside first and then removed."""
    old = folder.with_name(f".{folder.name}.old")
    _remove(old)
    if folder.exists() or folder.is_symlink():
        folder.rename(old)
    temporary.rename(folder)
    flush(folder.parent)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a folder, or a link to one but not what it points to."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


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
