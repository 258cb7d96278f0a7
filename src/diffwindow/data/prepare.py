"""Turn a corpus into a store: train the vocabulary, encode on all cores, restart where it stopped."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from diffwindow.data.audit import Audit, CorpusError
from diffwindow.data.chunks import encoded_chunks, raw_chunks
from diffwindow.data.encoder import token_dtype
from diffwindow.data.recipe import Recipe, Source
from diffwindow.data.store import TASKS, Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.data.vocabulary import Progress, quiet, train_vocabulary
from diffwindow.data.writer import PartialStore, SplitWriter
from diffwindow.files import sha256_of

__all__ = ["CHECKPOINT_SECONDS", "Progress", "prepare", "quiet", "usual_workers"]

CHECKPOINT_SECONDS = 5.0


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
    if tokenizer:
        # say what is wrong with it before any work
        Tokenizer.load(tokenizer)
    given = sha256_of(tokenizer) if tokenizer else None
    inputs = recipe.inputs()
    fingerprint = {"settings": recipe.settings(), "inputs": inputs, "tokenizer": given, "skip_bad": skip_bad}
    with PartialStore.opened(out, fingerprint) as partial:
        _make_tokenizer(recipe, partial, tokenizer, skip_bad=skip_bad, progress=progress)
        for split, source in recipe.splits.items():
            if not partial.state["splits"].get(split, {}).get("found"):
                _write_split(
                    recipe, split, source, partial, workers=workers, skip_bad=skip_bad, progress=progress
                )
        partial.finish(_manifest(recipe, partial, inputs))
    return Store.open(out)


def usual_workers(recipe: Recipe) -> int:
    """Return how many processes a corpus is worth: the cores, at most 4; one if it takes only a moment."""
    megabytes = sum(source.bytes for source in recipe.splits.values()) / 1e6
    return min(4, os.cpu_count() or 1) if megabytes > 20 else 1


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
