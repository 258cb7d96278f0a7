"""The folder of a trained model: weights, config and tokenizer, and `task.json`, how it reads a corpus."""

from pathlib import Path
from typing import Any, cast

from torch import nn

from diffwindow.data.store import Store
from diffwindow.files import read_json, write_json
from diffwindow.models.pretrained import PretrainedModel
from diffwindow.tasks.options import TaskOptions

TASK = "task.json"


def save_folder(model: nn.Module, store: Store, options: TaskOptions, folder: Path) -> None:
    """Write a model with everything needed to use it again."""
    cast(PretrainedModel[Any], model).save_pretrained(folder, store.tokenizer)
    settings = store.manifest["settings"]
    record = {"corpus": settings["corpus"], "moses": settings["moses"], "options": options.model_dump()}
    write_json(folder / TASK, record)


def read_record(folder: Path) -> tuple[TaskOptions, str, dict[str, str]]:
    """Read a folder's options, the name of its corpus, and its languages by field where Moses tokenises.

    A folder without the file, as `save_pretrained` leaves it, has the defaults.
    """
    path = folder / TASK
    if not path.is_file():
        return TaskOptions(), "", {}
    record = read_json(path)
    try:
        return TaskOptions(**record["options"]), str(record["corpus"]), dict(record["moses"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; save the model again") from None
