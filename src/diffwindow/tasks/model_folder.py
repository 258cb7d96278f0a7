"""The folder of a trained model: weights, config and tokenizer, and `task.json`, how it reads a corpus."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import nn

from diffwindow.data.corpora import CORPORA
from diffwindow.data.store import Store
from diffwindow.files import read_json, write_json
from diffwindow.models.pretrained import PretrainedModel
from diffwindow.tasks.options import TaskOptions

TASK = "task.json"


def save_folder(model: nn.Module, store: Store, options: TaskOptions, folder: Path) -> None:
    """Write a model with everything needed to use it again."""
    cast(PretrainedModel[Any], model).save_pretrained(folder, store.tokenizer)
    settings = store.manifest["settings"]
    record = {
        "corpus": settings["corpus"],
        "moses": settings["moses"],
        "languages": store.languages,
        "labels": list(store.labels),
        "options": options.model_dump(),
    }
    write_json(folder / TASK, record)


@dataclass(frozen=True)
class Record:
    """How a model reads a corpus: its options, the corpus's name, and languages and labels where known.

    `moses` has the languages of the fields that Moses tokenises. `labels` names the classes by number.
    """

    options: TaskOptions = field(default_factory=TaskOptions)
    corpus: str = ""
    moses: dict[str, str] = field(default_factory=dict)
    languages: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def read_record(folder: Path) -> Record:
    """Read the record of a model folder; a folder that `save_pretrained` wrote has none, so the defaults."""
    path = folder / TASK
    if not path.is_file():
        return Record()
    record = read_json(path)
    try:
        name, moses = str(record["corpus"]), dict(record["moses"])
        # folders from before these were recorded: what is known of the corpus
        known = CORPORA.get(name)
        languages = record.get("languages", known.languages if known else {})
        labels = record.get("labels", known.labels if known else ())
        return Record(
            TaskOptions(**record["options"]), name, moses, moses | dict(languages), tuple(map(str, labels))
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; save the model again") from None
