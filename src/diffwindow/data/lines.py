"""Read lines and tables of text files, and count what was read and what was left out."""

from __future__ import annotations

import codecs
import gzip
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

Row = dict[str, str | int]


class CorpusError(ValueError):
    """A corpus that cannot be read as asked; the message names file, line and fix."""


class NoFolderError(CorpusError):
    """A corpus made from files, but no folder to find them in."""


class NoColumnError(CorpusError):
    """A table without the columns that are looked for."""


class BadRowError(CorpusError):
    """A bad row that `skip_bad` would leave out."""


@dataclass
class Audit:
    """Count what is read; a bad row is an error, or counted when `skip_bad`.

    >>> audit = Audit(skip_bad=True)
    >>> audit.bad(Path("train.tsv"), 7, "unknown label", "'maybe'")
    >>> audit.skipped, audit.first_skipped
    (Counter({'unknown label': 1}), {'unknown label': 'train.tsv, line 7'})
    """

    skip_bad: bool = False
    rows: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    _closed_bytes: int = 0
    _open: list[BufferedReader] = field(default_factory=list)

    def bad(self, path: Path, line: int, problem: str, detail: str = "", *, unit: str = "line") -> None:
        """Raise on a bad row, or count it under `problem`; `line` may count rows, which `unit` then says."""
        place = f"{path}, {unit} {line}"
        if not self.skip_bad:
            raise BadRowError(f"{place}: {problem}{': ' + detail if detail else ''}; fix the file")
        self.leave_out(problem, place)

    def leave_out(self, problem: str, place: str) -> None:
        """Count a good row that was asked to be left out under `problem`."""
        self.skipped[problem] += 1
        self.first_skipped.setdefault(problem, place)

    def count(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Pass rows through, counting them and their labels; at the end, or an error, close their files."""
        with self.reading():
            for row in rows:
                self.rows += 1
                if "label" in row:
                    self.labels[int(row["label"])] += 1
                yield row

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Close the files that are opened in the context at its end, after an error too."""
        try:
            yield
        finally:
            for file in self._open:
                file.close()
            self._open.clear()

    @contextmanager
    def following(self, file: BufferedReader, size: int) -> Iterator[None]:
        """Follow the position of an input file; once finished, it counts as wholly read."""
        self._open.append(file)
        try:
            yield
        finally:
            if file in self._open:
                self._open.remove(file)
                self.read_whole(size)

    def read_whole(self, size: int) -> None:
        """Count a file that was read at once."""
        self._closed_bytes += size

    @property
    def bytes_read(self) -> int:
        """Bytes of the (compressed) input files read so far."""
        return self._closed_bytes + sum(file.tell() for file in self._open)

    def summary(self) -> dict[str, Any]:
        """Return the counts as plain data for a manifest."""
        return {
            "rows": self.rows,
            "labels": {str(label): self.labels[label] for label in sorted(self.labels)},
            "skipped": dict(self.skipped),
            "first_skipped": dict(self.first_skipped),
        }


SUFFIXES = ("", ".gz", ".xz")
# bounds on the memory and time of a row: no sentence and no word is longer
MAX_LINE = 1_000_000
MAX_WORD = 10_000
# a first line of more bytes than this that holds carriage returns is several
_LONG_LINE = 1 << 13
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1}}}")
_UTF_16 = "UTF-16 text; save it as UTF-8"
# how files begin that are no UTF-8 text, what they are, and what to do
FOREIGN = {
    codecs.BOM_UTF16_LE: _UTF_16,
    codecs.BOM_UTF16_BE: _UTF_16,
    b"PAR1\x15": "a Parquet file; write its rows as JSON lines, CSV or TSV",
    b"ARROW1\0\0": "an Arrow file; write its rows as JSON lines, CSV or TSV",
    b"PK\x03\x04": "a zip archive or a spreadsheet; give a text file, such as CSV or TSV",
    b"\x1f\x8b": "compressed; give it a name that ends in .gz",
    b"\xfd7zXZ": "compressed; give it a name that ends in .xz",
}

# what reading a damaged archive raises
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


def name_ending(path: Path) -> str:
    """Return how a file's name ends, but for that of a compressed one.

    >>> name_ending(Path("newstest2014-deen-ref.de.sgm.gz"))
    '.sgm'
    """
    return next((end for end in reversed(path.suffixes) if end not in SUFFIXES), "").lower()


def unpacked(path: Path, raw: BufferedReader) -> IO[bytes]:
    """Return the content of an open file, decompressed if its name ends in .gz or .xz."""
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        case ".xz":
            return lzma.LZMAFile(raw)
        case _:
            return raw


def raw_lines(path: Path, audit: Audit) -> Iterator[bytes]:
    """Yield each line as bytes, without its line end.

    Only a newline ends a line: a Unicode line separator inside a sentence must not shift one side of a
    parallel corpus.
    """
    number = 0
    with opened(path) as raw, audit.following(raw, path.stat().st_size):
        try:
            for line in bounded_lines(unpacked(path, raw), path):
                number += 1
                yield line
        except DAMAGED as error:
            audit.bad(path, number + 1, "the archive is truncated or damaged", str(error))


def opened(path: Path) -> BufferedReader:
    """Open a regular file; any other, such as a pipe, cannot be read twice and may never end."""
    if path.exists() and not path.is_file():
        raise CorpusError(f"{path} is not a regular file; give a plain, .gz or .xz text file")
    return path.open("rb")


def bounded_lines(file: IO[bytes], name: Path | str) -> Iterator[bytes]:
    """Yield each line without its end; one above `MAX_LINE` bytes is cut to one byte more than that.

    Raise for another format than text, or if carriage returns alone end the lines, which would be one then.
    """
    lines = _cut_lines(file)
    first = list(islice(lines, 1))
    if first:
        check_text(first[0], name)
    if first and b"\r" in first[0][:_LONG_LINE]:
        # a carriage return inside of a line may be one of its characters
        first += islice(lines, 1)
        if len(first) == 1 or len(first[0]) > _LONG_LINE:
            raise CorpusError(f"{name} ends its lines with carriage returns alone; save it with newlines")
    yield from chain(first, lines)


def _cut_lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE + 2):
        # the rest of a long line is read in pieces and dropped
        rest = line
        while len(rest) == MAX_LINE + 2 and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE + 2)
        yield line.rstrip(b"\r\n")[: MAX_LINE + 1]


def too_long(raw: bytes) -> str | None:
    """Return what is too long about a line, or None."""
    if len(raw) > MAX_LINE:
        return f"a line of more than {MAX_LINE:,} bytes"
    if len(raw) > MAX_WORD and _LONG_WORD.search(raw.decode("utf-8", "replace")):
        return f"a word of more than {MAX_WORD:,} characters"
    return None


def without_mark(raw: bytes, number: int) -> bytes:
    """Return a line without the byte order mark that the first of a file may begin with."""
    return raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw


def check_text(first: bytes, path: Path | str) -> None:
    """Raise if the first line of a file begins as another format than text does."""
    for beginning, problem in FOREIGN.items():
        if first.startswith(beginning):
            raise CorpusError(f"{path} is {problem}")


def decode_line(raw: bytes, path: Path, number: int, audit: Audit) -> str | None:
    """Decode a line as UTF-8; None when it is not valid and bad rows are skipped."""
    raw = without_mark(raw, number)
    if problem := too_long(raw):
        audit.bad(path, number, problem)
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        audit.bad(path, number, "invalid UTF-8", f"byte 0x{raw[error.start]:02x} at column {error.start + 1}")
        return None


def text_lines(path: Path, audit: Audit) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each valid line."""
    for number, raw in enumerate(raw_lines(path, audit), 1):
        if (text := decode_line(raw, path, number, audit)) is not None:
            yield number, text


def table_rows(path: Path, audit: Audit, *, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of a tab-separated file whose rows all have `columns` cells."""
    rows = ((number, text.split("\t")) for number, text in text_lines(path, audit))
    return rows_of_width(columns, rows, path, audit)


def rows_of_width(
    width: int, rows: Iterable[tuple[int, list[str]]], path: Path, audit: Audit
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of `width` cells; others are bad."""
    for number, cells in rows:
        if len(cells) == width:
            yield number, cells
        else:
            audit.bad(path, number, "wrong number of columns", f"{len(cells)} instead of {width}")


def headed_rows(path: Path, audit: Audit, *, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, the `wanted` cells) of a tab-separated file with a header row."""
    rows = ((number, text.split("\t")) for number, text in text_lines(path, audit))
    _, header = next(rows, (1, [""]))
    if missing := [name for name in wanted if name not in header]:
        raise CorpusError(
            f"{path}, line 1: the header lacks {', '.join(missing)}; it has {', '.join(header)}"
        )
    if twice := [name for name in wanted if header.count(name) > 1]:
        raise CorpusError(f"{path}, line 1: the header has {twice[0]!r} twice; give each column its own name")
    places = [header.index(name) for name in wanted]
    for number, cells in rows_of_width(len(header), rows, path, audit):
        yield number, [cells[place] for place in places]


def find_files(root: Path, places: Sequence[Sequence[str]]) -> list[tuple[Path, ...]]:
    """Find the files of the first place below `root` that has all its names: one, or both sides of a text."""
    found = [{name: _matching(root, name) for name in names} for names in places]
    for files in found:
        if all(files.values()):
            _check_sides(files)
            return list(files.values())
    for files in found:
        if there := [name for name in files if files[name]]:
            missing = next(name for name in files if not files[name])
            raise CorpusError(
                f"{root} holds {there[0]}, but not {missing} (plain, .gz or .xz); "
                "put the file there, or name another folder"
            )
    raise CorpusError(
        f"{root} holds none of {', '.join(' and '.join(names) for names in places)} (plain, .gz or .xz); "
        "put the file there, or name another folder"
    )


def _check_sides(files: dict[str, tuple[Path, ...]]) -> None:
    """Raise unless each file that a `*` found on one side has its other side."""
    if len(files) != 2 or not all("*" in name for name in files):
        return
    # by what comes before the language
    sides = [{_unpacked_name(path).stem: path for path in paths} for paths in files.values()]
    if alone := sides[0].keys() ^ sides[1].keys():
        path = (sides[0] | sides[1])[min(alone)]
        other = next(name for name in files if not name.endswith(_unpacked_name(path).suffix))
        raise CorpusError(
            f"{path} has no other side, {min(alone)}{Path(other).suffix}; put it there, or take both away"
        )


def _unpacked_name(path: Path) -> Path:
    return Path(path.name).with_suffix("") if path.suffix in SUFFIXES[1:] else Path(path.name)


def _matching(root: Path, name: str) -> tuple[Path, ...]:
    """Return the file of a name, plain or compressed; with a `*`, all files that match it."""
    if "*" in name:
        found: dict[Path, Path] = {}
        for path in (path for suffix in SUFFIXES for path in root.glob(name + suffix) if path.is_file()):
            # the plain one of a file that is there twice
            found.setdefault(path.parent / _unpacked_name(path), path)
        # both sides in the same order, compressed or not
        return tuple(found[path] for path in sorted(found, key=lambda path: (path.parent, path.stem, path)))
    return tuple(path for suffix in SUFFIXES if (path := root / (name + suffix)).exists())[:1]
