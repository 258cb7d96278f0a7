"""Trained: a model folder opened for use, whatever kind of model it holds."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from diffwindow.data.store import Store
from diffwindow.data.tokenizer import Tokenizer
from diffwindow.files import sha256_of
from diffwindow.models.build import MODELS, Model
from diffwindow.models.pretrained import CONFIG, TOKENIZER, read_fields
from diffwindow.ops import check_choice
from diffwindow.tasks.model_folder import read_record
from diffwindow.tasks.options import TaskOptions
from diffwindow.tasks.registry import AnyTask, task_of


@dataclass(frozen=True)
class Trained:
    """A model, its tokenizer, and how it reads a corpus; `moses` has the languages tokenised first."""

    folder: Path
    model: Model
    tokenizer: Tokenizer
    options: TaskOptions
    corpus: str
    moses: dict[str, str]

    @classmethod
    def load(cls, run: Path) -> Self:
        """Open a run folder's final model, or a model folder."""
        folder = model_folder(run)
        fields = read_fields(folder)
        check_choice(f"{folder / CONFIG}: model", fields.get("model"), list(MODELS))
        model: Model = MODELS[fields["model"]].from_pretrained(folder)
        return cls(folder, model, Tokenizer.load(folder / TOKENIZER), *read_record(folder))

    def task(self, store: Store) -> AnyTask:
        """Build the task of evaluating the model on a store, which must have its vocabulary."""
        if sha256_of(self.folder / TOKENIZER) != store.manifest["tokenizer"]["sha256"]:
            raise ValueError(
                f"{store.folder} has another vocabulary than {self.folder}; prepare it again with the "
                f"tokenizer {self.folder / TOKENIZER}"
            )
        return task_of(store, self.model.config, self.options)


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


def target_language(corpus: str, moses: dict[str, str]) -> str:
    """Return the language of the translations: that of Moses, or what the name of the corpus ends in.

    >>> target_language("multi30k-en-de", {}), target_language("reorder", {})
    ('de', 'en')
    """
    if "target" in moses:
        return moses["target"]
    last = corpus.rpartition("-")[2]
    return last if corpus.count("-") >= 2 and len(last) == 2 and last.isalpha() else "en"
