"""The folder of a model: weights, config and tokenizer, for `from_pretrained` to read."""

from pathlib import Path
from typing import Any, cast

from safetensors.torch import save
from torch import nn

from diffwindow.data.tokenizer import Tokenizer
from diffwindow.files import write_atomically, write_json


def save_model(model: nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model and its tokenizer; an existing folder's files are replaced one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_atomically(folder / "model.safetensors", save(weights))
    write_json(folder / "config.json", cast(Any, model).config.model_dump())
    tokenizer.save(folder / "tokenizer.json")
