"""Read a prepared corpus: memory-mapped tokens and offsets, a tokenizer, a manifest."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.encoder import token_dtype
from diffwindow.data.tokenizer import PAD, Tokenizer
from diffwindow.files import sha256_of

FORMAT = 1
OFFSET_DTYPE = np.dtype("<i8")
VALUE_DTYPE = np.dtype("<i4")
TASKS = {"translation": ("source", "target"), "classification": ("text",), "lm": ("text",)}


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
        """Give the number of tokens of every sequence."""
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
        """Give the number of tokens, EOS included, of every row of a field."""
        if field not in self.sequences:
            raise ValueError(f"no text field {field!r}; this store has {', '.join(self.sequences)}")
        return self.sequences[field].lengths()

    def stream(self, field: str) -> NDArray[Any]:
        """Give a field's tokens end to end, rows separated by EOS."""
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

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """Open a store, checking that its files are whole and that the tokenizer is its own."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
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

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def split(self, name: str) -> Split:
        """Give a split by name."""
        if name not in self.splits:
            raise ValueError(f"{self.folder} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def verify(self) -> None:
        """Hash every file and compare with the manifest."""
        for split, entry in self.manifest["splits"].items():
            for name, expected in entry["files"].items():
                if sha256_of(self.folder / name) != expected["sha256"]:
                    raise ValueError(
                        f"{self.folder / name} (split {split!r}) has changed since it was prepared"
                    )


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.exists():
        raise ValueError(
            f"{folder} is not a prepared corpus (no manifest.json); make one with `diffwindow prepare`"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged; prepare the corpus again") from error
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}, this version reads {FORMAT}; prepare the corpus again"
        )
    return dict(manifest)


def _open_split(folder: Path, name: str, entry: dict[str, Any], tokenizer: Tokenizer) -> Split:
    for file, expected in entry["files"].items():
        path = folder / file
        size = path.stat().st_size if path.exists() else 0
        if size != expected["bytes"]:
            raise ValueError(
                f"{path} has {size:,} bytes instead of {expected['bytes']:,}: the store is truncated; "
                "prepare it again"
            )
    dtype = token_dtype(tokenizer.vocab_size)
    sequences = {
        field: Sequences(
            _mapped(folder / f"{name}.{field}.tokens", dtype),
            _mapped(folder / f"{name}.{field}.offsets", OFFSET_DTYPE),
        )
        for field in entry["sequences"]
    }
    columns = {field: _mapped(folder / f"{name}.{field}.values", VALUE_DTYPE) for field in entry["columns"]}
    return Split(name, sequences, columns)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    with path.open("rb") as file:
        # plain arrays over the map: np.memmap costs microseconds a slice
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
