"""Say what preparing a corpus would take, without doing it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from diffwindow.data.audit import Audit, CorpusError, Row
from diffwindow.data.chunks import ChunkEncoder, raw_chunks
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import TASKS
from diffwindow.data.vocabulary import TRAINING_CHARACTERS, texts_of, trained
from diffwindow.data.writer import Chunk


@dataclass(frozen=True)
class Estimate:
    """What preparing a corpus would take, from a sample of each split."""

    rows: dict[str, int]
    bytes: int
    seconds: float


def estimate(recipe: Recipe, *, workers: int = 1, skip_bad: bool = False, sample: int = 10_000) -> Estimate:
    """Encode a sample of each split with a vocabulary learned from it, and scale up; nothing is kept."""
    rows: dict[str, int] = {}
    size = seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file = Path(folder) / "tokenizer.json"
        for split, source in recipe.splits.items():
            started = time.perf_counter()
            first, rows[split] = source.estimated_rows(Audit(skip_bad=skip_bad), sample=sample)
            if not first:
                raise CorpusError(f"the {split} split of {recipe.name} is empty")
            scale = rows[split] / len(first)
            reading = (time.perf_counter() - started) * scale
            if not tokenizer_file.exists():
                # the vocabulary reads its split once more, and learns from TRAINING_CHARACTERS at most
                seconds += reading + _learning(recipe, first, scale, tokenizer_file)
            encoder = ChunkEncoder(tokenizer_file, recipe.moses)
            started = time.perf_counter()
            chunks = [encoder(chunk) for chunk in raw_chunks(iter(first), TASKS[recipe.task])]
            seconds += reading + (time.perf_counter() - started) * scale / workers
            size += scale * sum(_size(chunk) for chunk in chunks)
    return Estimate(rows, int(size), seconds)


def _learning(recipe: Recipe, first: list[Row], scale: float, tokenizer_file: Path) -> float:
    """Learn a vocabulary from the sample, and give the seconds that the whole would take."""
    characters = sum(map(len, texts_of(iter(first), recipe)))
    started = time.perf_counter()
    trained(recipe.vocabulary, texts_of(iter(first), recipe)).save(tokenizer_file)
    return (time.perf_counter() - started) * min(scale, max(1, TRAINING_CHARACTERS / max(1, characters)))


def _size(chunk: Chunk) -> int:
    offsets = sum(len(tokens) + 8 * len(lengths) for tokens, lengths in chunk.sequences.values())
    return offsets + sum(values.nbytes for values in chunk.columns.values())
