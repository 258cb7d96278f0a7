"""Turn a corpus into a store: train the vocabulary, encode on all cores, resume where it stopped."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.corpora import recipe_of
from diffwindow.data.encoding import (
    TRAINING_CHARACTERS,
    ChunkEncoder,
    encoded_chunks,
    raw_chunks,
    texts_of,
    train_tokenizer,
    train_vocabulary,
    with_vocabulary_size,
)
from diffwindow.data.lines import Audit, CorpusError, Row
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import (
    TOKENIZER,
    Found,
    Manifest,
    Split,
    SplitEntry,
    Store,
    StoreSettings,
    TokenizerEntry,
    text_fields,
)
from diffwindow.data.tokenizer import Tokenizer, token_dtype
from diffwindow.data.writer import Chunk, PartialStore, SplitWriter, is_finished
from diffwindow.files import sha256_of
from diffwindow.progress import SILENT, Progress

CHECKPOINT_SECONDS = 5.0
# tokens hashed at once, so that a store larger than memory needs little of it
CHUNK_TOKENS = 1 << 20
# some headings and short sentences are in any split
NOTED_SHARE = 0.1


def prepare(
    recipe: Recipe | str,
    out: str | os.PathLike[str],
    *,
    tokenizer: Path | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Write the store `out` from a recipe or a generated corpus's name; it appears only when it is whole.

    The work in progress is `out`.partial; the same call resumes it, and opens the store once it is whole.
    `tokenizer` uses an existing tokenizer.json in place of a new vocabulary.
    """
    recipe, out = recipe_of(recipe) if isinstance(recipe, str) else recipe, Path(out)
    if given := Tokenizer.load(tokenizer) if tokenizer else None:
        recipe = replace(recipe, normalization=given.normalization)
    else:
        recipe = with_vocabulary_size(recipe)
    fingerprint = {
        "task": recipe.task,
        "settings": recipe.settings(),
        "inputs": recipe.inputs(),
        "options": {"tokenizer": sha256_of(tokenizer) if tokenizer else None, "skip_bad": skip_bad},
    }
    if is_finished(out, fingerprint):
        progress.note(f"{out} is complete: it was made from the same files with the same settings")
        return Store.open(out)
    with PartialStore.opened(out, fingerprint) as partial:
        if not partial.tokenizer_file.exists():
            vocabulary = given or train_vocabulary(recipe, skip_bad=skip_bad, progress=progress)
            vocabulary.save(partial.tokenizer_file)
        for split in recipe.splits:
            if not partial.state["splits"].get(split, {}).get("found"):
                _write_split(recipe, split, partial, workers=workers, skip_bad=skip_bad, progress=progress)
        partial.finish(_manifest(recipe, partial, fingerprint))
    store = Store.open(out)
    for later, earlier in combinations(reversed(store.splits.values()), 2):
        if (share := repeated_share(later, earlier)) > NOTED_SHARE:
            progress.note(
                f"{share:.0%} of the text of {later.name} is in {earlier.name} too: "
                "its scores say little of new text"
            )
    return store


def open_or_prepare(
    path: Path,
    recipe: Callable[[], Recipe],
    *,
    tokenizer: Path | None = None,
    progress: Progress = SILENT,
) -> Store:
    """Open the store at `path`; prepare it first unless it exists, with an existing tokenizer if given."""
    if path.exists():
        return Store.open(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    missing = recipe()
    return prepare(missing, path, tokenizer=tokenizer, workers=usual_workers(missing), progress=progress)


def usual_workers(recipe: Recipe) -> int:
    """Return how many processes to use: one per core, at most 4; one for a small corpus."""
    megabytes = sum(source.bytes for source in recipe.splits.values()) / 1e6
    return min(4, os.cpu_count() or 1) if megabytes > 20 else 1


def _write_split(
    recipe: Recipe,
    split: str,
    partial: PartialStore,
    *,
    workers: int,
    skip_bad: bool,
    progress: Progress,
) -> None:
    source, audit = recipe.splits[split], Audit(skip_bad=skip_bad)
    dtype = token_dtype(Tokenizer.load(partial.tokenizer_file).vocab_size)
    writer = SplitWriter(partial.folder, split, dtype.itemsize, partial.state["splits"].get(split))
    rows = source.read(audit)
    # skip what is stored already; reading it is quick, and counts its labels and skipped rows
    for _ in range(writer.rows):
        next(rows)
    chunks = raw_chunks(rows, text_fields(recipe.task))
    saved = time.monotonic()
    try:
        for chunk in encoded_chunks(chunks, partial.tokenizer_file, recipe.moses, workers=workers):
            writer.append(chunk)
            progress(split, source.done(audit))
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                partial.checkpoint(split, writer.sync())
                saved = time.monotonic()
        if not writer.rows:
            raise _empty(recipe, split, audit)
        partial.checkpoint(split, writer.sync() | {"found": audit.summary()})
    finally:
        writer.close()


def _empty(recipe: Recipe, split: str, audit: Audit) -> CorpusError:
    """Say which files a split without rows was read from, and why rows were left out."""
    files = " and ".join(map(str, recipe.splits[split].files)) or recipe.name
    bad = "".join(
        f"; left out {count:,}: {problem} (first: {audit.first_skipped[problem]})"
        for problem, count in audit.skipped.items()
    )
    return CorpusError(f"the {split} split is empty: {files} has no good row{bad}")


def _manifest(recipe: Recipe, partial: PartialStore, fingerprint: dict[str, Any]) -> Manifest:
    tokenizer, sha256 = Tokenizer.load(partial.tokenizer_file), sha256_of(partial.tokenizer_file)
    itemsize = token_dtype(tokenizer.vocab_size).itemsize
    splits: dict[str, SplitEntry] = {}
    for split in recipe.splits:
        state, files = partial.state["splits"][split], partial.hash_files(split)
        names = [name.split(".")[-2:] for name in files]
        sequences = tuple(field for field, kind in names if kind == "tokens")
        splits[split] = SplitEntry(
            rows=state["rows"],
            sequences=sequences,
            columns=tuple(field for field, kind in names if kind == "values"),
            tokens={field: files[f"{split}.{field}.tokens"].bytes // itemsize for field in sequences},
            found=Found(**state["found"]),
            inputs=fingerprint["inputs"][split],
            files=files,
        )
    return Manifest(
        task=fingerprint["task"],
        tokenizer=TokenizerEntry(sha256=sha256, kind=tokenizer.kind, vocab_size=tokenizer.vocab_size),
        settings=StoreSettings(**fingerprint["settings"]),
        options=fingerprint["options"],
        splits=splits,
    )


@dataclass(frozen=True)
class Estimate:
    """What preparing a corpus would take, from a sample of each split."""

    rows: dict[str, int]
    bytes: int
    seconds: float


def estimate(recipe: Recipe, *, workers: int = 1, skip_bad: bool = False, sample: int = 10_000) -> Estimate:
    """Encode a sample of each split with a vocabulary learned from it, and scale up; nothing is kept."""
    recipe = with_vocabulary_size(recipe)
    rows: dict[str, int] = {}
    size = seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file = Path(folder) / TOKENIZER
        for split, source in recipe.splits.items():
            started = time.perf_counter()
            audit = Audit(skip_bad=skip_bad)
            first, rows[split] = source.estimated_rows(audit, sample=sample)
            if not first:
                raise _empty(recipe, split, audit)
            scale = rows[split] / len(first)
            reading = (time.perf_counter() - started) * scale
            if not tokenizer_file.exists():
                # the vocabulary reads its split once more, and learns from TRAINING_CHARACTERS at most
                seconds += reading + _learning(recipe, first, scale, tokenizer_file)
            encoder = ChunkEncoder(tokenizer_file, recipe.moses)
            started = time.perf_counter()
            chunks = [encoder(chunk) for chunk in raw_chunks(iter(first), text_fields(recipe.task))]
            seconds += reading + (time.perf_counter() - started) * scale / workers
            size += scale * sum(_size(chunk) for chunk in chunks)
    return Estimate(rows, int(size), seconds)


def _learning(recipe: Recipe, first: list[Row], scale: float, tokenizer_file: Path) -> float:
    """Learn a vocabulary from the sample and return the seconds that the whole would take."""
    characters = sum(map(len, texts_of(iter(first), recipe)))
    started = time.perf_counter()
    train_tokenizer(recipe, texts_of(iter(first), recipe)).save(tokenizer_file)
    return (time.perf_counter() - started) * min(scale, max(1, TRAINING_CHARACTERS / max(1, characters)))


def _size(chunk: Chunk) -> int:
    offsets = sum(len(tokens) + 8 * len(lengths) for tokens, lengths in chunk.sequences.values())
    return offsets + sum(values.nbytes for values in chunk.columns.values())


# rows that are looked for in another split, spread over theirs: few enough to be held in memory
SAMPLED_ROWS = 1 << 17


def repeated_share(split: Split, other: Split) -> float:
    """Return how much of a split's text, by the tokens of its rows or a sample, another split has too."""
    step, start, samples = -(-len(split) // SAMPLED_ROWS), 0, []
    for rows in _hash_rows(split):
        samples.append(rows[:, -start % step :: step])
        start += rows.shape[1]
    hashes, sizes = np.concatenate(samples, axis=1)
    wanted, places = np.unique(hashes, return_inverse=True)
    found = np.zeros(len(wanted), bool)
    for others, _ in _hash_rows(other):
        nearest = np.searchsorted(wanted, others).clip(max=len(wanted) - 1)
        found[nearest[wanted[nearest] == others]] = True
    return float(sizes[found[places]].sum() / sizes.sum())


def _hash_rows(split: Split) -> Iterator[NDArray[np.uint64]]:
    """Yield, for pieces of the rows, the hash of each row's texts and its number of tokens."""
    fields, start = split.sequences.values(), 0
    while start < len(split):
        ends = [np.searchsorted(field.offsets, field.offsets[start] + CHUNK_TOKENS) for field in fields]
        stop = min(len(split), max(start + 1, *map(int, ends)))
        rows = np.zeros((2, stop - start), np.uint64)
        for field in fields:
            offsets = field.offsets[start : stop + 1]
            lengths, begins = np.diff(offsets), offsets[:-1] - offsets[0]
            tokens = field.tokens[offsets[0] : offsets[-1]].astype(np.uint64)
            places = (np.arange(len(tokens)) - np.repeat(begins, lengths)).astype(np.uint64)
            # the bits of a token and its place, mixed as in splitmix64
            mixed = (tokens + (places << np.uint64(32)) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(27)
            rows[0] = rows[0] * np.uint64(3) + np.add.reduceat(mixed, begins)
            rows[1] += lengths.astype(np.uint64)
        yield rows
        start = stop
