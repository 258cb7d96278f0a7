"""A folder written whole or not at all, whose hashes are checked before anything in it is used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from diffwindow.files import flush
from diffwindow.models.manifest import CheckpointError, verify, write_manifest
from diffwindow.models.weights import WEIGHTS, ModelFileError, read_weights

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
