"""Model folders: `model.safetensors`, `config.json` and, where there is one, `tokenizer.json`."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from diffwindow.files import check_regular, flush, parse_json, replacing, write_atomically
from diffwindow.models.config import ModelConfig
from diffwindow.models.layers import AttentionBlock
from diffwindow.models.weights import (
    MANIFEST,
    WEIGHTS,
    ModelFileError,
    average_weights,
    read_weights,
    verify,
    write_manifest,
    write_weights,
)
from diffwindow.notation import Role

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
Folder = str | os.PathLike[str]
C = TypeVar("C", bound=ModelConfig)
M = TypeVar("M", bound="PretrainedModel[Any]")


@runtime_checkable
class Savable(Protocol):
    """A tokenizer: anything that writes itself to a path."""

    def save(self, path: str) -> None:
        """Write the file."""


class PretrainedModel(nn.Module, Generic[C]):
    """A model that can be saved as a folder and made from one."""

    config_class: ClassVar[type[ModelConfig]]
    config: C

    def attention_blocks(self) -> dict[Role, list[AttentionBlock]]:
        """Return the attention of each role and layer."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(cls: type[M], folder: Folder) -> M:
        """Make the model that a folder holds, ready to decode; raise ValueError for one that does not fit.

        Where the folder has a manifest, as saving writes it, every file is verified first.
        """
        path = Path(folder)
        if (path / MANIFEST).exists():
            verify(path)
        fields = read_fields(path)
        config = _as_config(cls.config_class, fields, path / CONFIG)
        tensors, saved_with = read_weights(path / WEIGHTS)
        if saved_with is not None:
            _check_origin(path, config, saved_with)
        # The weights would be initialised only to be overwritten: make the model without memory for them.
        with torch.device("meta"):
            model = cls(config)
        _check_tensors(path / WEIGHTS, tensors, model.state_dict())
        model.load_state_dict(tensors, assign=True)
        return model.eval()

    def save_pretrained(self, folder: Folder, tokenizer: Savable | None = None) -> None:
        """Write the model to a folder, each file whole or not at all; other files there are left alone."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        if tokenizer is not None:
            with replacing(path / TOKENIZER) as temporary:
                tokenizer.save(str(temporary))
        _write_model(path, self.state_dict(), self.config.model_dump_json(indent=2))


def average_pretrained(sources: Sequence[Folder], folder: Folder) -> None:
    """Write to `folder` the average of models, each a folder or a weight file saved from one.

    `weights.last_checkpoints(run, 5)` gives the last five of a training run. The config comes from the
    weights and the tokenizer from the last source that has one beside it.
    """
    files = [Path(source) / WEIGHTS if Path(source).is_dir() else Path(source) for source in sources]
    tensors, config = average_weights(files)
    if config is None:
        raise ModelFileError(
            f"{files[0]} does not say which config it belongs to; save it with save_pretrained"
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for tokenizer in (file.parent / TOKENIZER for file in reversed(files)):
        if tokenizer.is_file():
            with replacing(target / TOKENIZER) as temporary:
                shutil.copyfile(tokenizer, temporary)
            break
    _write_model(target, tensors, config)


def _write_model(folder: Path, tensors: Mapping[str, Tensor], config: str) -> None:
    write_weights(folder / WEIGHTS, tensors, config)
    write_atomically(folder / CONFIG, f"{config}\n".encode())
    write_manifest(folder, {}, (CONFIG, TOKENIZER, WEIGHTS))
    flush(folder)


def read_fields(folder: Path) -> dict[str, Any]:
    """Read the fields of a model folder's config."""
    path = folder / CONFIG
    check_regular(path)
    try:
        return _fields(path.read_bytes(), path)
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}; a model folder has {CONFIG} and {WEIGHTS}") from None


def _fields(content: str | bytes, place: Path) -> dict[str, Any]:
    try:
        return parse_json(content, place)
    except ValueError as error:
        raise ModelFileError(str(error)) from None


def _as_config(config_class: type[ModelConfig], fields: dict[str, Any], place: Path) -> ModelConfig:
    wanted = config_class.model_fields["model"].default
    kind = fields.get("model", wanted)
    if kind != wanted:
        raise ModelFileError(
            f"{place} describes a {kind}, not a {wanted}; load it with the class of that model"
        )
    try:
        return config_class(**fields)
    except ValueError as error:
        raise ModelFileError(f"{place}: {error}") from None


def _check_origin(folder: Path, config: ModelConfig, saved_with: str) -> None:
    """Refuse weights beside a config that is not theirs, as a copy cut between the files leaves them."""
    weights = folder / WEIGHTS
    theirs = _as_config(type(config), _fields(saved_with, weights), weights)
    for name in type(config).model_fields:
        configured, saved = getattr(config, name), getattr(theirs, name)
        if configured != saved:
            raise ModelFileError(
                f"{folder / CONFIG} has {name}={configured!r} but {weights} was saved with {saved!r}; "
                "save the model again to have both of one model"
            )


def _check_tensors(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors are those of the model, name by name and shape by shape."""
    for verb, names in (("lacks", wanted.keys() - found.keys()), ("has", found.keys() - wanted.keys())):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            needed = "that its config asks for" if verb == "lacks" else "that its config has no place for"
            raise ModelFileError(f"{path} {verb} the tensor {min(names)!r}{more} {needed}")
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape or not tensor.is_floating_point():
            raise ModelFileError(
                f"{name!r} of {path} is {tensor.dtype} {list(tensor.shape)}, "
                f"where its config asks for floats {list(wanted[name].shape)}"
            )
