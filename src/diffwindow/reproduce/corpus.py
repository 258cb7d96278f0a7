"""The corpus of a setting: prepared once, then shared by all rows and seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diffwindow.data.corpora import generated, recipe_of
from diffwindow.data.prepare import Progress, prepare, quiet
from diffwindow.data.recipe import Recipe
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
    kept = found.splits["train"].share(TASKS[found.task][0], range(setting.kept))
    return replace(
        found, splits=found.splits | {"train": kept}, variant=found.variant | {"kept": setting.kept}
    )
