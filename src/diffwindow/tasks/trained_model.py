"""Trained: a model folder opened for use, whatever kind of model it holds."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from diffwindow.data.own_files import label_numbers
from diffwindow.data.recipe import check_language
from diffwindow.data.store import Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.files import sha256_of
from diffwindow.messages import check_choice
from diffwindow.models.build import MODELS, Model
from diffwindow.models.classifier import Classifier
from diffwindow.models.pretrained import CONFIG, TOKENIZER, read_fields
from diffwindow.tasks.classification import Classification
from diffwindow.tasks.model_folder import Record, read_record
from diffwindow.tasks.options import TaskOptions
from diffwindow.tasks.registry import AnyTask, task_of


@dataclass(frozen=True)
class Trained:
    """A model, its tokenizer, and how it reads a corpus."""

    folder: Path
    model: Model
    tokenizer: Tokenizer
    record: Record

    @classmethod
    def load(cls, run: Path) -> Self:
        """Open a run folder's final model, or a model folder."""
        folder = model_folder(run)
        fields = read_fields(folder)
        check_choice(f"{folder / CONFIG}: model", fields.get("model"), list(MODELS))
        model: Model = MODELS[fields["model"]].from_pretrained(folder)
        return cls(folder, model, Tokenizer.load(folder / TOKENIZER), read_record(folder))

    @property
    def options(self) -> TaskOptions:
        """Options of the task that the model was trained for."""
        return self.record.options

    @property
    def moses(self) -> dict[str, str]:
        """Languages of the fields that Moses tokenises."""
        return self.record.moses

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes by number; numerals where none are known."""
        classes = self.model.config.num_classes if isinstance(self.model, Classifier) else 0
        names = self.record.labels
        return names if len(names) == classes else tuple(map(str, range(classes)))

    @cached_property
    def vocabulary(self) -> str:
        """The hash of the tokenizer's file, by which vocabularies are told apart."""
        return sha256_of(self.folder / TOKENIZER)

    def with_language(self, field: str, language: str) -> Self:
        """Return the same with a language for a text field."""
        check_language(language, field)
        record = replace(self.record, languages=self.record.languages | {field: language})
        return replace(self, record=record)

    def encode(self, texts: Sequence[str], field: str) -> list[list[int]]:
        """Encode texts of a field as its corpus was, through Moses if that was."""
        before = self.tokenizer.pretokenizer(self.moses.get(field))
        return [list(ids) for ids in self.tokenizer.encode_batch([before(text.strip()) for text in texts])]

    def task(self, store: Store) -> AnyTask:
        """Build the task of evaluating the model on a store, which must have its vocabulary and labels."""
        if self.vocabulary != store.manifest["tokenizer"]["sha256"]:
            raise ValueError(
                f"{store.folder} has another vocabulary than {self.folder}; prepare it again with the "
                f"tokenizer {self.folder / TOKENIZER}"
            )
        classes = self.classes_of(store)
        task = task_of(store, self.model.config, self.options)
        return replace(task, classes=classes) if isinstance(task, Classification) else task

    def classes_of(self, store: Store) -> tuple[int, ...] | None:
        """Return the model's class of each label of a store, by name.

        None if their labels are the same, or either has no names.
        """
        names = tuple(store.manifest["settings"].get("labels", ()))
        named = self.labels and self.labels == self.record.labels
        if not named or names in ((), self.labels):
            return None
        number = label_numbers(self.labels)
        classes = {name: number(name) for name in names}
        if unknown := [name for name, found in classes.items() if found is None]:
            raise ValueError(
                f"{store.folder} has the label {unknown[0]!r}, but {self.folder} was trained with "
                f"{', '.join(self.labels)}; use a corpus with these labels"
            )
        return tuple(found for found in classes.values() if found is not None)


def model_folder(run: Path) -> Path:
    """Find the model of a run folder, or take a model folder as it is."""
    for folder in (run / "model", run):
        if (folder / CONFIG).is_file():
            return folder
    if not run.exists():
        raise ValueError(f"there is no folder {run}")
    again = shlex.join(["diffwindow", "train", str(run)])
    if (run / "model").is_dir():
        raise ValueError(f"{run / 'model'} is damaged: it has no {CONFIG}; `{again}` makes it again")
    if (run / "checkpoints").is_dir():
        raise ValueError(f"{run} has no model yet; go on with `{again}`, then try again")
    raise ValueError(
        f"{run} is neither a run folder nor a model folder: it has no model/{CONFIG} and no {CONFIG}"
    )
