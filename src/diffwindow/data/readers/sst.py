"""Stanford Sentiment Treebank: PTB trees with a label on every phrase, or GLUE's TSV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from diffwindow.data.lines import Audit, Row, headed_rows, text_lines
from diffwindow.data.readers.labelled import labelled

Labels = Literal["binary", "five"]
BINARY = {0: 0, 1: 0, 3: 1, 4: 1}


def phrases_of(tree: str) -> list[tuple[int, str]]:
    """Give (label, text) of every node of a tree, the whole sentence last.

    >>> phrases_of("(3 (2 It) (4 (2 's) (4 good)))")
    [(2, 'It'), (2, "'s"), (4, 'good'), (4, "'s good"), (3, "It 's good")]
    """
    found: list[tuple[int, str]] = []
    stack: list[tuple[int, list[str]]] = []
    # only ASCII spaces separate: a few tokens hold a no-break space
    for part in tree.replace("(", " ( ").replace(")", " ) ").split(" "):
        if not part:
            continue
        if part == "(":
            stack.append((-1, []))
        elif part == ")":
            label, words = stack.pop()
            if not words:
                raise ValueError("a phrase without words")
            found.append((label, " ".join(words)))
            if stack:
                stack[-1][1].extend(words)
        elif stack[-1][0] < 0:
            if part not in {"0", "1", "2", "3", "4"}:
                raise ValueError(f"label {part!r} is not 0 to 4")
            stack[-1] = (int(part), stack[-1][1])
        else:
            stack[-1][1].append(part)
    if stack or not found:
        raise ValueError("unbalanced brackets")
    return found


def trees(path: Path, audit: Audit, *, labels: Labels, phrases: bool = False) -> Iterator[Row]:
    """Yield {text, label} of each sentence, or of each distinct phrase.

    `binary` maps 0 and 1 to 0, 3 and 4 to 1, and has no neutral rows, as published. A phrase that occurs
    with several labels is kept once with each.
    """
    seen: set[tuple[int, str]] = set()
    for number, line in text_lines(path, audit):
        try:
            nodes = phrases_of(line)
        except (ValueError, IndexError) as error:
            audit.bad(path, number, "not a labelled tree", str(error))
            continue
        for label, text in reversed(nodes) if phrases else nodes[-1:]:
            if labels == "binary" and label not in BINARY:
                continue
            row: Row = {"text": text, "label": BINARY[label] if labels == "binary" else label}
            if not phrases:
                yield row
            elif (label, text) not in seen:
                seen.add((label, text))
                yield row


def glue(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {text, label} of GLUE's SST-2 TSV (header: sentence, label)."""
    for number, (text, label) in headed_rows(path, audit, wanted=("sentence", "label")):
        yield from labelled(text, label, path, number, audit, num_labels=2)
