"""Check a store before it is used: its manifest's fields, its arrays' order, its files' hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from diffwindow.files import read_json, sha256_of, write_json

FORMAT = 1
MANIFEST = "manifest.json"
MEMORY = ".verified.json"
# arrays are checked in pieces, so that a store larger than memory needs little of it
_PIECE = 1 << 20

# a name of a file or a part of one: it cannot lead out of the folder
Name = Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]
Count = Annotated[int, Field(ge=0)]


class _File(BaseModel):
    bytes: Count
    sha256: str


class _Found(BaseModel):
    labels: dict[Annotated[str, Field(pattern=r"^-?\d{1,9}$")], Count]


class _Split(BaseModel):
    rows: Count
    sequences: Annotated[list[Name], Field(min_length=1)]
    columns: list[Name]
    tokens: dict[Name, Count]
    found: _Found
    files: dict[Name, _File]


class _Tokenizer(BaseModel):
    sha256: str


class _Settings(BaseModel):
    corpus: str
    # stores from before it was recorded
    normalization: Literal["nfc", "none"] = "none"
    moses: dict[str, str]
    languages: dict[str, str] = {}
    labels: list[str] = []


class _Manifest(BaseModel):
    task: Literal["translation", "classification", "lm"]
    tokenizer: _Tokenizer
    settings: _Settings
    splits: dict[Name, _Split]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a store's manifest; raise if a field is missing or of the wrong type."""
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(
            f"{folder} is not a prepared corpus (no manifest.json); make one with `diffwindow prepare`"
        )
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {manifest.get('format')!r}, this version reads {FORMAT}; "
            "prepare the corpus again"
        )
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path} is damaged at {place!r}; prepare the corpus again") from None
    return manifest


def corpus_hashes(manifest: dict[str, Any]) -> dict[str, str]:
    """Return hashes of a store's tokenizer and of the files of its splits, which decide what is computed."""
    files = {name: entry["files"] for name, entry in manifest["splits"].items()}
    text = json.dumps(files, sort_keys=True)
    return {
        "tokenizer": manifest["tokenizer"]["sha256"],
        "splits": hashlib.sha256(text.encode()).hexdigest(),
    }


def check_offsets(path: Path, offsets: NDArray[np.int64], tokens: int, rows: int) -> None:
    """Raise unless there is an offset per row and one more, and they rise from 0 to the number of tokens."""
    ends = len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == tokens
    pieces = (offsets[start : start + _PIECE + 1] for start in range(0, len(offsets), _PIECE))
    if not ends or not all((piece[1:] > piece[:-1]).all() for piece in pieces):
        raise ValueError(f"{path} is damaged: its offsets do not rise from 0 to {tokens}; {_AGAIN}")


def check_column(path: Path, values: NDArray[np.int32], rows: int, allowed: range | None) -> None:
    """Raise unless a column has a value per row and, where a range is given, all lie in it."""
    if len(values) != rows:
        raise ValueError(f"{path} is damaged: it has {len(values)} values for {rows} rows; {_AGAIN}")
    if allowed is not None and len(values):
        lowest, highest = int(values.min()), int(values.max())
        if lowest < allowed.start or highest >= allowed.stop:
            worst = lowest if lowest < allowed.start else highest
            raise ValueError(
                f"{path} is damaged: it has the value {worst}, outside {allowed.start} to "
                f"{allowed.stop - 1}; {_AGAIN}"
            )


def check_ids(path: Path, tokens: NDArray[Any], vocab_size: int) -> None:
    """Raise unless every token lies in the vocabulary."""
    for start in range(0, len(tokens), _PIECE):
        if (highest := int(tokens[start : start + _PIECE].max())) >= vocab_size:
            raise ValueError(
                f"{path} is damaged: it has the token {highest} in a vocabulary of {vocab_size:,}; {_AGAIN}"
            )


def labels_of(entry: dict[str, Any]) -> range | None:
    """Return the range of a split's labels, by its manifest; None if it has no labels."""
    labels = [int(label) for label in entry["found"]["labels"]]
    return range(min(labels), max(labels) + 1) if labels else None


def changed_files(folder: Path, files: dict[str, Any]) -> Iterator[Path]:
    """Hash files and yield those that differ from the manifest."""
    for name, expected in files.items():
        if sha256_of(folder / name) != expected["sha256"]:
            yield folder / name


class Memory:
    """Which files of a store were verified, by size, times and inode: one that is touched is verified again.

    It is kept in the store; where that cannot be written, each process verifies for itself.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._known = read_json(folder / MEMORY)
        except (OSError, ValueError):
            self._known = {}

    def marks(self, files: dict[str, Any]) -> dict[str, list[Any]]:
        """Return what tells each file from a changed one without reading it."""
        stats = {name: (self._folder / name).stat() for name in files}
        return {
            name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, files[name]["sha256"]]
            for name, stat in stats.items()
        }

    def knows(self, marks: dict[str, list[Any]]) -> bool:
        """Return whether the files were verified as they are now."""
        return all(self._known.get(name) == mark for name, mark in marks.items())

    def add(self, marks: dict[str, list[Any]]) -> None:
        """Remember that files were verified."""
        self._known |= marks
        try:
            write_json(self._folder / MEMORY, self._known)
        except OSError:
            # a store that only others may write
            return


_AGAIN = "prepare the corpus again"
