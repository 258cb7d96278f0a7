"""Read a prepared corpus: memory-mapped tokens and offsets, a tokenizer, a manifest, and their hashes."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_serializer

from diffwindow.data.tokenizer import Tokenizer, token_dtype
from diffwindow.files import read_json, sha256_of, write_json
from diffwindow.special_tokens import PAD

OFFSET_DTYPE = np.dtype("<i8")
VALUE_DTYPE = np.dtype("<i4")
# stores have called language models so from the first
_STORED_NAMES = {"language-model": "lm"}


def text_fields(task: str) -> tuple[str, ...]:
    """Name the text fields of a task's rows."""
    return ("source", "target") if task == "translation" else ("text",)


def full_name(task: Any) -> Any:
    """Return the name of a task, which stores and runs of version 0.2 may have shortened."""
    return next((name for name, short in _STORED_NAMES.items() if short == task), task)


def is_store(folder: Path) -> bool:
    """Return whether a folder holds a prepared corpus, whole or damaged, rather than raw files."""
    return (folder / MANIFEST).exists()


@dataclass(eq=False, repr=False)
class Sequences:
    """Token sequences of one field, end to end in one array; each ends in EOS."""

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> NDArray[np.int32]:
        """Return the number of tokens of every sequence."""
        lengths = np.empty(len(self), np.int32)
        np.subtract(self.offsets[1:], self.offsets[:-1], out=lengths, casting="same_kind")
        return lengths

    def padded(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        """Gather sequences as rows of one array, padded on the right with 0."""
        starts = self.offsets[indices]
        lengths = self.offsets[np.asarray(indices) + 1] - starts
        columns = np.arange(lengths.max(initial=0))
        inside = columns < lengths[:, None]
        places = np.where(inside, starts[:, None] + columns, 0)
        return np.where(inside, self.tokens[places], PAD).astype(np.int64)


@dataclass(eq=False, repr=False)
class Split:
    """Rows of one split: token sequences by field, and integer columns such as `label`."""

    name: str
    sequences: dict[str, Sequences]
    columns: dict[str, NDArray[np.int32]]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the sequence fields, then of the integer columns."""
        return (*self.sequences, *self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.sequences.values())))

    def __getitem__(self, index: int) -> dict[str, NDArray[Any] | int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a split with {len(self)} rows")
        index %= len(self)
        row: dict[str, NDArray[Any] | int] = {name: field[index] for name, field in self.sequences.items()}
        return row | {name: int(values[index]) for name, values in self.columns.items()}

    def lengths(self, field: str) -> NDArray[np.int32]:
        """Return the number of tokens, EOS included, of every row of a field."""
        if field not in self.sequences:
            raise ValueError(f"no text field {field!r}; this store has {', '.join(self.sequences)}")
        return self.sequences[field].lengths()

    def stream(self, field: str) -> NDArray[Any]:
        """Return a field's tokens end to end, rows separated by EOS."""
        return self.sequences[field].tokens


@dataclass(eq=False, repr=False)
class Store:
    """An opened folder that `diffwindow prepare` wrote."""

    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    splits: dict[str, Split]

    def __post_init__(self) -> None:
        self._verified: set[str] = set()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """Open a store, checking that its arrays are whole and in order and that the tokenizer is its own."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        tokenizer_file = folder / TOKENIZER
        if not tokenizer_file.exists() or sha256_of(tokenizer_file) != manifest.tokenizer.sha256:
            raise ValueError(
                f"{tokenizer_file} is not the tokenizer that {folder} was made with; put the original back, "
                f"or {_AGAIN}"
            )
        tokenizer = Tokenizer.load(tokenizer_file)
        dtype = token_dtype(tokenizer.vocab_size)
        splits = {name: _open_split(folder, name, entry, dtype) for name, entry in manifest.splits.items()}
        return cls(folder, manifest, tokenizer, splits)

    @property
    def task(self) -> str:
        """`translation`, `classification` or `language-model`."""
        return self.manifest.task

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes by number; numerals in a store that names none."""
        numbers = [int(n) for entry in self.manifest.splits.values() for n in entry.found.labels]
        return self.manifest.settings.labels or tuple(map(str, range(max(numbers, default=-1) + 1)))

    @property
    def languages(self) -> dict[str, str]:
        """The known languages by text field."""
        return self.manifest.settings.moses | self.manifest.settings.languages

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def split(self, name: str) -> Split:
        """Return a split by name; its files are hashed the first time, unless they are known as they are."""
        if name not in self.splits:
            raise ValueError(f"{self.folder} has no split {name!r}; it has {', '.join(self.splits)}")
        if name not in self._verified:
            try:
                known = read_json(self.folder / MEMORY)
            except (OSError, ValueError):
                known = {}
            # taken before the files are read: a change meanwhile must not pass as verified
            marks = self._marks(name)
            if not marks.items() <= known.items():
                self._verify(name)
                # where the store cannot be written, each process verifies for itself
                with suppress(OSError):
                    write_json(self.folder / MEMORY, known | marks)
            self._verified.add(name)
        return self.splits[name]

    def _marks(self, name: str) -> dict[str, list[Any]]:
        """Return what tells each file of a split from a changed one without reading it."""
        files = self.manifest.splits[name].files
        stats = {file: (self.folder / file).stat() for file in files}
        return {
            file: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, files[file].sha256]
            for file, stat in stats.items()
        }

    def verify(self) -> None:
        """Hash every file and compare with the manifest."""
        for name in self.splits:
            self._verify(name)

    def _verify(self, name: str) -> None:
        for file, expected in self.manifest.splits[name].files.items():
            if sha256_of(self.folder / file) != expected.sha256:
                raise ValueError(
                    f"{self.folder / file} (split {name!r}) has changed since it was prepared; "
                    f"put the original back, or {_AGAIN}"
                )
        for field, sequences in self.splits[name].sequences.items():
            check_ids(self.folder / f"{name}.{field}.tokens", sequences.tokens, self.tokenizer.vocab_size)


def _open_split(folder: Path, name: str, entry: SplitEntry, dtype: np.dtype[Any]) -> Split:
    sequences = {}
    for field in entry.sequences:
        tokens = _map_file(folder, f"{name}.{field}.tokens", entry, dtype)
        offsets = _map_file(folder, f"{name}.{field}.offsets", entry, OFFSET_DTYPE)
        check_offsets(folder / f"{name}.{field}.offsets", offsets, len(tokens), entry.rows)
        sequences[field] = Sequences(tokens, offsets)
    labels = [int(label) for label in entry.found.labels]
    columns = {}
    for field in entry.columns:
        values = columns[field] = _map_file(folder, f"{name}.{field}.values", entry, VALUE_DTYPE)
        allowed = labels if field == "label" else []
        check_column(folder / f"{name}.{field}.values", values, entry.rows, allowed)
    return Split(name, sequences, columns)


def _map_file(folder: Path, file: str, entry: SplitEntry, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file to memory; raise unless it has the size that its manifest gives."""
    path = folder / file
    expected = entry.files[file].bytes if file in entry.files else 0
    size = path.stat().st_size if path.is_file() else 0
    if size != expected or size % dtype.itemsize:
        raise ValueError(
            f"{path} has {size:,} bytes instead of {expected:,}: the store is truncated; prepare it again"
        )
    if size == 0:
        return np.empty(0, dtype)
    with path.open("rb") as opened:
        # plain arrays over the map: np.memmap costs microseconds per slice
        return np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), dtype)


FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
# which files were verified, by size, times and inode: one that is touched is verified again
MEMORY = ".verified.json"
_AGAIN = "prepare the corpus again"
# arrays are checked in pieces, so that a store larger than memory needs little of it
_PIECE = 1 << 20

# a name of a file or a part of one: it cannot lead out of the folder
Name = Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]
Count = Annotated[int, Field(ge=0)]


# The manifest is written with its fields in this order. Fields with defaults are missing in older stores.
class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class StoredFile(_Part):
    """Size and hash of a file."""

    bytes: Count
    sha256: str


class Found(_Part):
    """What the reader of a split found: rows, rows by label, and skipped rows by problem."""

    rows: Count = 0
    labels: dict[Annotated[str, Field(pattern=r"^-?\d{1,9}$")], Count]
    skipped: dict[str, Count] = {}
    first_skipped: dict[str, str] = {}


class SplitEntry(_Part):
    """A split: rows, fields, tokens by field, and its files by name; `inputs` are what it was made from."""

    rows: Count
    sequences: Annotated[tuple[Name, ...], Field(min_length=1)]
    columns: tuple[Name, ...]
    tokens: dict[Name, Count]
    found: Found
    inputs: list[dict[str, Any]] | None = None
    files: dict[Name, StoredFile]


class TokenizerEntry(_Part):
    """Hash, kind and size of the tokenizer."""

    sha256: str
    kind: str = ""
    vocab_size: Count = 0


class VocabularySettings(_Part):
    """The vocabulary that was asked for; without a size, a vocabulary of words has all."""

    kind: str
    size: int | None


class StoreSettings(_Part):
    """The settings of a store, see `Recipe`."""

    corpus: str
    vocabulary: VocabularySettings | None = None
    normalization: Literal["nfc", "none"] = "none"
    moses: dict[str, str]
    languages: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    variant: dict[str, Any] = {}


class Manifest(_Part):
    """What a store holds and what it was made from."""

    format: Literal[1] = FORMAT
    task: Annotated[str, BeforeValidator(full_name)]
    tokenizer: TokenizerEntry
    settings: StoreSettings
    options: dict[str, Any] | None = None
    splits: dict[Name, SplitEntry]

    @field_serializer("task")
    def _stored_name(self, task: str) -> str:
        return _STORED_NAMES.get(task, task)


def read_manifest(folder: Path) -> Manifest:
    """Read a store's manifest; raise if a field is missing or of the wrong type."""
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(
            f"{folder} is not a prepared corpus (no manifest.json); make one with `diffwindow prepare`"
        )
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {manifest.get('format')!r}, this version reads {FORMAT}; {_AGAIN}"
        )
    try:
        return Manifest.model_validate(manifest)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{path} is damaged at {place!r}; {_AGAIN}") from None


def corpus_hashes(manifest: Manifest) -> dict[str, str]:
    """Return hashes of a store's tokenizer and of the files of its splits, which decide what is computed."""
    files = {name: entry.model_dump()["files"] for name, entry in manifest.splits.items()}
    text = json.dumps(files, sort_keys=True)
    return {"tokenizer": manifest.tokenizer.sha256, "splits": hashlib.sha256(text.encode()).hexdigest()}


def check_offsets(path: Path, offsets: NDArray[np.int64], tokens: int, rows: int) -> None:
    """Raise unless there is an offset per row and one more, and they rise from 0 to the number of tokens."""
    ends = len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == tokens
    pieces = (offsets[start : start + _PIECE + 1] for start in range(0, len(offsets), _PIECE))
    if not ends or not all((piece[1:] > piece[:-1]).all() for piece in pieces):
        raise ValueError(f"{path} is damaged: its offsets do not rise from 0 to {tokens}; {_AGAIN}")


def check_column(path: Path, values: NDArray[np.int32], rows: int, allowed: list[int]) -> None:
    """Raise unless a column has a value per row and, where some are given, all lie in their range."""
    if len(values) != rows:
        raise ValueError(f"{path} is damaged: it has {len(values)} values for {rows} rows; {_AGAIN}")
    for value in (values.min(), values.max()) if allowed and rows else ():
        if not min(allowed) <= value <= max(allowed):
            raise ValueError(
                f"{path} is damaged: it has the value {value}, outside {min(allowed)} to {max(allowed)}; "
                f"{_AGAIN}"
            )


def check_ids(path: Path, tokens: NDArray[Any], vocab_size: int) -> None:
    """Raise unless every token lies in the vocabulary."""
    for start in range(0, len(tokens), _PIECE):
        if (highest := int(tokens[start : start + _PIECE].max())) >= vocab_size:
            raise ValueError(
                f"{path} is damaged: it has the token {highest} in a vocabulary of {vocab_size:,}; {_AGAIN}"
            )
