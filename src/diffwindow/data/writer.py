"""Write a store row chunk by row chunk, so that an interrupted run can resume."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.store import (
    MANIFEST,
    MEMORY,
    OFFSET_DTYPE,
    TOKENIZER,
    VALUE_DTYPE,
    Manifest,
    StoredFile,
    is_store,
    read_manifest,
)
from diffwindow.files import (
    LOCK,
    flush,
    lock_folder,
    make_folder,
    naming,
    open_within,
    read_json,
    remove_temporaries,
    sha256_of,
    write_json,
)

PROGRESS = "progress.json"
_JSON_FILES = (PROGRESS, TOKENIZER, MANIFEST, MEMORY)
_ARRAY = re.compile(r"[^.]+\.[^.]+\.(tokens|offsets|values)")


@dataclass(frozen=True)
class Chunk:
    """Consecutive encoded rows: by field, (token bytes, lengths); by column, values."""

    rows: int
    sequences: dict[str, tuple[bytes, NDArray[np.int64]]]
    columns: dict[str, NDArray[np.int32]]


class SplitWriter:
    """Append chunks to the files of one split."""

    def __init__(self, folder: Path, split: str, itemsize: int, state: dict[str, Any] | None) -> None:
        self._folder = folder
        self._split = split
        self._itemsize = itemsize
        self.rows: int = state["rows"] if state else 0
        self._bytes: dict[str, int] = dict(state["bytes"]) if state else {}
        self._files: dict[str, IO[bytes]] = {}
        # cut off what was written after the last checkpoint; it is written again
        for name, size in self._bytes.items():
            with open_within(folder / name, "r+b") as file:
                if file.seek(0, os.SEEK_END) < size:
                    raise ValueError(
                        f"{folder / name} has lost its end; remove {folder} and prepare the corpus again"
                    )
                file.truncate(size)

    def append(self, chunk: Chunk) -> None:
        """Write the rows of a chunk."""
        for field, (tokens, lengths) in chunk.sequences.items():
            name = f"{self._split}.{field}"
            if f"{name}.offsets" not in self._bytes:
                self._write(f"{name}.offsets", np.zeros(1, OFFSET_DTYPE).tobytes())
            start = self._bytes.get(f"{name}.tokens", 0) // self._itemsize
            self._write(f"{name}.tokens", tokens)
            self._write(f"{name}.offsets", (start + np.cumsum(lengths)).astype(OFFSET_DTYPE).tobytes())
        for column, values in chunk.columns.items():
            self._write(f"{self._split}.{column}.values", values.astype(VALUE_DTYPE).tobytes())
        self.rows += chunk.rows

    def _write(self, name: str, content: bytes) -> None:
        if name not in self._files:
            self._files[name] = open_within(self._folder / name, "ab" if name in self._bytes else "wb")
        self._files[name].write(content)
        self._bytes[name] = self._bytes.get(name, 0) + len(content)

    def sync(self) -> dict[str, Any]:
        """Flush to disk and return the state to resume from."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {"rows": self.rows, "bytes": dict(self._bytes)}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class PartialStore:
    """The folder beside the future store that holds it until it is whole."""

    @classmethod
    @contextmanager
    def opened(cls, out: Path, fingerprint: dict[str, Any]) -> Iterator[Self]:
        """Resume an unfinished store or start one; raise if another process is working on it."""
        # a kill after the last rename leaves a whole store that still has its record
        folder = out if _read_progress(out, fingerprint) else out.parent / f"{out.name}.partial"
        _refuse(out, folder, fingerprint)
        make_folder(folder)
        with lock_folder(folder), naming(folder):
            # another process may have finished it meanwhile, and its record be gone
            _refuse(out, folder, fingerprint)
            remove_temporaries(folder, _JSON_FILES)
            yield cls(out, folder, fingerprint)

    def __init__(self, out: Path, folder: Path, fingerprint: dict[str, Any]) -> None:
        self.out = out
        self.folder = folder
        state = _read_progress(folder, fingerprint)
        self.state = state or {"fingerprint": fingerprint, "splits": {}}
        if state is None:
            self._clear()
            # from now on the files are known to be those of a store
            self.save()

    def _clear(self) -> None:
        """Remove what another run left; raise, and remove nothing, if anything else is there."""
        files = [file for file in self.folder.iterdir() if file.name != LOCK]
        recorded = (self.folder / PROGRESS).exists()
        for file in files:
            if not recorded or not (file.name in _JSON_FILES or _ARRAY.fullmatch(file.name)):
                raise ValueError(f"{file} does not belong to an unfinished store; move it away")
        # the record last: without it, nothing here would be known as ours
        for file in sorted(files, key=lambda file: file.name == PROGRESS):
            file.unlink()

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer, from the moment it is trained."""
        return self.folder / TOKENIZER

    def checkpoint(self, split: str, state: dict[str, Any]) -> None:
        """Record how far a split has come."""
        self.state["splits"][split] = state
        self.save()

    def save(self) -> None:
        """Record the state, so that the same call resumes from it."""
        write_json(self.folder / PROGRESS, self.state)

    def hash_files(self, split: str) -> dict[str, StoredFile]:
        """Hash the files of a split."""
        return {
            name: StoredFile(bytes=size, sha256=sha256_of(self.folder / name))
            for name, size in self.state["splits"][split]["bytes"].items()
        }

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, and rename the folder to its final name."""
        write_json(self.folder / MANIFEST, manifest.model_dump(mode="json"))
        flush(self.folder)
        self.folder.rename(self.out)
        flush(self.out.parent)
        for name in (PROGRESS, LOCK):
            (self.out / name).unlink(missing_ok=True)


def is_finished(out: Path, fingerprint: dict[str, Any]) -> bool:
    """Return whether `out` is a whole store of this fingerprint; raise if it is one of another."""
    if not is_store(out) or (out / PROGRESS).exists():
        return False
    manifest = read_manifest(out)
    # stores of earlier versions do not record their options
    if manifest.options is None:
        return False
    before = {
        "task": manifest.task,
        "settings": manifest.settings.model_dump(mode="json"),
        "inputs": {split: entry.inputs for split, entry in manifest.splits.items()},
        "options": manifest.options,
    }
    for name, value in json.loads(json.dumps(fingerprint)).items():
        if before[name] != value:
            raise ValueError(
                f"{out} exists already, and {_difference(name, before[name], value)}; "
                "remove it or choose another folder"
            )
    return True


def _difference(name: str, before: Any, now: Any) -> str:
    """Say in what a store differs from what is asked for."""
    if name == "inputs":
        return "its input files were others, or have changed"
    if isinstance(before, dict) and isinstance(now, dict):
        name, before, now = next(
            (key, before.get(key), value) for key, value in now.items() if before.get(key) != value
        )
    return f"was made with {name}={before!r}, not {now!r}"


def _read_progress(folder: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """Read how far a store has come; None if it is of another corpus or other settings, or damaged."""
    try:
        state = read_json(folder / PROGRESS)
        same = state["fingerprint"] == json.loads(json.dumps(fingerprint))
        sizes = [item for split in state["splits"].values() for item in split["bytes"].items()]
        # a damaged record could name a file outside the store
        return state if same and all(Path(name).name == name and size >= 0 for name, size in sizes) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _refuse(out: Path, folder: Path, fingerprint: dict[str, Any]) -> None:
    """Raise if `out` exists, even as a broken link, unless it is the unfinished store itself."""
    if os.path.lexists(out) and not (folder == out and _read_progress(out, fingerprint)):
        raise ValueError(f"{out} exists already; remove it or choose another folder")
