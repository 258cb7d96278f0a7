"""The folder of a trained model: weights, config and tokenizer, and `task.json`, how it reads a corpus."""

import json
from pathlib import Path
from typing import Any, cast

from torch import nn

from diffwindow.data.store import Store
from diffwindow.files import write_json
from diffwindow.models.pretrained import PretrainedModel
from diffwindow.tasks.task import TaskOptions

TASK = "task.json"


def save_folder(model: nn.Module, store: Store, options: TaskOptions, folder: Path) -> None:
    """Write a model with all that using it again needs."""
    cast(PretrainedModel[Any], model).save_pretrained(folder, store.tokenizer)
    settings = store.manifest["settings"]
    record = {"corpus": settings["corpus"], "moses": settings["moses"], "options": options.model_dump()}
    write_json(folder / TASK, record)


def read_record(folder: Path) -> tuple[TaskOptions, str, dict[str, str]]:
    """Read a folder's options, the name of its corpus, and its languages by field where Moses tokenises.

    A folder without the file, as an average of checkpoints is, has that of `model` beside it or the defaults.
    """
    for path in (folder / TASK, folder.parent / "model" / TASK):
        if path.is_file():
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                return TaskOptions(**record["options"]), str(record["corpus"]), dict(record["moses"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is damaged ({error}); save the model again") from None
    return TaskOptions(), "", {}
