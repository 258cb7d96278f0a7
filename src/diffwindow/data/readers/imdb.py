"""IMDB reviews: the `aclImdb` folder, or one TSV a split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffwindow.data.lines import MAX_LINE, Audit, CorpusError, Row, decoded, opened, table_rows
from diffwindow.data.readers.labelled import labelled

FOLDERS = {"neg": "0", "pos": "1"}


def reviews(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {text, label} of a split: a folder with neg/ and pos/, or a TSV (label, rating, id, text)."""
    return _folder(path, audit) if path.is_dir() else _table(path, audit)


def _folder(path: Path, audit: Audit) -> Iterator[Row]:
    for name, label in FOLDERS.items():
        files = sorted((path / name).glob("*.txt"))
        if not files:
            raise CorpusError(f"{path / name} holds no .txt review; unpack the whole aclImdb archive")
        for file in files:
            with opened(file) as review:
                raw = review.read(MAX_LINE + 1)
            audit.swallowed(len(raw))
            text = decoded(raw, file, 1, audit)
            if text is not None:
                yield from labelled(text.strip(), label, file, 1, audit, num_labels=2)


def _table(path: Path, audit: Audit) -> Iterator[Row]:
    for number, (label, _, _, text) in table_rows(path, audit, columns=4):
        yield from labelled(text, label, path, number, audit, num_labels=2)
