"""ModelFolder: a trained model on disk, with weights, config, tokenizer, and `task.json`, its record."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from diffwindow.data.own_files import label_numbers
from diffwindow.data.recipe import check_language
from diffwindow.data.store import Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.files import check_folder_place, read_json, sha256_of, write_atomically, write_json
from diffwindow.messages import check_choice
from diffwindow.models.model import MODEL_CONFIG, TOKENIZER, Folder, Model, read_fields, write_model_files
from diffwindow.models.weights import (
    MODEL_MANIFEST,
    WEIGHTS,
    ModelFileError,
    average_weights,
    verify,
    write_folder,
)
from diffwindow.special_tokens import BOS, EOS
from diffwindow.tasks.classification import Classification
from diffwindow.tasks.entries import MODELS, TaskEntry, TaskOptions
from diffwindow.tasks.task import StoreTask, task_of

TASK = "task.json"


class Record(BaseModel):
    """How a model reads a corpus, as `task.json` has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str
    """Name of the corpus."""
    moses: dict[str, str]
    """Languages of the fields that Moses tokenises."""
    languages: dict[str, str]
    """Known languages by field."""
    labels: tuple[str, ...]
    """Names of the classes by number."""
    options: TaskOptions
    """Options of the task that the model was trained for."""

    @classmethod
    def of(cls, task: StoreTask[Any]) -> Self:
        """Return the record of a task's model."""
        store, settings = task.store, task.store.manifest.settings
        return cls(
            corpus=settings.corpus,
            moses=settings.moses,
            languages=store.languages,
            labels=store.labels,
            options=task.options,
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the record of a model folder; return the defaults if there is none."""
        path = folder / TASK
        if not path.is_file():
            return cls(corpus="", moses={}, languages={}, labels=(), options=TaskOptions())
        try:
            return cls(**read_json(path))
        except ValidationError:
            raise ValueError(
                f"{path} is damaged, or another version of diffwindow wrote it; train the model again"
            ) from None


@dataclass(frozen=True)
class ModelFolder:
    """A model, its tokenizer and its record, and the folder where they are or will be."""

    path: Path
    model: Model[Any]
    tokenizer: Tokenizer
    record: Record

    @classmethod
    def of(cls, task: StoreTask[Any], model: nn.Module, path: Path) -> Self:
        """Return the folder of a task's model, still to be written."""
        assert isinstance(model, Model)
        return cls(path, model, task.store.tokenizer, Record.of(task))

    @classmethod
    def read(cls, run: Path) -> Self:
        """Read a run folder's final model, or a model folder; its files are verified."""
        path = find_model(run)
        model = read_entry(path).model_class.from_pretrained(path)
        return cls(path, model, Tokenizer.load(path / TOKENIZER), Record.read(path))

    def write(self) -> None:
        """Write the files, without the manifest of their hashes, which `write_folder` adds."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.model.write_files(self.path)
        self.tokenizer.save(self.path / TOKENIZER)
        write_json(self.path / TASK, self.record.model_dump(mode="json"))

    @staticmethod
    def average(sources: Sequence[Folder], target: Folder, *, updates: Sequence[int] = ()) -> None:
        """Write the average of models, each a folder or a weight file saved from one, to a model folder.

        Folders with a manifest are verified first. The config comes from the weights, tokenizer and record
        from the last source that has them. An average or the model of a run that is at `target` already is
        replaced.
        """
        files = [Path(source) / WEIGHTS if Path(source).is_dir() else Path(source) for source in sources]
        for file in files:
            if (file.parent / MODEL_MANIFEST).exists():
                verify(file.parent)
        target = Path(target)
        _check_replaceable(target)
        tensors, config = average_weights(files)
        if config is None:
            raise ModelFileError(
                f"{files[0]} does not say which config it belongs to; save it with save_pretrained"
            )
        beside = {
            name: path
            for name in (TOKENIZER, TASK)
            for file in files
            if (path := file.parent / name).is_file()
        }

        def write_files(folder: Path) -> None:
            write_model_files(folder, tensors, config)
            for name, path in beside.items():
                write_atomically(folder / name, path.read_bytes())

        write_folder(target, write_files, {"updates": list(updates)})

    @property
    def entry(self) -> TaskEntry:
        """The entry of the task that the model is for."""
        return MODELS[self.model.config.model]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes by number; numerals where none are known."""
        classes = getattr(self.model.config, "num_classes", 0)
        names = self.record.labels
        return names if len(names) == classes else tuple(map(str, range(classes)))

    @cached_property
    def vocabulary(self) -> str:
        """The hash of the tokenizer's file, by which vocabularies are told apart."""
        return sha256_of(self.path / TOKENIZER)

    def with_language(self, field: str, language: str) -> Self:
        """Return the same with a language for a text field."""
        check_language(language, field)
        languages = self.record.languages | {field: language}
        return replace(self, record=self.record.model_copy(update={"languages": languages}))

    @property
    def opening(self) -> int:
        """The token that a language model reads before a text: in running text, the end of another."""
        return BOS if self.record.options.block_size is None else EOS

    def encode(self, texts: Sequence[str], field: str) -> list[list[int]]:
        """Encode texts of a field as its corpus was, through Moses if that was."""
        before = self.tokenizer.pretokenizer(self.record.moses.get(field))
        return [list(ids) for ids in self.tokenizer.encode_batch([before(text.strip()) for text in texts])]

    def task(self, store: Store) -> StoreTask[Any]:
        """Build the task of evaluating the model on a store with its vocabulary, Moses, languages, labels."""
        self.check_tokens(store)
        for field, language in self.record.languages.items():
            if (other := store.languages.get(field, language)) != language:
                raise ValueError(
                    f"the {field} of {store.folder} is {other!r}, but {self.path} was trained with "
                    f"{language!r}; use a corpus of its languages"
                )
        classes = self.classes_of(store)
        task = task_of(store, self.model.config, self.record.options)
        return replace(task, classes=classes) if isinstance(task, Classification) else task

    def check_tokens(self, store: Store) -> None:
        """Raise unless the texts of a store became tokens as those of the model's corpus did."""
        if self.vocabulary != store.manifest.tokenizer.sha256:
            raise ValueError(
                f"{store.folder} has another vocabulary than {self.path}; prepare it again with the "
                f"tokenizer {self.path / TOKENIZER}"
            )
        moses = self.record.moses
        # a model that was saved without a record names no corpus
        if self.record.corpus and moses.keys() != store.manifest.settings.moses.keys():
            raise ValueError(
                f"{store.folder} was prepared {'without' if moses else 'with'} Moses, but the corpus of "
                f"{self.path} {'with' if moses else 'without'} it; prepare it again "
                + (f"with --moses {','.join(moses.values())}" if moses else "without --moses")
            )

    def classes_of(self, store: Store) -> tuple[int, ...] | None:
        """Return the model's class of each label of a store, by name.

        None if their labels are the same, or either has no names.
        """
        names = store.manifest.settings.labels
        named = self.labels and self.labels == self.record.labels
        if not named or names in ((), self.labels):
            return None
        number = label_numbers(self.labels)
        classes = {name: number(name) for name in names}
        if unknown := [name for name, found in classes.items() if found is None]:
            raise ValueError(
                f"{store.folder} has the label {unknown[0]!r}, but {self.path} was trained with "
                f"{', '.join(self.labels)}; use a corpus with these labels"
            )
        return tuple(found for found in classes.values() if found is not None)


def find_model(run: Path) -> Path:
    """Return the model folder in a run folder, or a model folder as it is."""
    for folder in (run / "model", run):
        if (folder / MODEL_CONFIG).is_file():
            return folder
    if not run.exists():
        raise ValueError(f"there is no folder {run}")
    again = shlex.join(["diffwindow", "train", str(run)])
    if (run / "model").is_dir():
        raise ValueError(f"{run / 'model'} is damaged: it has no {MODEL_CONFIG}; `{again}` makes it again")
    if (run / "checkpoints").is_dir():
        raise ValueError(f"{run} has no model yet; go on with `{again}`, then try again")
    missing = f"it has no model/{MODEL_CONFIG} and no {MODEL_CONFIG}"
    raise ValueError(f"{run} is neither a run folder nor a model folder: {missing}")


def read_entry(folder: Path) -> TaskEntry:
    """Return the entry of the task that the model of a folder is for."""
    kind = read_fields(folder).get("model")
    check_choice(f"{folder / MODEL_CONFIG}: model", kind, list(MODELS))
    return MODELS[str(kind)]


def _check_replaceable(folder: Path) -> None:
    """Raise if a folder holds anything but the model of a run or an average; it may hold other files then."""
    check_folder_place(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / MODEL_MANIFEST).is_file() or verify(folder).keys().isdisjoint(("update", "updates")):
        raise ValueError(f"{folder} holds something other than the model of a run; choose another folder")
