"""Read a prepared corpus: memory-mapped tokens and offsets, a tokenizer, a manifest."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.integrity import (
    MANIFEST,
    Memory,
    changed_files,
    check_column,
    check_ids,
    check_offsets,
    labels_of,
    read_manifest,
)
from diffwindow.data.tokenizer import Tokenizer, token_dtype
from diffwindow.files import sha256_of
from diffwindow.special_tokens import PAD

OFFSET_DTYPE = np.dtype("<i8")
VALUE_DTYPE = np.dtype("<i4")
TASKS = {"translation": ("source", "target"), "classification": ("text",), "lm": ("text",)}


def is_store(folder: Path) -> bool:
    """Return whether a folder holds a prepared corpus, whole or damaged, rather than raw files."""
    return (folder / MANIFEST).exists()


class Sequences:
    """Token sequences of one field, end to end in one array; each ends in EOS."""

    def __init__(self, tokens: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.tokens = tokens
        self.offsets = offsets

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


class Split:
    """Rows of one split: token sequences by field, and integer columns such as `label`."""

    def __init__(
        self, name: str, sequences: dict[str, Sequences], columns: dict[str, NDArray[np.int32]]
    ) -> None:
        self.name = name
        self.sequences = sequences
        self.columns = columns

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


class Store:
    """An opened folder that `diffwindow prepare` wrote."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], tokenizer: Tokenizer, splits: dict[str, Split]
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.splits = splits
        self._verified: set[str] = set()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """Open a store, checking that its arrays are whole and in order and that the tokenizer is its own."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        tokenizer_file = folder / "tokenizer.json"
        if not tokenizer_file.exists() or sha256_of(tokenizer_file) != manifest["tokenizer"]["sha256"]:
            raise ValueError(
                f"{tokenizer_file} is not the tokenizer that {folder} was made with; put the original back, "
                "or prepare the corpus again"
            )
        tokenizer = Tokenizer.load(tokenizer_file)
        splits = {
            name: _open_split(folder, name, entry, tokenizer) for name, entry in manifest["splits"].items()
        }
        return cls(folder, manifest, tokenizer, splits)

    @property
    def task(self) -> str:
        """`translation`, `classification` or `lm`."""
        return str(self.manifest["task"])

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes by number; numerals in a store that names none."""
        settings: dict[str, Any] = self.manifest["settings"]
        numbers = [int(n) for entry in self.manifest["splits"].values() for n in entry["found"]["labels"]]
        names = settings.get("labels") or map(str, range(max(numbers, default=-1) + 1))
        return tuple(names)

    @property
    def languages(self) -> dict[str, str]:
        """The known languages by text field; Moses's, where a store is older than this record."""
        settings: dict[str, Any] = self.manifest["settings"]
        return dict(settings["moses"] | settings.get("languages", {}))

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def split(self, name: str) -> Split:
        """Return a split by name; its files are hashed the first time, unless they are known as they are."""
        if name not in self.splits:
            raise ValueError(f"{self.folder} has no split {name!r}; it has {', '.join(self.splits)}")
        if name not in self._verified:
            files = self.manifest["splits"][name]["files"]
            memory = Memory(self.folder)
            # taken before the files are read: a change meanwhile must not pass as verified
            marks = memory.marks(files)
            if not memory.knows(marks):
                self._verify(name)
                memory.add(marks)
            self._verified.add(name)
        return self.splits[name]

    def verify(self) -> None:
        """Hash every file and compare with the manifest."""
        for name in self.splits:
            self._verify(name)

    def _verify(self, name: str) -> None:
        for path in changed_files(self.folder, self.manifest["splits"][name]["files"]):
            raise ValueError(
                f"{path} (split {name!r}) has changed since it was prepared; put the original back, "
                "or prepare the corpus again"
            )
        for field, sequences in self.splits[name].sequences.items():
            check_ids(self.folder / f"{name}.{field}.tokens", sequences.tokens, self.tokenizer.vocab_size)


def _open_split(folder: Path, name: str, entry: dict[str, Any], tokenizer: Tokenizer) -> Split:
    dtype = token_dtype(tokenizer.vocab_size)
    sequences = {}
    for field in entry["sequences"]:
        tokens = _mapped(folder, f"{name}.{field}.tokens", entry, dtype)
        offsets = _mapped(folder, f"{name}.{field}.offsets", entry, OFFSET_DTYPE)
        check_offsets(folder / f"{name}.{field}.offsets", offsets, len(tokens), entry["rows"])
        sequences[field] = Sequences(tokens, offsets)
    columns = {}
    for field in entry["columns"]:
        values = columns[field] = _mapped(folder, f"{name}.{field}.values", entry, VALUE_DTYPE)
        allowed = labels_of(entry) if field == "label" else None
        check_column(folder / f"{name}.{field}.values", values, entry["rows"], allowed)
    return Split(name, sequences, columns)


def _mapped(folder: Path, file: str, entry: dict[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file to memory; raise unless it has the size that its manifest gives."""
    path, expected = folder / file, entry["files"].get(file, {}).get("bytes", 0)
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
