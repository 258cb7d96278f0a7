"""Learn the vocabulary of a recipe in bounded memory, however big the corpus."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from diffwindow.data.encoding import CHUNK_ROWS
from diffwindow.data.lines import Audit, Row
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import TASKS
from diffwindow.data.tokenizer import Tokenizer, moses_tokenizer
from diffwindow.progress import SILENT, Progress

# a vocabulary is learned from this much text, spread over the corpus: learning takes some 2 kB of memory for
# each distinct word, and more text adds rare words only
TRAINING_CHARACTERS = 50_000_000


# subwords that suit a training text of fewer words than this; above all, 32,768
SIZES = ((50_000, 1_024), (300_000, 4_096), (3_000_000, 8_192), (30_000_000, 16_384))


def suitable_size(words: int) -> int:
    """Return how many subwords suit a text: enough to be short, few enough for each to occur often.

    >>> suitable_size(700_000)
    8192
    """
    return next((size for limit, size in SIZES if words < limit), 32_768)


def estimated_words(recipe: Recipe) -> int:
    """Estimate the words of the first split, over all text fields."""
    source = next(iter(recipe.splits.values()))
    first, total = source.estimated_rows(Audit(skip_bad=True), sample=CHUNK_ROWS)
    words = sum(len(text.split()) for text in texts_of(iter(first), recipe))
    return round(words * total / max(1, len(first)))


def with_vocabulary_size(recipe: Recipe) -> Recipe:
    """Return a recipe with a number of subwords that suits its corpus, unless it has one."""
    vocabulary = recipe.vocabulary
    if vocabulary.kind == "words" or vocabulary.size is not None:
        return recipe
    return replace(recipe, vocabulary=replace(vocabulary, size=suitable_size(estimated_words(recipe))))


def train_vocabulary(recipe: Recipe, *, skip_bad: bool, progress: Progress = SILENT) -> Tokenizer:
    """Learn the recipe's vocabulary from rows spread over its first split, source and target together."""
    source = next(iter(recipe.splits.values()))
    first, total = source.estimated_rows(Audit(skip_bad=True), sample=CHUNK_ROWS)
    characters = sum(map(len, texts_of(iter(first), recipe))) * total / max(1, len(first))
    stride = max(1, math.ceil(characters / TRAINING_CHARACTERS))
    audit = Audit(skip_bad=skip_bad)

    def sampled() -> Iterator[Row]:
        for number, row in enumerate(source.read(audit)):
            if number % CHUNK_ROWS == 0:
                progress("vocabulary", source.done(audit))
            if number % stride == 0:
                yield row

    tokenizer = trained(recipe, texts_of(sampled(), recipe))
    _return_memory()
    return tokenizer


def _return_memory() -> None:
    """Return memory to the system: after learning, the C library keeps hundreds of megabytes."""
    # a library without this function returns memory in its own time
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def trained(recipe: Recipe, lines: Iterator[str]) -> Tokenizer:
    """Train the kind of tokenizer that a recipe names."""
    size, normalization = recipe.vocabulary.size, recipe.normalization
    if recipe.vocabulary.kind == "words":
        return Tokenizer.train_words(lines, size, normalization=normalization)
    assert size is not None, "byte-level BPE needs a size"
    return Tokenizer.train_bpe(lines, size, normalization=normalization)


def texts_of(rows: Iterator[Row], recipe: Recipe) -> Iterator[str]:
    """Yield every text of the rows, pre-tokenised as the recipe says."""
    moses = partial(moses_tokenizer, normalization=recipe.normalization)
    before = {field: moses(language) for field, language in recipe.moses.items()}
    for row in rows:
        for field in TASKS[recipe.task]:
            text = str(row[field])
            yield before[field](text) if field in before else text
