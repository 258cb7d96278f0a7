"""Language-model text: one sentence or paragraph a line, in one file or many shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from diffwindow.data.lines import Audit, Row, text_lines

Blank = Literal["keep", "error"]


def lines(path: Path, audit: Audit, *, blank: Blank) -> Iterator[Row]:
    """Yield {text} of every line.

    `keep` turns a blank line into an empty row (running text such as WikiText, where it ends a paragraph);
    with `error` it is a bad row (one sentence per line, such as the 1B-word shards).
    """
    for number, text in text_lines(path, audit):
        if blank == "error" and (not text or text.isspace()):
            audit.bad(path, number, "empty text")
        else:
            yield {"text": text.strip()}
