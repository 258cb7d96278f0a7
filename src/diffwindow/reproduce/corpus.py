"""The corpus of a setting: prepared once, then shared by all rows and seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diffwindow.data.corpora import generated, recipe_of
from diffwindow.data.holdout import share
from diffwindow.data.prepare import Progress, prepare, quiet
from diffwindow.data.recipe import Recipe, Source
from diffwindow.data.store import TASKS
from diffwindow.reproduce.setting import Setting


def make_store(setting: Setting, store: Path, data: Path | None, *, progress: Progress = quiet) -> None:
    """Make a setting's store from the raw files in `data`, unless it is there."""
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        prepare(recipe(setting, data), store, progress=progress)


def recipe(setting: Setting, data: Path | None) -> Recipe:
    """Give the recipe of a setting: the corpus with its vocabulary, and its share of the training rows."""
    name = setting.corpus_name
    found = generated(name, rows=setting.rows) or recipe_of(name, data)
    found = replace(found, task=setting.task or found.task)
    found = found.adjusted(vocab_size=setting.vocab_size, moses=None)
    if setting.kept == 1000:
        return found
    splits = found.splits | {"train": _kept(found.splits["train"], TASKS[found.task][0], setting.kept)}
    return replace(found, splits=splits, variant=found.variant | {"kept": setting.kept})


def _kept(source: Source, field: str, thousandths: int) -> Source:
    return replace(source, reader=lambda audit: share(source.reader(audit), field, range(thousandths)))
