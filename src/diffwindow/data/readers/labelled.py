"""Labelled text: the check that every classification reader shares, and `label<TAB>text` files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffwindow.data.lines import Audit, Row, table_rows


def labelled(
    text: str, label: str, path: Path, number: int, audit: Audit, *, num_labels: int
) -> Iterator[Row]:
    """Yield one {text, label} row after checking it."""
    if not (label.isascii() and label.isdigit() and int(label) < num_labels):
        audit.bad(path, number, "unknown label", f"{label!r} is not 0 to {num_labels - 1}")
    elif not text or text.isspace():
        audit.bad(path, number, "empty text")
    else:
        yield {"text": text, "label": int(label)}


def tsv(path: Path, audit: Audit, *, num_labels: int) -> Iterator[Row]:
    """Yield {text, label} of `label<TAB>text` lines."""
    for number, (label, text) in table_rows(path, audit, columns=2):
        yield from labelled(text, label, path, number, audit, num_labels=num_labels)
