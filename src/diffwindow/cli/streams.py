"""Lines of text from a file or stdin, in chunks, and results to a file or stdout."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import typer

from diffwindow.cli.errors import report_interrupt
from diffwindow.cli.library import data_lines, files

# the name that stands for stdin or stdout
STANDARD = Path("-")


def parse_path(text: str) -> Path:
    """Return a path, `STANDARD` for `-` alone: `./-` is a file of that name.

    >>> parse_path("-") == STANDARD, parse_path("./-") == STANDARD
    (True, False)
    """
    path = Path(text)
    return path.absolute() if path == STANDARD and text != "-" else path


# lines sorted by length together; their results appear when all are done
CHUNK = 1000
InputFile = Annotated[
    Path | None,
    typer.Option(parser=parse_path, metavar="FILE", help="Text, one line each; - is stdin, and the default."),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        parser=parse_path,
        metavar="FILE",
        help="Where to write, whole or not at all; - is stdout, and the default.",
    ),
]


def input_name(path: Path | None) -> str:
    """Return what an input is called in messages: stdin for `-` or None."""
    return "stdin" if path is None or path == STANDARD else str(path)


@contextmanager
def open_input(path: Path | None) -> Iterator[Iterator[str]]:
    """Open a file, which may be compressed, or stdin (`-` or None), as lines of text."""
    if path is not None and path != STANDARD:
        with path.open("rb") as source:
            yield _decode_lines(data_lines.unpacked(path, source), input_name(path))
        return
    if sys.stdin is None:
        raise ValueError("stdin is closed; give a file with --input")
    yield _decode_lines(sys.stdin.buffer, input_name(path))


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[str]]:
    """Open a file that appears when all is written, or stdout (`-` or None)."""
    if path is not None and path != STANDARD:
        with (
            files.replacing(path, follow_link=True) as temporary,
            temporary.open("w", encoding="utf-8") as target,
        ):
            yield target
        return
    if sys.stdout is None:
        raise ValueError("stdout is closed; give a file with --output")
    yield sys.stdout


def report_interrupted_output(path: Path | None) -> AbstractContextManager[None]:
    """On Ctrl-C, print what became of the output and exit with 130."""
    written = path is None or path == STANDARD
    return report_interrupt("the lines above are done" if written else f"{path} was not written")


def read_chunks(lines: Iterator[str], size: int = CHUNK) -> Iterator[list[str]]:
    """Yield lines in lists of at most `size`.

    >>> list(read_chunks(iter("abc"), 2))
    [['a', 'b'], ['c']]
    """
    while chunk := list(islice(lines, size)):
        yield chunk


class Speed:
    """Prints to stderr how many lines are done, and how fast."""

    def __init__(self) -> None:
        self.started, self.done = time.monotonic(), 0

    def add(self, count: int) -> None:
        """Count lines and print the total."""
        self.done += count
        speed = self.done / max(time.monotonic() - self.started, 1e-9)
        print(f"{self.done:,} lines, {speed:,.1f} lines/s", file=sys.stderr, flush=True)


def stream(source: Path | None, target: Path | None, work: Callable[[list[str]], Iterator[str]]) -> None:
    """Write the results of `work` for each chunk of lines as soon as they are there."""
    speed = Speed()
    with open_input(source) as lines, open_output(target) as output:
        for chunk in read_chunks(lines):
            output.writelines(f"{line}\n" for line in work(chunk))
            output.flush()
            speed.add(len(chunk))


def split_columns(line: str, number: int, count: int, what: str) -> list[str]:
    """Split a line at tabs; raise unless it has this many columns.

    >>> split_columns("a dog\\tein Hund", 1, 2, "source and target")
    ['a dog', 'ein Hund']
    """
    cells = line.split("\t")
    if len(cells) != count:
        raise ValueError(
            f"line {number}: {line[:80]!r} has {len(cells)} columns, not {count}: {what}, with tabs between"
        )
    return cells


def remove_line_ends(text: str) -> str:
    """Return a text with spaces for line ends, which a model that spells with bytes can produce.

    >>> remove_line_ends("a\\r\\nb")
    'a b'
    """
    return re.sub(r"[\r\n]+", " ", text)


def collapse_spaces(text: str) -> str:
    """Return a text that is one cell of a table: white space becomes single spaces."""
    return " ".join(text.split())


def _decode_lines(source: IO[bytes], name: str) -> Iterator[str]:
    number = 0
    try:
        for number, line in enumerate(data_lines.bounded_lines(source, name), 1):
            if problem := data_lines.too_long(line):
                raise ValueError(f"{name}, line {number}: {problem}; cut it into sentences")
            try:
                yield data_lines.without_mark(line, number).decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{name}, line {number}: not UTF-8 at byte {error.start}") from None
    except data_lines.DAMAGED as error:
        raise ValueError(f"{name}, line {number + 1}: the archive is truncated or damaged: {error}") from None
