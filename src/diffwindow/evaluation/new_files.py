"""New test files for a trained model, read with its own tokenizer, languages and labels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from diffwindow.data.corpora import CORPORA, recipe_of
from diffwindow.data.own_files import labelled_text, plain_text, two_files
from diffwindow.data.prepare import prepare
from diffwindow.data.readers import ANY_COLUMNS, Columns
from diffwindow.data.recipe import Recipe, Source
from diffwindow.data.store import Store
from diffwindow.models.model import TOKENIZER
from diffwindow.tasks.model_folder import ModelFolder

SPLIT = "test"


@dataclass(frozen=True)
class NewFiles:
    """A test set: a source and its reference, labelled text, or text; exactly one kind is given.

    `raw` is a folder with the raw files of the corpus that the model was trained on.
    """

    source: Path | None = None
    reference: Path | None = None
    labels: Path | None = None
    text: Path | None = None
    raw: Path | None = None
    columns: Columns = ANY_COLUMNS

    @property
    def paths(self) -> list[Path]:
        """The files that are given."""
        named = (self.source, self.reference, self.labels, self.text, self.raw)
        return [path for path in named if path is not None]

    def recipe(self, trained: ModelFolder, split: str = SPLIT) -> Recipe:
        """Return the recipe of the files for a model, or of a split of raw files; raise for another task."""
        if missing := next((path for path in self.paths if not path.exists()), None):
            raise ValueError(f"there is no file {missing}")
        if self.raw:
            if trained.record.corpus not in CORPORA:
                raise ValueError(f"{self.raw} is not a prepared corpus; `diffwindow prepare` makes one")
            corpus = recipe_of(trained.record.corpus, self.raw)
            if split not in corpus.splits:
                raise ValueError(f"{self.raw} has no split {split!r}; it has {', '.join(corpus.splits)}")
            recipe = replace(corpus, splits={split: corpus.splits[split]})
        elif self.source and self.reference:
            recipe = self._recipe("translation", two_files(self.source, self.reference))
        elif self.labels:
            recipe = self._recipe("classification", labelled_text(self.labels, trained.labels, self.columns))
        elif self.text:
            recipe = self._recipe("language-model", plain_text(self.text))
        else:
            raise ValueError("a test set is a source with its reference, labelled text, or text")
        task = trained.entry.name
        if recipe.task != task:
            raise ValueError(f"{self}: a test set for {recipe.task}, but {trained.path} is for {task}")
        return replace(recipe, moses=trained.record.moses, labels=trained.record.labels)

    def _recipe(self, task: str, source: Source) -> Recipe:
        return Recipe(str(self), task, {SPLIT: source})

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))


@contextmanager
def new_store(trained: ModelFolder, files: NewFiles, split: str = SPLIT) -> Iterator[Store]:
    """Prepare new files with the model's tokenizer in a folder that is removed at the end."""
    recipe = files.recipe(trained, split)
    with tempfile.TemporaryDirectory(prefix="diffwindow-") as folder:
        yield prepare(recipe, Path(folder) / "store", tokenizer=trained.path / TOKENIZER)
