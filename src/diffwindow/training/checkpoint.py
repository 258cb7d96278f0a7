"""A folder written whole or not at all, whose hashes are checked before anything in it is used."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from diffwindow.files import flush, sha256_of, write_json
from diffwindow.models.weights import WEIGHTS, ModelFileError, read_weights

MANIFEST = "checkpoint.json"
STATE = "state.safetensors"
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that is not as it was written."""


class FormatError(ValueError):
    """A checkpoint of another version, which may be as good as any."""


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
        hashes = {path.name: sha256_of(path) for path in sorted(temporary.iterdir())}
        manifest = {"format": FORMAT, "files": hashes, "state": state}
        write_json(temporary / MANIFEST, manifest | {"sha256": _digest(manifest)})
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


def verify(folder: Path) -> dict[str, Any]:
    """Check a checkpoint's files against its manifest, and give its plain state."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        said = manifest.pop("sha256")
        files, version, state = manifest["files"], manifest["format"], manifest["state"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f"{path} is damaged") from None
    if said != _digest(manifest):
        raise CheckpointError(f"{path} is damaged")
    if version != FORMAT:
        raise FormatError(
            f"{folder} has format {version}, but this version of diffwindow reads {FORMAT}; "
            "go on with the version that wrote it"
        )
    for name, expected in files.items():
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing")
        if sha256_of(folder / name) != expected:
            raise CheckpointError(f"{folder / name} is damaged")
    return dict(state)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _rename(temporary: Path, folder: Path) -> None:
    """Rename a folder over another; what was there is moved aside first and then removed."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
