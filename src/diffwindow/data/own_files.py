"""Recipes for files of one's own: parallel text, labelled text, running text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from diffwindow.data import parallel, readers
from diffwindow.data.lines import Audit, CorpusError, NoColumnError
from diffwindow.data.readers import ANY_COLUMNS, Columns
from diffwindow.data.recipe import Recipe, Source, source_of
from diffwindow.data.tokenizer import nfc
from diffwindow.data.trees import read_trees

# tables of labels show and keep a label's whole name; a longer one is probably a text in the wrong column
MAX_LABEL = 200


def two_files(source: Path, target: Path) -> Source:
    """Read two line-aligned files."""
    return source_of(parallel.parallel_files, (source,), (target,))


def tsv_pairs(path: Path) -> Source:
    """Read `source<TAB>target` lines."""
    return source_of(parallel.parallel_tsv, (path,))


def plain_text(*paths: Path) -> Source:
    """Read running text; blank lines are kept."""
    return source_of(partial(readers.text, blank="keep"), paths)


def trees(path: Path) -> Source:
    """Read bracketed trees, or the columns of CoNLL's chunks."""
    return source_of(read_trees, (path,))


def labelled_text(path: Path, labels: Sequence[str], columns: Columns = ANY_COLUMNS) -> Source:
    """Read labelled text; a label's number is its place in `labels`."""
    return source_of(partial(readers.read_labelled, columns=columns, number=label_numbers(labels)), (path,))


def label_numbers(names: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function from the name of a label, in any Unicode form, to its number, or None.

    >>> number = label_numbers(["cafe\N{COMBINING ACUTE ACCENT}", "tea"])
    >>> number("tea"), number("caf\N{LATIN SMALL LETTER E WITH ACUTE}"), number("milk")
    (1, 0, None)
    """
    exact = {name: number for number, name in enumerate(names)}
    composed = {nfc(name): number for name, number in exact.items()}
    return lambda name: exact.get(name, composed.get(nfc(name)))


def labelled_recipe(
    files: Mapping[str, Path],
    columns: Columns = ANY_COLUMNS,
    *,
    skip_bad: bool = False,
) -> Recipe:
    """Return the recipe of labelled text by split; the file of the first split decides the labels.

    They are normalised whatever becomes of the text, so that two spellings of a label are one class.
    """
    first = next(iter(files.values()))
    audit = Audit(skip_bad)
    with audit.reading():
        rows = readers.labelled_cells(first, audit, columns)
        number, _, label = next(rows, (0, "", ""))
        label = nfc(label)
        counts = Counter([label] if number else [])
        counts.update(nfc(other) for _, _, other in rows)
        headless = columns == ANY_COLUMNS and number == readers.headless_line(first, audit)
    labels = ordered_labels(counts)
    if headless and counts[label] == 1 and len(labels) > 2:
        raise NoColumnError(
            f"{first}, line {number}: the label {label!r} occurs nowhere else; if this is a header, or to "
            "say that it is none, name the columns of text and label"
        )
    if too_long := next((label for label in labels if len(label) > MAX_LABEL), None):
        raise NoColumnError(
            f"{first}: the label {too_long[:40]!r}… has {len(too_long)} characters, above {MAX_LABEL}; "
            "name the columns of text and label"
        )
    if len(labels) < 2:
        found = f"only the label {labels[0]!r}" if labels else "no labelled text"
        raise CorpusError(f"{first} has {found}; a classifier needs at least two labels to choose from")
    splits = {split: labelled_text(file, labels, columns) for split, file in files.items()}
    variant = {"columns": asdict(columns)}
    return Recipe(
        first.name,
        "classification",
        splits,
        labels=labels,
        variant=variant,
    )


def ordered_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels in the order of their numbers: numerals by value, others by name.

    >>> ordered_labels(["10", "9", "10"]), ordered_labels(["no", "maybe so", "7"])
    (('9', '10'), ('7', 'maybe so', 'no'))
    """
    distinct = set(labels)
    if all(label.isascii() and label.isdigit() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))
