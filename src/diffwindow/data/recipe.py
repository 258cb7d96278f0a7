"""What a store is made from: readers by split, a task, a vocabulary."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from diffwindow.data.lines import Audit, CorpusError, Row, find_files
from diffwindow.data.readers import reviews
from diffwindow.data.store import text_fields
from diffwindow.data.synthetic import Part
from diffwindow.data.tokenizer import Kind, Normalization
from diffwindow.data.trees import with_phrases

Reader = Callable[[Audit], Iterator[Row]]
HubRow = dict[str, Any]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Vocabulary:
    """The kind of tokenizer and its size.

    Without a size, BPE gets one that suits the corpus, and a vocabulary of words has every word;
    `about` is the number to expect.
    """

    kind: Kind = "bpe"
    size: int | None = None
    about: int | None = None

    @property
    def expected_size(self) -> int:
        """The size as far as it is known before the corpus is read."""
        return self.size or self.about or 32_768


@dataclass(frozen=True)
class Cleaning:
    """Limits on pairs of sentences in words between spaces, as of Moses' `clean-corpus-n.perl`.

    >>> Cleaning(max_ratio=2.0).problem({"source": "a b c d e", "target": "f g"})
    'one side has more than 2 times the words of the other'
    """

    max_length: int | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        """Raise for limits that leave nothing, or are none."""
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"max_length={self.max_length} leaves no pair; give 1 or more words")
        if self.max_ratio is not None and not 1 <= self.max_ratio < math.inf:
            raise ValueError(f"max_ratio={self.max_ratio} is not a number from 1 on, such as 9")

    def problem(self, row: Row) -> str | None:
        """Return why a pair is left out, or None."""
        shorter, longer = sorted(len(str(row[side]).split()) for side in text_fields("translation"))
        if self.max_length is not None and longer > self.max_length:
            return f"more than {self.max_length:,} words"
        if self.max_ratio is not None and longer > self.max_ratio * shorter:
            return f"one side has more than {self.max_ratio:g} times the words of the other"
        return None


@dataclass(frozen=True)
class Source:
    """Rows of one split: a reader, and the files it reads (or, for generated rows, their number).

    `divided` counts how often rows were chosen by the hash of their text (see `share`).
    """

    reader: Reader
    files: tuple[Path, ...] = ()
    rows: int | None = None
    divided: int = 0

    def share(self, field: str, buckets: range) -> Source:
        """Return the rows whose text in `field` hashes into `buckets` (out of 1000)."""
        # rows that were chosen by this hash before have only some of its values: each choice has its digits
        place = 1000**self.divided

        def read(audit: Audit) -> Iterator[Row]:
            rows = self.reader(audit)
            return (row for row in rows if zlib.crc32(str(row[field]).encode()) // place % 1000 in buckets)

        return replace(self, reader=read, divided=self.divided + 1)

    def read_phrases(self, field: str) -> Source:
        """Return rows whose `field`, a bracketed tree, is its words, with the phrases beside them."""

        def read(audit: Audit) -> Iterator[Row]:
            for number, row in enumerate(self.reader(audit), 1):
                try:
                    yield with_phrases(row, field)
                except ValueError as error:
                    audit.bad(self.files[0], number, "not a bracketed tree", str(error), unit="row")

        return replace(self, reader=read)

    def clean(self, cleaning: Cleaning) -> Source:
        """Return the pairs that are neither too long nor too unequal; the others are counted as skipped."""

        def read(audit: Audit) -> Iterator[Row]:
            for number, row in enumerate(self.reader(audit), 1):
                if (problem := cleaning.problem(row)) is None:
                    yield row
                else:
                    audit.leave_out(problem, f"pair {number:,}")

        return replace(self, reader=read)

    def read(self, audit: Audit) -> Iterator[Row]:
        """Yield the rows, counting them."""
        return audit.count(self.reader(audit))

    @property
    def bytes(self) -> int:
        """Total size of the input files."""
        return sum(file.stat().st_size for path in self.files for file in _inside(path))

    def done(self, audit: Audit) -> float:
        """Return the fraction that was read so far."""
        read, total = (audit.bytes_read, self.bytes) if self.rows is None else (audit.rows, self.rows)
        return min(1.0, read / max(1, total))

    def estimated_rows(self, audit: Audit, *, sample: int) -> tuple[list[Row], int]:
        """Read up to `sample` rows, and estimate how many there are in all."""
        # kept alive until its position is known: dropping the iterator closes the file
        rows = self.read(audit)
        first = list(islice(rows, sample))
        if self.rows is not None:
            return first, self.rows
        if len(first) < sample:
            return first, len(first)
        return first, max(len(first), round(len(first) / max(self.done(audit), 1e-9)))


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a store holds.

    `variant` names what the files do not show: seed and number of generated rows, share kept, columns read.
    `moses` and `languages` are by text field: what is Moses-tokenised, and what language is known. `labels`
    names the classes by number. `normalization` is that of a new vocabulary; a given one has its own.
    """

    name: str
    task: str
    splits: dict[str, Source]
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    moses: dict[str, str] = field(default_factory=dict)
    languages: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    variant: Settings = field(default_factory=dict)
    normalization: Normalization = "nfc"

    def adjust(
        self,
        *,
        vocab_size: int | None = None,
        moses: str | None = None,
        languages: dict[str, str] | None = None,
        normalization: Normalization | None = None,
        cleaning: Cleaning | None = None,
    ) -> Recipe:
        """Return the recipe with another vocabulary size, normalization, languages, and what Moses tokenises.

        `moses` has a language per text field (`en,de`), or is `auto`: those of `languages`. `cleaning` leaves
        pairs out of the training split.
        """
        size = self.vocabulary.size if vocab_size is None else vocab_size
        known, fields = self.languages | (languages or {}), text_fields(self.task)
        if moses == "auto" and (missing := [name for name in fields if name not in known]):
            raise ValueError(f"moses=auto needs the language of {' and '.join(missing)}, which is unknown")
        named = [known[name] for name in fields] if moses == "auto" else moses.split(",") if moses else []
        if named and len(named) != len(fields):
            raise ValueError(f"moses={moses} names {len(named)} languages for the fields {', '.join(fields)}")
        tokenised = dict(zip(fields, named, strict=True)) if named else self.moses
        if tokenised and "trees" in self.variant:
            raise ValueError("Moses would cut the words of trees into others; leave moses or the trees out")
        for name, language in (known | tokenised).items():
            check_language(language, name)
        limits = {name: limit for name, limit in asdict(cleaning).items() if limit} if cleaning else {}
        if limits and self.task != "translation":
            raise ValueError(
                f"a maximum length or ratio is for pairs of sentences, but {self.name} is prepared for "
                f"{self.task}; leave it out"
            )
        cleaned = {"train": self.splits["train"].clean(cleaning)} if cleaning and limits else {}
        return replace(
            self,
            splits=self.splits | cleaned,
            variant=self.variant | limits,
            vocabulary=replace(self.vocabulary, size=size),
            moses=tokenised,
            languages=tokenised | known,
            normalization=normalization or self.normalization,
        )

    def read_phrases(self) -> Recipe:
        """Return the recipe of texts that are bracketed trees, with the phrases beside their words."""
        field = text_fields(self.task)[0]
        splits = {name: source.read_phrases(field) for name, source in self.splits.items()}
        return replace(self, splits=splits, variant=self.variant | {"trees": True})

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain data for the manifest."""
        return {
            "corpus": _show_path(Path(self.name)),
            "vocabulary": {"kind": self.vocabulary.kind, "size": self.vocabulary.size},
            "normalization": self.normalization,
            "moses": self.moses,
            "languages": self.languages,
            "labels": list(self.labels),
            "variant": self.variant,
        }

    def inputs(self) -> dict[str, list[dict[str, Any]]]:
        """Describe the input files by split: name, bytes, time of change; of a folder, those read."""
        return {
            split: [_folder(path) if path.is_dir() else _file(path) for path in source.files]
            for split, source in self.splits.items()
        }


@dataclass(frozen=True)
class Files:
    """The files of a split: where they may lie below the folder of raw files, and what reads them.

    `{side}` in a name stands for the language of each side of parallel text, `{kind}` for src and ref, and
    `*` matches several files.
    `share` keeps the rows whose text hashes to these thousandths. An optional split is left out where its
    files are not there.
    """

    reader: Callable[..., Iterator[Row]]
    names: tuple[str, ...]
    share: range | None = None
    optional: bool = False


@dataclass(frozen=True)
class Hub:
    """A dataset on the Hugging Face hub: its splits by our names, and the line for a row and a side."""

    path: str
    config: str | None
    splits: dict[str, str]
    line: Callable[[HubRow, str], str]
    header: str | None = None


@dataclass(frozen=True)
class Corpus:
    """Everything that is known of a corpus; `generate` makes the rows of one without files.

    With `moses`, its texts are Moses-tokenised by their languages. With `trees`, they are bracketed trees.
    """

    name: str
    task: str
    vocabulary: Vocabulary
    use: str
    size: str
    licence: str
    origin: str
    splits: dict[str, Files] = field(default_factory=dict)
    languages: dict[str, str] = field(default_factory=dict)
    moses: bool = False
    labels: tuple[str, ...] = ()
    hub: Hub | None = None
    preset: Settings = field(default_factory=dict)
    generate: Callable[[int, int, Part], Iterator[Row]] | None = None
    trees: bool = False

    @property
    def sides(self) -> tuple[str, ...]:
        """Languages of the files of a split: both sides of parallel text, else one file without."""
        return tuple(self.languages.values()) or ("",)

    @property
    def _placeholders(self) -> list[dict[str, str]]:
        """What stands in the names of each side's files."""
        return [{"side": side, "kind": kind} for side, kind in zip(self.sides, ("src", "ref"), strict=False)]

    def file_names(self, split: str) -> list[str]:
        """Return where the files of a split are best put."""
        first = self.splits[split].names[0]
        return list(dict.fromkeys(first.format(**side) for side in self._placeholders))

    def recipe(self, root: Path) -> Recipe:
        """Return the recipe for the files below `root`."""
        splits = {}
        for split, files in self.splits.items():
            try:
                splits[split] = self._source(root, files)
            except CorpusError:
                if not files.optional:
                    raise
        return self._recipe(splits)

    def _recipe(self, splits: dict[str, Source]) -> Recipe:
        return Recipe(
            self.name,
            self.task,
            splits,
            self.vocabulary,
            moses=self.languages if self.moses else {},
            languages=self.languages,
            labels=self.labels,
        )

    def _source(self, root: Path, files: Files) -> Source:
        sides = self._placeholders if any("{side}" in name for name in files.names) else [{"side": ""}]
        places = [[name.format(**side) for side in sides] for name in files.names]
        source = source_of(files.reader, *find_files(root, places))
        return source if files.share is None else source.share(text_fields(self.task)[0], files.share)

    def generated(self, rows: int, seed: int) -> Recipe:
        """Return the recipe of a generated corpus: `rows` for training, a tenth each to validate and test."""
        make = self.generate
        assert make is not None

        def source(part: Part, size: int) -> Source:
            return Source(lambda _: make(size, seed, part), rows=size)

        tenth = max(1, rows // 10)
        splits = {
            "train": source("train", rows),
            "valid": source("valid", tenth),
            "test": source("test", tenth),
        }
        return replace(self._recipe(splits), variant={"seed": seed, "rows": rows})


def source_of(reader: Callable[..., Iterator[Row]], *sides: tuple[Path, ...]) -> Source:
    """Read files one after the other; of parallel text, the files of both sides together."""

    def read(audit: Audit) -> Iterator[Row]:
        return chain.from_iterable(reader(*files, audit) for files in zip(*sides, strict=True))

    return Source(read, tuple(chain.from_iterable(sides)))


def check_language(language: str, field: str) -> None:
    """Raise unless a language is a code of two or three letters."""
    if not re.fullmatch(r"[a-z]{2,3}", language):
        raise ValueError(f"the language {language!r} of the {field} is not a code such as en, de or zh")


def _file(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"file": _show_path(path), "bytes": status.st_size, "changed": status.st_mtime_ns}


def _folder(path: Path) -> dict[str, Any]:
    """Describe a folder by the files that are read: how many, their bytes, a hash of their descriptions."""
    files = [_file(file) for file in sorted(_inside(path))]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    size = sum(file["bytes"] for file in files)
    return {"file": _show_path(path), "files": len(files), "bytes": size, "sha256_of_list": digest}


def _show_path(path: Path) -> str:
    """Write a path so that it can be stored, whatever the bytes of its name."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _inside(path: Path) -> Iterator[Path]:
    """Yield the files that are read: of a folder, which only IMDB has, its reviews."""
    return chain.from_iterable(reviews(path).values()) if path.is_dir() else iter([path])
