"""Learn a vocabulary in bounded memory, and encode the rows of a corpus with it."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffwindow.data import trees
from diffwindow.data.lines import Audit, CorpusError, Row
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import text_fields
from diffwindow.data.tokenizer import Tokenizer, moses_tokenizer, token_dtype
from diffwindow.data.writer import Chunk
from diffwindow.processes import end_with_parent
from diffwindow.progress import SILENT, Progress
from diffwindow.special_tokens import EOS

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


def _estimate_size(recipe: Recipe, measure: Callable[[str], int]) -> float:
    """Estimate the size of the first split, over all text fields."""
    source = next(iter(recipe.splits.values()))
    first, total = source.estimated_rows(Audit(skip_bad=True), sample=CHUNK_ROWS)
    return sum(map(measure, texts_of(iter(first), recipe))) * total / max(1, len(first))


def with_vocabulary_size(recipe: Recipe) -> Recipe:
    """Return a recipe with a number of subwords that suits its corpus, unless it has one."""
    vocabulary = recipe.vocabulary
    if vocabulary.kind == "words" or vocabulary.size is not None:
        return recipe
    words = round(_estimate_size(recipe, lambda text: len(text.split())))
    return replace(recipe, vocabulary=replace(vocabulary, size=suitable_size(words)))


def train_vocabulary(recipe: Recipe, *, skip_bad: bool, progress: Progress = SILENT) -> Tokenizer:
    """Learn the recipe's vocabulary from rows spread over its first split, source and target together."""
    stride = max(1, math.ceil(_estimate_size(recipe, len) / TRAINING_CHARACTERS))
    source, audit = next(iter(recipe.splits.values())), Audit(skip_bad=skip_bad)

    def sampled() -> Iterator[Row]:
        for number, row in enumerate(source.read(audit)):
            if number % CHUNK_ROWS == 0:
                progress("vocabulary", source.done(audit))
            if number % stride == 0:
                yield row

    tokenizer = train_tokenizer(recipe, texts_of(sampled(), recipe))
    # after learning, the C library keeps hundreds of megabytes; one without this function frees them itself
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return tokenizer


def train_tokenizer(recipe: Recipe, lines: Iterator[str]) -> Tokenizer:
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
        for field in text_fields(recipe.task):
            yield before.get(field, str)(str(row[field]))


CACHED_WORDS = 200_000
# a single space between words; around any other white space, words stay in one piece
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


class _Words(dict[str, bytes]):
    """The encoded ids of words, filled on demand.

    When it is full, its words move to a second table. Words that occur again come back; when it is full once
    more, the second table is dropped.
    """

    def __init__(self, tokenizer: Tokenizer, before: str) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._before = before
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._old: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        encoded = self._old.get(word)
        if encoded is None:
            encoded = np.array(self._tokenizer.encode(self._before + word), self._dtype).tobytes()
        if len(self) >= CACHED_WORDS:
            self._old = dict(self)
            self.clear()
        self[word] = encoded
        return encoded


class Encoder:
    """Turn texts into (the bytes of all their ids, the number of ids of each), each text ending in EOS."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._end = np.array([EOS], self._dtype).tobytes()
        self._first = _Words(tokenizer, "")
        self._later = _Words(tokenizer, " ") if tokenizer.kind == "bpe" else self._first

    def encode(self, texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
        """Encode a chunk of texts."""
        encoded = [self._one(text) for text in texts]
        size = self._dtype.itemsize
        return b"".join(encoded), np.array([len(item) // size for item in encoded], np.int64)

    def encode_phrases(self, texts: Sequence[str], phrases: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the distances of words from the next for each token of their texts; 0 inside a word."""
        size, most = self._dtype.itemsize, self._tokenizer.vocab_size - 1
        encoded = []
        for text, distances in zip(texts, phrases, strict=True):
            words, numbers = self._words(text), [min(int(one), most) for one in distances.split()]
            if len(words) != len(numbers):
                raise CorpusError(
                    f"a tree of {len(numbers)} words does not match its text, which has {len(words)}: "
                    f"{text[:60]!r}"
                )
            pieces = [[0] * (len(word) // size - 1) + [n] for word, n in zip(words, numbers, strict=True)]
            encoded.append([*chain.from_iterable(pieces), numbers[-1]])
        tokens = np.array([*chain.from_iterable(encoded)], self._dtype)
        return tokens.tobytes(), np.array(list(map(len, encoded)), np.int64)

    def _one(self, text: str) -> bytes:
        return b"".join([*self._words(text), self._end])

    def _words(self, text: str) -> list[bytes]:
        words = text.split()
        if text.split(" ") != words:
            words = _BETWEEN_WORDS.split(text)
        return [self._first[words[0]], *map(self._later.__getitem__, words[1:])]


CHUNK_ROWS = 8_192


@dataclass(frozen=True)
class RawChunk:
    """Consecutive rows by field, as read."""

    rows: int
    texts: dict[str, list[str]]
    numbers: dict[str, list[int]]
    phrases: list[str] | None = None


def raw_chunks(rows: Iterator[Row], text_fields: tuple[str, ...]) -> Iterator[RawChunk]:
    """Group rows into chunks, turning them into columns."""
    while chunk := list(islice(rows, CHUNK_ROWS)):
        names = [name for name in chunk[0] if name not in (*text_fields, trees.FIELD)]
        texts = {name: [str(row[name]) for row in chunk] for name in text_fields}
        phrases = [str(row[trees.FIELD]) for row in chunk] if trees.FIELD in chunk[0] else None
        numbers = {name: [int(row[name]) for row in chunk] for name in names}
        yield RawChunk(len(chunk), texts, numbers, phrases)


class ChunkEncoder:
    """Encode raw chunks with one tokenizer."""

    def __init__(self, tokenizer_file: Path, moses: dict[str, str]) -> None:
        tokenizer = Tokenizer.load(tokenizer_file)
        self._encoder = Encoder(tokenizer)
        self._before = {name: tokenizer.pretokenizer(language) for name, language in moses.items()}

    def __call__(self, chunk: RawChunk) -> Chunk:
        """Encode one chunk."""
        sequences = {
            name: self._encoder.encode(list(map(self._before.get(name, str), texts)))
            for name, texts in chunk.texts.items()
        }
        if chunk.phrases is not None:
            # of the text, or of the source of a translation
            text = next(iter(chunk.texts.values()))
            sequences[trees.FIELD] = self._encoder.encode_phrases(text, chunk.phrases)
        columns = {name: np.array(values, np.int32) for name, values in chunk.numbers.items()}
        return Chunk(chunk.rows, sequences, columns)


def encoded_chunks(
    chunks: Iterator[RawChunk], tokenizer_file: Path, moses: dict[str, str], *, workers: int
) -> Iterator[Chunk]:
    """Encode chunks in order; with one worker in this process, with more in as many processes."""
    if workers == 1:
        yield from map(ChunkEncoder(tokenizer_file, moses), chunks)
        return
    # spawned, not forked: the tokenizer's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (tokenizer_file, moses))
    waiting: deque[Future[Chunk]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_encode, chunk))
            # bounds memory: at most two chunks per worker are under way
            if len(waiting) >= 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


_worker: ChunkEncoder | None = None


def _start_worker(tokenizer_file: Path, moses: dict[str, str]) -> None:
    global _worker
    end_with_parent()
    # the parent handles Ctrl-C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = ChunkEncoder(tokenizer_file, moses)


def _encode(chunk: RawChunk) -> Chunk:
    assert _worker is not None
    return _worker(chunk)
