"""Subject-verb agreement: predict the number of the next verb from the words before it.

A row is {text, label, attractors, distance}: label 0 is singular (VBZ), 1 plural (VBP); attractors are the
nouns of the other number between subject and verb; -1 stands for a count that the file does not give.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diffwindow.data.lines import Audit, Row, headed_rows, table_rows

NUMBERS = {"VBZ": 0, "VBP": 1}
UNKNOWN = -1
LINZEN_COLUMNS = ("sentence", "verb_pos", "verb_index", "n_diff_intervening", "distance")
SENTENCE_COLUMNS = ("sentence", "verb_pos", "subj_idx", "verb_idx")


def linzen(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield the rows of Linzen's corpus (agr_50_mostcommon_10K.tsv; its verb index counts from 1)."""
    for number, (sentence, tag, verb, attractors, distance) in headed_rows(
        path, audit, wanted=LINZEN_COLUMNS
    ):
        prefix = _prefix(sentence, verb, 1, path, number, audit)
        if prefix is not None:
            yield from _checked(prefix, tag, attractors, distance, path, number, audit)


def sentences(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield rows of full sentences with subject and verb positions that count from 0."""
    for number, (sentence, tag, subject, verb) in headed_rows(path, audit, wanted=SENTENCE_COLUMNS):
        prefix = _prefix(sentence, verb, 0, path, number, audit)
        if prefix is not None and subject.isdigit():
            yield from _checked(prefix, tag, "NA", str(int(verb) - int(subject)), path, number, audit)
        elif prefix is not None:
            audit.bad(path, number, "subject position is not a number", repr(subject))


def numpred(path: Path, audit: Audit, *, attractors: int = UNKNOWN) -> Iterator[Row]:
    """Yield the rows of the number-prediction release: `VBZ|VBP<TAB>prefix`, one file an attractor count."""
    for number, (tag, prefix) in table_rows(path, audit, columns=2):
        yield from _checked(prefix, tag, str(attractors), "NA", path, number, audit)


def subset(path: Path, audit: Audit, *, split: str) -> Iterator[Row]:
    """Yield the rows of one split of a `label, attractors, split, source, prefix` file."""
    for number, (tag, attractors, row_split, _, prefix) in table_rows(path, audit, columns=5):
        if row_split == split:
            yield from _checked(prefix, tag, attractors, "NA", path, number, audit)
        elif row_split not in {"train", "dev", "test"}:
            audit.bad(path, number, "unknown split", repr(row_split))


def parsed(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield the rows of a `label, attractors, intervening, distance, verb, source, prefix` file."""
    for number, (tag, attractors, _, distance, _, _, prefix) in table_rows(path, audit, columns=7):
        yield from _checked(prefix, tag, attractors, distance, path, number, audit)


def _prefix(sentence: str, verb: str, origin: int, path: Path, number: int, audit: Audit) -> str | None:
    words = sentence.split(" ")
    if verb.isdigit() and 0 < int(verb) - origin < len(words):
        return " ".join(words[: int(verb) - origin])
    audit.bad(path, number, "verb position outside the sentence", f"{verb!r} of {len(words)} words")
    return None


def _checked(
    prefix: str, tag: str, attractors: str, distance: str, path: Path, number: int, audit: Audit
) -> Iterator[Row]:
    if tag not in NUMBERS:
        audit.bad(path, number, "unknown label", f"{tag!r} is neither VBZ nor VBP")
        return
    if not prefix or prefix.isspace():
        audit.bad(path, number, "empty text")
        return
    row: Row = {"text": prefix, "label": NUMBERS[tag]}
    for name, cell in (("attractors", attractors), ("distance", distance)):
        count = UNKNOWN if cell in {"NA", str(UNKNOWN)} else _whole(cell)
        if count is None:
            audit.bad(path, number, f"{name} is not a whole number", repr(cell))
            return
        row[name] = count
    yield row


def _whole(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdigit() else None
