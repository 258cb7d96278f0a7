"""Split a corpus that has no official splits, so that identical texts never land in two of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from diffwindow.data.audit import Row

BUCKETS = 1000


def share(rows: Iterator[Row], field: str, buckets: range, *, divided: int = 0) -> Iterator[Row]:
    """Yield the rows whose text in `field` hashes into `buckets` (out of 1000).

    Rows that were chosen by this hash before have only some of its values left: `divided` counts these
    choices, and each takes its own digits of the hash.
    """
    place = BUCKETS**divided
    return (row for row in rows if zlib.crc32(str(row[field]).encode()) // place % BUCKETS in buckets)
