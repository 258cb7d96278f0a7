"""Encode many texts as the bytes of a store, remembering words already seen.

Neither vocabulary lets a token cross a single space: byte-level BPE attaches a space to the word after it and
word-level text is split at it. So the ids of a text are those of its words, one after the other, and corpora
repeat their words. The result is exactly that of `Tokenizer.encode`.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.lines import Row
from diffwindow.data.tokenizer import Tokenizer, token_dtype
from diffwindow.data.writer import Chunk
from diffwindow.processes import end_with_parent
from diffwindow.special_tokens import EOS

CACHED_WORDS = 200_000
# a single space between words; around any other white space, words stay in one piece
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


class _Words(dict[str, bytes]):
    """The encoded ids of words, filled on demand.

    When full it becomes the old generation, from which words that occur again are taken back; the others go.
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

    def _one(self, text: str) -> bytes:
        words = text.split()
        if text.split(" ") != words:
            words = _BETWEEN_WORDS.split(text)
        return b"".join([self._first[words[0]], *map(self._later.__getitem__, words[1:]), self._end])


CHUNK_ROWS = 8_192


@dataclass(frozen=True)
class RawChunk:
    """Consecutive rows by field, as read."""

    rows: int
    texts: dict[str, list[str]]
    numbers: dict[str, list[int]]


def raw_chunks(rows: Iterator[Row], text_fields: tuple[str, ...]) -> Iterator[RawChunk]:
    """Group rows into chunks, turning them into columns."""
    while chunk := list(islice(rows, CHUNK_ROWS)):
        names = [name for name in chunk[0] if name not in text_fields]
        texts = {name: [str(row[name]) for row in chunk] for name in text_fields}
        yield RawChunk(len(chunk), texts, {name: [int(row[name]) for row in chunk] for name in names})


class ChunkEncoder:
    """Encode raw chunks with one tokenizer."""

    def __init__(self, tokenizer_file: Path, moses: dict[str, str]) -> None:
        tokenizer = Tokenizer.load(tokenizer_file)
        self._encoder = Encoder(tokenizer)
        self._before = {name: tokenizer.pretokenizer(language) for name, language in moses.items()}

    def __call__(self, chunk: RawChunk) -> Chunk:
        """Encode one chunk."""
        texts = {
            name: list(map(self._before[name], column)) if name in self._before else column
            for name, column in chunk.texts.items()
        }
        sequences = {name: self._encoder.encode(column) for name, column in texts.items()}
        return Chunk(
            chunk.rows, sequences, {name: np.array(c, np.int32) for name, c in chunk.numbers.items()}
        )


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
