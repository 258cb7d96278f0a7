"""The manifest of a checkpoint or a trained model: the hash of each file beside it, and of itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from diffwindow.files import finite, read_json, sha256_of, write_json

MANIFEST = "checkpoint.json"
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that is not as it was written."""


class FormatError(ValueError):
    """A checkpoint of another version, which may be as any."""


def write_manifest(folder: Path, state: dict[str, Any]) -> None:
    """Hash the files of a folder and write its manifest."""
    hashes = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "files": hashes, "state": finite(state)}
    write_json(folder / MANIFEST, manifest | {"sha256": _digest(manifest)})


def verify(folder: Path) -> dict[str, Any]:
    """Check a folder's files against its manifest, and return its plain state."""
    path = folder / MANIFEST
    try:
        manifest = read_json(path)
        said = manifest.pop("sha256")
        files, version, state = dict(manifest["files"]), manifest["format"], dict(manifest["state"])
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError):
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
    return state


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
