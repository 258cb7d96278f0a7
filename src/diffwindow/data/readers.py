"""Readers: each yields the rows of one kind of file and reports what it found to an `Audit`."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from diffwindow.data.lines import (
    MAX_LINE,
    Audit,
    CorpusError,
    NoColumnError,
    Row,
    check_text,
    decode_line,
    headed_rows,
    name_ending,
    opened,
    rows_of_width,
    table_rows,
    text_lines,
)

Blank = Literal["keep", "error"]
SentimentLabels = Literal["binary", "five"]
# the folders of IMDB's labelled reviews
POLARITIES = {"neg": "0", "pos": "1"}
# the singular and plural verb tags of the agreement files
VERB_NUMBERS = {"VBZ": 0, "VBP": 1}
UNKNOWN_COUNT = -1
# JSON can write it, UTF-8 cannot
_SURROGATE = re.compile("[\ud800-\udfff]")


def text(path: Path, audit: Audit, *, blank: Blank) -> Iterator[Row]:
    """Yield {text} of every line.

    `keep` turns a blank line into an empty row (running text such as WikiText, where it ends a paragraph);
    with `error` it is a bad row (one sentence per line, such as the 1B-word shards).
    """
    for number, line in text_lines(path, audit):
        if blank == "error" and not line.strip():
            audit.bad(path, number, "empty text")
        else:
            yield {"text": line.strip()}


def _read_labelled_line(text: str, label: str, path: Path, number: int, audit: Audit) -> Iterator[Row]:
    """Yield one {text, label} row of a corpus with the labels 0 and 1 after checking it."""
    if label not in {"0", "1"}:
        audit.bad(path, number, "unknown label", f"{label!r} is not 0 or 1")
    elif not text.strip():
        audit.bad(path, number, "empty text")
    else:
        yield {"text": text, "label": int(label)}


@dataclass(frozen=True)
class Columns:
    """The columns of labelled text, by name or, without a header, by number; None: by the usual names."""

    text: str | None = None
    label: str | None = None


ANY_COLUMNS = Columns()
_JSON_LINES = {".jsonl", ".ndjson", ".json"}
USUAL_COLUMNS = {"text": ("text", "sentence"), "label": ("label",)}


def read_labelled(
    path: Path, audit: Audit, *, columns: Columns, number: Callable[[str], int | None]
) -> Iterator[Row]:
    """Yield {text, label} of a TSV, CSV or JSON-lines file, the label as its `number`, if it has one."""
    for line, text, label in labelled_cells(path, audit, columns):
        if (found := number(label)) is None:
            audit.bad(path, line, "a label that does not occur in training", repr(label))
        else:
            yield {"text": text, "label": found}


def labelled_cells(path: Path, audit: Audit, columns: Columns) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, text, label) of a file whose name ends as TSV, CSV or JSON lines do.

    A header that names the columns is recognised; without one, the text comes first, then the label. Blank
    lines are left out.
    """
    read = _json_cells if name_ending(path) in _JSON_LINES else _table_cells
    for number, text, label in read(path, audit, columns):
        if half := _SURROGATE.search(f"{text} {label}"):
            audit.bad(path, number, "half of a character", f"the escape {half[0]!a} has no partner")
        elif not label.strip():
            audit.bad(path, number, "missing label")
        elif not text.strip():
            audit.bad(path, number, "empty text")
        else:
            # as in prediction
            yield number, text.strip(), label.strip()


def headless_line(path: Path, audit: Audit) -> int | None:
    """Return the line of the first row of a table without a known header; it may be an unknown one."""
    first = None if name_ending(path) in _JSON_LINES else next(_table_rows(path, audit), None)
    return None if first is None or _layout(path, *first, ANY_COLUMNS).has_header else first[0]


def _table_rows(path: Path, audit: Audit) -> Iterator[tuple[int, list[str]]]:
    if name_ending(path) == ".csv":
        return _csv_rows(path, audit)
    return ((number, line.split("\t")) for number, line in text_lines(path, audit) if line.strip(" "))


def _table_cells(path: Path, audit: Audit, columns: Columns) -> Iterator[tuple[int, str, str]]:
    rows = _table_rows(path, audit)
    first = next(rows, None)
    if first is None:
        return
    layout = _layout(path, *first, columns)
    rows = rows if layout.has_header else chain([first], rows)
    for number, cells in rows_of_width(layout.width, rows, path, audit):
        yield number, cells[layout.text], cells[layout.label]


class _Layout(NamedTuple):
    """Where the text and the label are in a table of so many columns."""

    width: int
    text: int
    label: int
    has_header: bool = False


def _layout(path: Path, number: int, first: list[str], columns: Columns) -> _Layout:
    """Read from its first row where a table has its columns; without a header, text and label by default."""
    header = [cell.strip() for cell in first]
    if (numbers := _positions(columns, len(header))) is not None:
        _check_headless(path, number, header, numbers)
        return _Layout(len(header), *numbers)
    text, label = _text_and_label(header, columns, f"{path}, line {number}")
    if text is not None and label is not None:
        return _Layout(len(header), text, label, has_header=True)
    if columns == ANY_COLUMNS and len(header) == 2:
        return _Layout(2, text=0, label=1)
    wanted = {columns.text or "text": text, columns.label or "label": label}
    missing = " or ".join(repr(name) for name, place in wanted.items() if place is None)
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise CorpusError(
            f"{path}, line {number}: a .csv file separates columns by commas and a .tsv file by tabs, but "
            f"there is one column {header[0]!r}"
        )
    raise NoColumnError(
        f"{path}, line {number}: there is no column {missing}, but {', '.join(header)}; "
        "name those of text and label"
    )


def _positions(columns: Columns, width: int) -> tuple[int, int] | None:
    """Return the places of columns that are given by number, from 1, in a file without a header."""
    given = (columns.text or "", columns.label or "")
    if not all(name.isascii() and name.isdigit() and 1 <= int(name) <= width for name in given):
        return None
    return int(given[0]) - 1, int(given[1]) - 1


def _check_headless(path: Path, number: int, first: list[str], places: tuple[int, int]) -> None:
    """Raise if the first row of a table whose columns are given by number names them."""
    for kind, place in zip(("text", "label"), places, strict=True):
        if first[place].lower() in USUAL_COLUMNS[kind]:
            raise CorpusError(
                f"{path}, line {number}: {', '.join(first)} looks like a header, but columns are given by "
                "number in a file without one; remove the line, or give the columns by name"
            )


def _text_and_label(header: list[str], columns: Columns, place: str) -> list[int | None]:
    """Return the place of each column, by its name or a usual one; None if there is none, raise if two."""
    places: list[int | None] = []
    for kind, name in (("text", columns.text), ("label", columns.label)):
        names = header if name is not None else [cell.lower() for cell in header]
        wanted = USUAL_COLUMNS[kind] if name is None else (name,)
        found = [number for number, cell in enumerate(names) if cell in wanted]
        if len(found) > 1:
            both = " and ".join(repr(header[number]) for number in found)
            raise NoColumnError(
                f"{place}: the columns {both} could each be the {kind}; give each its own name"
            )
        places.append(found[0] if found else None)
    return places


def _csv_rows(path: Path, audit: Audit) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, cells) of each row. Drop the first line of a row that is not valid CSV."""
    csv.field_size_limit(MAX_LINE)
    lines = text_lines(path, audit)
    again: list[tuple[int, str]] = []
    row: list[tuple[int, str]] = []

    def row_lines() -> Iterator[str]:
        while line := again.pop() if again else next(lines, None):
            row.append(line)
            yield f"{line[1]}\n"

    rows = csv.reader(row_lines(), strict=True)
    while True:
        row.clear()
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            audit.bad(path, row[0][0], "not CSV", str(error))
            # a stray quote takes in the rows after it, up to the next quote
            again.extend(reversed(row[1:]))
            rows = csv.reader(row_lines(), strict=True)
            continue
        if row[-1][0] - row[0][0] >= len(row):
            audit.bad(path, row[0][0], "not CSV", "a line of it cannot be read")
            continue
        if len(cells) > 1 or any(cell.strip(" ") for cell in cells):
            yield row[0][0], cells


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise if a key occurs twice, of which Python would take the last."""
    if twice := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        raise ValueError(f"the key {twice[0]!r} occurs twice")
    return dict(pairs)


def _json_cells(path: Path, audit: Audit, columns: Columns) -> Iterator[tuple[int, str, str]]:
    for number, line in text_lines(path, audit):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            audit.bad(path, number, "not JSON", str(error))
            continue
        if not isinstance(row, dict):
            audit.bad(path, number, "not a JSON object", 'a line has the form {"text": …, "label": …}')
            continue
        names = list(row)
        places = _text_and_label(names, columns, f"{path}, line {number}")
        text, label = (None if place is None else row[names[place]] for place in places)
        if not isinstance(text, str):
            audit.bad(path, number, "missing text", f"it has {', '.join(names) or 'nothing'}")
        elif isinstance(label, str | int | None):
            # true and false as JSON writes them
            shown = json.dumps(label) if isinstance(label, bool) else label
            yield number, text, "" if shown is None else str(shown)
        else:
            audit.bad(path, number, "the label is not a text or a whole number", json.dumps(label)[:40])


def glue(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {text, label} of GLUE's SST-2 TSV (header: sentence, label)."""
    for number, (text, label) in headed_rows(path, audit, wanted=("sentence", "label")):
        yield from _read_labelled_line(text, label, path, number, audit)


def imdb(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {text, label} of a split: a folder with neg/ and pos/, or a TSV (label, rating, id, text)."""
    if not path.is_dir():
        for number, (label, _, _, text) in table_rows(path, audit, columns=4):
            yield from _read_labelled_line(text, label, path, number, audit)
        return
    for name, files in reviews(path).items():
        if not files:
            raise CorpusError(f"{path / name} holds no .txt review; unpack the whole aclImdb archive")
        for file in files:
            with opened(file) as review:
                raw = review.read(MAX_LINE + 1)
            check_text(raw, file)
            audit.read_whole(len(raw))
            if (content := decode_line(raw, file, 1, audit)) is not None:
                yield from _read_labelled_line(content.strip(), POLARITIES[name], file, 1, audit)


def reviews(folder: Path) -> dict[str, list[Path]]:
    """Return the files of a folder of IMDB that are read, by polarity: those without a label are not."""
    return {name: sorted((folder / name).glob("*.txt")) for name in POLARITIES}


def phrases_of(tree: str) -> list[tuple[int, str]]:
    """Return (label, text) of every node of a PTB tree, the whole sentence last.

    >>> phrases_of("(3 (2 It) (4 (2 's) (4 good)))")
    [(2, 'It'), (2, "'s"), (4, 'good'), (4, "'s good"), (3, "It 's good")]
    """
    phrases: list[tuple[int, str]] = []
    stack: list[tuple[int, list[str]]] = []
    # only ASCII spaces separate: a few tokens hold a no-break space
    for part in filter(None, tree.replace("(", " ( ").replace(")", " ) ").split(" ")):
        if part == "(":
            stack.append((-1, []))
        elif part == ")":
            label, words = stack.pop()
            if not words:
                raise ValueError("a phrase without words")
            phrases.append((label, " ".join(words)))
            if stack:
                stack[-1][1].extend(words)
        elif stack[-1][0] < 0:
            if part not in {"0", "1", "2", "3", "4"}:
                raise ValueError(f"label {part!r} is not 0 to 4")
            stack[-1] = (int(part), stack[-1][1])
        else:
            stack[-1][1].append(part)
    if stack or not phrases:
        raise ValueError("unbalanced brackets")
    return phrases


def sst_trees(
    path: Path, audit: Audit, *, labels: SentimentLabels, phrases: bool = False, trees: bool = False
) -> Iterator[Row]:
    """Yield {text, label} of each sentence of the Stanford Sentiment Treebank, or of each distinct phrase.

    `binary` maps 0 and 1 to 0, 3 and 4 to 1, and has no neutral rows, as published. A phrase that occurs
    with several labels is kept once with each. With `trees`, the text is the tree of the sentence.
    """
    classes = {0: 0, 1: 0, 3: 1, 4: 1} if labels == "binary" else {label: label for label in range(5)}
    seen: set[tuple[int, str]] = set()
    for number, line in text_lines(path, audit):
        try:
            nodes = phrases_of(line)
        except (ValueError, IndexError) as error:
            audit.bad(path, number, "not a labelled tree", str(error))
            continue
        for label, phrase in reversed(nodes) if phrases else nodes[-1:]:
            if label in classes and not (phrases and (label, phrase) in seen):
                seen.add((label, phrase))
                yield {"text": line if trees else phrase, "label": classes[label]}


def linzen(path: Path, audit: Audit, *, all_differ: bool = False) -> Iterator[Row]:
    """Yield the rows of Linzen's agreement corpus (agr_50_mostcommon_10K.tsv): the words before a verb.

    A row is {text, label, attractors, distance}: label 0 is singular (VBZ), 1 plural (VBP); attractors are
    the nouns of the other number between subject and verb. With `all_differ`, rows are left out whose
    intervening nouns are not all attractors.
    """
    counted = ("n_intervening",) if all_differ else ()
    wanted = ("sentence", "verb_pos", "verb_index", *counted, "n_diff_intervening", "distance")
    for number, (sentence, tag, verb, *nouns, attractors, distance) in headed_rows(
        path, audit, wanted=wanted
    ):
        if all_differ and nouns != [attractors]:
            continue
        words = sentence.split(" ")
        # the verb's index counts from 1
        if verb.isdigit() and 1 < int(verb) <= len(words):
            prefix = " ".join(words[: int(verb) - 1])
            yield from _agreement(prefix, tag, attractors, distance, path, number, audit)
        else:
            audit.bad(path, number, "verb position outside the sentence", f"{verb!r} of {len(words)} words")


def agreement_subset(path: Path, audit: Audit, *, split: str) -> Iterator[Row]:
    """Yield the rows of one split of a `label, attractors, split, source, prefix` file, as `linzen` does."""
    for number, (tag, attractors, row_split, _, prefix) in table_rows(path, audit, columns=5):
        if row_split == split:
            yield from _agreement(prefix, tag, attractors, "NA", path, number, audit)
        elif row_split not in {"train", "dev", "test"}:
            audit.bad(path, number, "unknown split", repr(row_split))


def _agreement(
    prefix: str, tag: str, attractors: str, distance: str, path: Path, number: int, audit: Audit
) -> Iterator[Row]:
    """Yield one row after checking it; -1 stands for a count that the file does not give."""
    counts = {"attractors": attractors, "distance": distance}
    wrong = next((name for name, cell in counts.items() if not re.fullmatch("NA|[0-9]+", cell)), None)
    if tag not in VERB_NUMBERS:
        audit.bad(path, number, "unknown label", f"{tag!r} is neither VBZ nor VBP")
    elif not prefix.strip():
        audit.bad(path, number, "empty text")
    elif wrong:
        audit.bad(path, number, f"{wrong} is not a whole number", repr(counts[wrong]))
    else:
        row: Row = {"text": prefix, "label": VERB_NUMBERS[tag]}
        yield row | {name: UNKNOWN_COUNT if cell == "NA" else int(cell) for name, cell in counts.items()}
