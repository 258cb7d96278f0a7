"""Phrases of texts: bracketed trees and chunk columns, as a distance from each word to the next.

The distance of two neighbouring words is the height of the smallest phrase that holds both, where a word has
height 0 and a phrase one more than its highest part. So the phrases of height h or less end at the distances
above h, and a tree is split, top down, at its largest distances. In a store the pieces of a word are at
distance 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, get_args
from unicodedata import category

import numpy as np

from diffwindow.data.lines import Audit, Row, text_lines
from diffwindow.data.store import Sequences

FIELD = "phrases"
# what stands in the place of the right phrases, to see whether they matter
Placebo = Literal["shuffled", "random"]
PLACEBOS: tuple[str, ...] = get_args(Placebo)
_EMPTY = "-NONE-"
_BRACKETS = ("-LRB-", "-RRB-", "-LCB-", "-RCB-", "-LSB-", "-RSB-")


def distances_of(tree: str) -> tuple[list[str], list[int]]:
    """Return the words of a bracketed tree and the distance of each from the next, the last from the end.

    >>> distances_of("(S (NP the man) (VP saw (NP the dog)))")
    (['the', 'man', 'saw', 'the', 'dog'], [1, 3, 2, 1, 4])
    """
    words: list[str] = []
    distances: list[int] = []
    # of each open phrase: its label, its height so far, and the last word of each part
    open_phrases: list[tuple[list[str], list[int], list[int]]] = []
    root = 0
    # only ASCII spaces separate: a few tokens hold a no-break space
    for part in re.findall(r"[()]|[^() \t\r\n]+", tree):
        if part == "(":
            if words and not open_phrases:
                raise ValueError("there is more than one tree")
            open_phrases.append(([], [], []))
            continue
        if not open_phrases:
            raise ValueError(f"{part!r} is outside of the brackets")
        label, heights, ends = open_phrases[-1]
        if part != ")":
            if not label and not heights:
                label.append(part)
            elif label != [_EMPTY]:
                words.append(part)
                distances.append(0)
                heights.append(0)
                ends.append(len(words) - 1)
            continue
        open_phrases.pop()
        if not ends:
            continue
        height = max(heights) + (len(ends) > 1)
        for end in ends[:-1]:
            distances[end] = height
        if open_phrases:
            open_phrases[-1][1].append(height)
            open_phrases[-1][2].append(ends[-1])
        root = height
    if open_phrases or not words:
        raise ValueError("unbalanced brackets" if open_phrases else "no words")
    distances[-1] = root + 1
    return words, distances


def tree_of(words: Sequence[str], distances: Sequence[float]) -> str:
    """Return the bracketed tree of words that is split, top down, at the largest of the distances between.

    >>> tree_of("the man saw the dog".split(), [1, 3, 2, 1])
    '((the man) (saw (the dog)))'
    """
    spans = phrases_of(distances)
    opened, closed = (Counter(span[side] for span in spans) for side in (0, 1))
    return " ".join(
        f"{'(' * opened[place]}{without_brackets(word)}{')' * closed[place]}"
        for place, word in enumerate(words)
    )


def without_brackets(word: str) -> str:
    """Return a word with its brackets as the Penn Treebank writes them, so that it can stand in a tree.

    >>> without_brackets("(sic)")
    '-LRB-sic-RRB-'
    """
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def phrases_of(distances: Sequence[float]) -> set[tuple[int, int]]:
    """Return the phrases of a tree, of two words and more, as first and last word.

    >>> sorted(phrases_of([1, 3, 2, 1]))
    [(0, 1), (0, 4), (2, 4), (3, 4)]
    """
    spans = set()
    for gap, distance in enumerate(distances):
        first = next((left + 1 for left in range(gap - 1, -1, -1) if distances[left] > distance), 0)
        later = range(gap + 1, len(distances))
        spans.add((first, next((right for right in later if distances[right] > distance), len(distances))))
    return spans


def without_punctuation(words: Sequence[str], distances: Sequence[float]) -> list[float]:
    """Return the distances between the words of a tree that are not punctuation.

    >>> without_punctuation(["well", ",", "it", "works", "."], [3, 2, 1, 4])
    [3, 1]
    """
    kept = [index for index, word in enumerate(words) if not _is_punctuation(word)]
    return [max(distances[a:b]) for a, b in pairwise(kept)]


def _is_punctuation(word: str) -> bool:
    # these two stand for words
    if word in ("%", "&"):
        return False
    return word in _BRACKETS or all(one == "`" or category(one).startswith("P") for one in word)


def tree_f1(gold: Sequence[float], distances: Sequence[float]) -> float:
    """Return the unlabelled F1 of a tree's phrases against those of the gold tree; 1 if neither has any.

    >>> tree_f1([1, 3, 2, 1], [4, 3, 2, 1])
    0.6666666666666666
    """
    # every tree has the whole sentence
    right, said = (phrases_of(tree) - {(0, len(tree))} for tree in (gold, distances))
    return 2 * len(right & said) / (len(right) + len(said)) if right or said else 1.0


def baseline_trees(gaps: int, generator: np.random.Generator) -> dict[str, list[float]]:
    """Return the distances of trees that know nothing of the words, by name."""
    falling = [float(gaps - gap) for gap in range(gaps)]
    balanced = [0.0] * gaps

    def halve(first: int, last: int, distance: float) -> None:
        if first < last:
            middle = (first + last) // 2
            balanced[middle] = distance
            halve(first, middle, distance - 1)
            halve(middle + 1, last, distance - 1)

    halve(0, gaps, 0.0)
    return {
        "right-branching": falling,
        "left-branching": falling[::-1],
        "random": generator.permutation(gaps).astype(float).tolist(),
        "balanced": balanced,
    }


def with_phrases(row: Row, field: str) -> Row:
    """Return a row whose `field` is a bracketed tree with its words there, and their distances as a text."""
    words, distances = distances_of(str(row[field]))
    return row | {field: " ".join(words), FIELD: " ".join(map(str, distances))}


def read_trees(path: Path, audit: Audit) -> Iterator[Row]:
    """Yield {text}, a bracketed tree, of a file of trees, on several lines each, or of CoNLL's columns.

    Columns are a word, its tag and its chunk (`B-NP`, `I-NP`, `O`); a blank line ends a sentence.
    """
    lines = text_lines(path, audit)
    first = next((one for one in lines if one[1].strip()), None)
    if first is None:
        return
    read = _bracketed if first[1].lstrip().startswith("(") else _chunked
    for tree in read(chain([first], lines), path, audit):
        yield {"text": tree}


def _bracketed(lines: Iterator[tuple[int, str]], path: Path, audit: Audit) -> Iterator[str]:
    tree, depth, began = "", 0, 0
    for number, line in lines:
        began = began if depth else number
        depth += line.count("(") - line.count(")")
        tree = f"{tree} {line.strip()}" if tree else line.strip()
        if depth < 0:
            audit.bad(path, number, "not a bracketed tree", "a bracket closes that was not opened")
        if depth <= 0 and tree:
            yield tree
        tree, depth = (tree, depth) if depth > 0 else ("", 0)
    if depth:
        audit.bad(path, began, "not a bracketed tree", "a bracket is not closed")


def _chunked(lines: Iterator[tuple[int, str]], path: Path, audit: Audit) -> Iterator[str]:
    chunks: list[list[str]] = []
    for number, line in chain(lines, [(0, "")]):
        if not line.strip():
            if chunks:
                yield "(S ({}))".format(") (".join(map(" ".join, chunks)))
            chunks = []
            continue
        cells = line.split()
        if len(cells) < 3 or not re.fullmatch(r"O|[BI]-\S+", cells[-1]):
            audit.bad(path, number, "not a word, a tag and a chunk", f"{line.strip()[:40]!r}")
            continue
        word = without_brackets(cells[0])
        begin, _, label = cells[-1].partition("-")
        if begin == "I" and chunks and chunks[-1][0] == label:
            chunks[-1].append(word)
        else:
            chunks.append([label or begin, word])


def phrase_ends(distances: Sequences, height: int, placebo: Placebo | None = None) -> Sequences:
    """Return, for each token, 1 if a phrase of at most `height` ends after it, else 0.

    A placebo has phrases of the same lengths, in words, elsewhere: those of another text of as many words
    ("shuffled"), or the text's own in a random order ("random").
    """
    ends = (distances.tokens > height).astype(np.uint8)
    if placebo is None:
        return Sequences(ends, distances.offsets)
    generator = np.random.default_rng(0)
    # a word ends where its distance from the next is not 0; the last is the end of the text
    last = [np.flatnonzero(distances[row])[:-1] + distances.offsets[row] for row in range(len(distances))]
    known = [ends[places] for places in last]
    order = generator.permutation(len(last))
    order = order[np.argsort([len(last[row]) for row in order], kind="stable")]
    other = ends.copy()
    for row, giver in zip(order, np.roll(order, -1), strict=True):
        if placebo == "shuffled":
            # one of as many words; the last of its length takes one of the next length
            chosen = np.resize(known[giver], len(last[row]))
        else:
            lengths = np.diff(np.flatnonzero(known[row]), prepend=-1)
            chosen = np.zeros_like(known[row])
            chosen[generator.permutation(lengths).cumsum() - 1] = 1
        chosen[-1] = 1
        other[last[row]] = chosen
    return Sequences(other, distances.offsets)
