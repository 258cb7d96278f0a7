"""Turn a corpus into a store: train the vocabulary, encode on all cores, restart where it stopped."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffwindow.data.audit import Audit, CorpusError, Row
from diffwindow.data.chunks import CHUNK_ROWS, ChunkEncoder, encoded_chunks, raw_chunks
from diffwindow.data.encoder import token_dtype
from diffwindow.data.moses import pretokenizers
from diffwindow.data.recipe import Recipe, Source, Vocabulary
from diffwindow.data.store import TASKS, Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.data.writer import PartialStore, SplitWriter
from diffwindow.files import sha256_of

Progress = Callable[[str, float], None]
# a vocabulary learned from a million rows spread over the corpus; more costs memory and changes little
TRAINING_ROWS = 1_000_000
CHECKPOINT_SECONDS = 5.0


def quiet(stage: str, fraction: float) -> None:
    """Show no progress."""


def prepare(
    recipe: Recipe,
    out: Path,
    *,
    tokenizer: Path | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Write the store `out`, which appears only when it is whole.

    The work in progress is `out`.partial; the same call goes on with it. `tokenizer` uses an existing
    tokenizer.json in place of a new vocabulary.
    """
    if out.exists():
        raise ValueError(f"{out} exists already; remove it or choose another --out")
    given = sha256_of(tokenizer) if tokenizer else None
    inputs = recipe.inputs()
    partial = PartialStore(
        out, {"settings": recipe.settings(), "inputs": inputs, "tokenizer": given, "skip_bad": skip_bad}
    )
    _make_tokenizer(recipe, partial, tokenizer, skip_bad=skip_bad, progress=progress)
    for split, source in recipe.splits.items():
        if not partial.state["splits"].get(split, {}).get("found"):
            _write_split(
                recipe, split, source, partial, workers=workers, skip_bad=skip_bad, progress=progress
            )
    partial.finish(_manifest(recipe, partial, inputs))
    return Store.open(out)


def _make_tokenizer(
    recipe: Recipe, partial: PartialStore, given: Path | None, *, skip_bad: bool, progress: Progress
) -> None:
    if partial.resumed:
        return
    tokenizer = (
        Tokenizer.load(given) if given else train_vocabulary(recipe, skip_bad=skip_bad, progress=progress)
    )
    tokenizer.save(partial.tokenizer_file)
    partial.save()


def train_vocabulary(recipe: Recipe, *, skip_bad: bool, progress: Progress = quiet) -> Tokenizer:
    """Learn the recipe's vocabulary from its first split, source and target together."""
    source = next(iter(recipe.splits.values()))
    total = source.rows or source.estimated_rows(Audit(skip_bad=True), sample=CHUNK_ROWS)[1]
    audit = Audit(skip_bad=skip_bad)

    def sampled() -> Iterator[Row]:
        stride = max(1, round(total / TRAINING_ROWS))
        for number, row in enumerate(source.read(audit)):
            if number % CHUNK_ROWS == 0:
                progress("vocabulary", source.done(audit))
            if number % stride == 0:
                yield row

    return trained(recipe.vocabulary, texts_of(sampled(), recipe))


def trained(vocabulary: Vocabulary, lines: Iterator[str]) -> Tokenizer:
    """Train the kind of tokenizer that `vocabulary` names."""
    if vocabulary.kind == "words":
        return Tokenizer.train_words(lines, vocabulary.size)
    assert vocabulary.size is not None, "byte-level BPE needs a size"
    return Tokenizer.train_bpe(lines, vocabulary.size)


def texts_of(rows: Iterator[Row], recipe: Recipe) -> Iterator[str]:
    """Yield every text of the rows, pre-tokenised as the recipe says."""
    before = pretokenizers(recipe.moses)
    for row in rows:
        for field in TASKS[recipe.task]:
            text = str(row[field])
            yield before[field](text) if field in before else text


def _write_split(
    recipe: Recipe,
    split: str,
    source: Source,
    partial: PartialStore,
    *,
    workers: int,
    skip_bad: bool,
    progress: Progress,
) -> None:
    audit = Audit(skip_bad=skip_bad)
    dtype = token_dtype(Tokenizer.load(partial.tokenizer_file).vocab_size)
    writer = SplitWriter(partial.folder, split, dtype.itemsize, partial.state["splits"].get(split))
    rows = source.read(audit)
    # reading again what is stored already is quick, and counts its labels and skipped rows
    for _ in range(writer.rows):
        next(rows)
    chunks = raw_chunks(rows, TASKS[recipe.task])
    saved = time.monotonic()
    try:
        for chunk in encoded_chunks(chunks, partial.tokenizer_file, recipe.moses, workers=workers):
            writer.append(chunk)
            progress(split, source.done(audit))
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                partial.checkpoint(split, writer.sync())
                saved = time.monotonic()
        if not writer.rows:
            raise CorpusError(
                f"the {split} split of {recipe.name} is empty: {audit.summary()['skipped'] or 'no rows'}"
            )
        partial.checkpoint(split, writer.sync() | {"found": audit.summary()})
    finally:
        writer.close()


def _manifest(recipe: Recipe, partial: PartialStore, inputs: dict[str, Any]) -> dict[str, Any]:
    tokenizer = Tokenizer.load(partial.tokenizer_file)
    itemsize = token_dtype(tokenizer.vocab_size).itemsize
    splits: dict[str, Any] = {}
    for split in recipe.splits:
        state = partial.state["splits"][split]
        names = [name.split(".")[-2:] for name in state["bytes"]]
        splits[split] = {
            "rows": state["rows"],
            "sequences": [field for field, kind in names if kind == "tokens"],
            "columns": [field for field, kind in names if kind == "values"],
            "tokens": {
                field: state["bytes"][f"{split}.{field}.tokens"] // itemsize
                for field, kind in names
                if kind == "tokens"
            },
            "found": state["found"],
            "inputs": inputs[split],
        }
    return {
        "task": recipe.task,
        "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size},
        "settings": recipe.settings(),
        "splits": splits,
    }


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
            reading = time.perf_counter() - started
            if not first:
                raise CorpusError(f"the {split} split of {recipe.name} is empty")
            training = 0.0
            if not tokenizer_file.exists():
                trained(recipe.vocabulary, texts_of(iter(first), recipe)).save(tokenizer_file)
                training = time.perf_counter() - started - reading
            encoder = ChunkEncoder(tokenizer_file, recipe.moses)
            started = time.perf_counter()
            chunks = [encoder(chunk) for chunk in raw_chunks(iter(first), TASKS[recipe.task])]
            encoding = time.perf_counter() - started
            size += rows[split] / len(first) * sum(_size(chunk.sequences, chunk.columns) for chunk in chunks)
            scale = rows[split] / len(first)
            # the vocabulary reads its split once more and learns from at most TRAINING_ROWS
            learning = training * min(scale, TRAINING_ROWS / len(first)) + (
                reading * scale if training else 0
            )
            seconds += reading * scale + encoding * scale / workers + learning
    return Estimate(rows, int(size), seconds)


def _size(sequences: dict[str, Any], columns: dict[str, Any]) -> int:
    return sum(len(tokens) + 8 * len(lengths) for tokens, lengths in sequences.values()) + sum(
        4 * len(values) for values in columns.values()
    )
