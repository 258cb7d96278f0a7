"""Parallel text: two files line by line, or one tab-separated file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from diffwindow.data.lines import Audit, Row, decoded, raw_lines, table_rows


def two_files(source: Path, target: Path, audit: Audit) -> Iterator[Row]:
    """Yield {source, target} of two line-aligned files."""
    pairs = zip_longest(raw_lines(source, audit), raw_lines(target, audit))
    for number, (left, right) in enumerate(pairs, 1):
        if left is None or right is None:
            shorter, longer = (source, target) if left is None else (target, source)
            audit.bad(
                longer,
                number,
                "line without a partner",
                f"{shorter} ends after line {number - 1}, so the files differ",
            )
            continue
        pair = decoded(left, source, number, audit), decoded(right, target, number, audit)
        yield from _checked(pair, (source, target), number, audit)


def tsv(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {source, target} of `source<TAB>target` lines."""
    for number, (source, target) in table_rows(path, audit, columns=2):
        yield from _checked((source, target), (path, path), number, audit)


def _checked(
    pair: tuple[str | None, str | None], paths: tuple[Path, Path], number: int, audit: Audit
) -> Iterator[Row]:
    source, target = pair
    if source is None or target is None:
        return
    if not source or source.isspace():
        audit.bad(paths[0], number, "empty source")
    elif not target or target.isspace():
        audit.bad(paths[1], number, "empty target")
    else:
        yield {"source": source, "target": target}
