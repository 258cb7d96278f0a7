"""Rows in chunks, encoded on several cores in bounded memory, in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from diffwindow.data.audit import Row
from diffwindow.data.encoder import Encoder
from diffwindow.data.moses import pretokenizers
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.data.writer import Chunk
from diffwindow.processes import end_with_parent

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
        self._encoder = Encoder(Tokenizer.load(tokenizer_file))
        self._before = pretokenizers(moses)

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
            # the bound on memory: never more than two chunks a worker under way
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
    # ctrl-c is the parent's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker = ChunkEncoder(tokenizer_file, moses)


def _encode(chunk: RawChunk) -> Chunk:
    assert _worker is not None
    return _worker(chunk)
