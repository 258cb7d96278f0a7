"""What a reader found in a corpus: rows, labels, and what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

Row = dict[str, str | int]


class CorpusError(ValueError):
    """A corpus that cannot be read as asked; the message names file, line and fix."""


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

    def bad(self, path: Path, line: int, problem: str, detail: str = "") -> None:
        """Raise on a bad row, or count it under `problem`."""
        place = f"{path}, line {line}"
        if not self.skip_bad:
            raise BadRowError(f"{place}: {problem}{': ' + detail if detail else ''}; fix the file")
        self.skipped[problem] += 1
        self.first_skipped.setdefault(problem, place)

    def count(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Pass rows through, counting them and their labels; at the end, or an error, close their files."""
        try:
            for row in rows:
                self.rows += 1
                if "label" in row:
                    self.labels[int(row["label"])] += 1
                yield row
        finally:
            for file in self._open:
                file.close()
            self._open.clear()

    def opened(self, file: BufferedReader) -> None:
        """Follow the position of an input file."""
        self._open.append(file)

    def closed(self, file: BufferedReader, size: int) -> None:
        """Count a finished input file as wholly read."""
        if file in self._open:
            self._open.remove(file)
            self.swallowed(size)

    def swallowed(self, size: int) -> None:
        """Count a file that was read in one gulp."""
        self._closed_bytes += size

    @property
    def bytes_read(self) -> int:
        """Bytes of the (compressed) input files read so far."""
        return self._closed_bytes + sum(file.tell() for file in self._open)

    def summary(self) -> dict[str, Any]:
        """Give the counts as plain data for a manifest."""
        return {
            "rows": self.rows,
            "labels": {str(label): self.labels[label] for label in sorted(self.labels)},
            "skipped": dict(self.skipped),
            "first_skipped": dict(self.first_skipped),
        }
