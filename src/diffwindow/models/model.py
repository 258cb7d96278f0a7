"""Model: what all our models share, to save and load them and to run them without dropout and gradients."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from diffwindow.files import check_regular, flush, parse_json, replacing, write_atomically
from diffwindow.models.config import ModelConfig
from diffwindow.models.layers import AttentionBlock
from diffwindow.models.weights import (
    MODEL_MANIFEST,
    WEIGHTS,
    ModelFileError,
    check_tensors,
    read_weights,
    verify,
    write_manifest,
    write_tensors,
)
from diffwindow.notation import Role

MODEL_CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
Folder = str | os.PathLike[str]
C = TypeVar("C", bound=ModelConfig)
M = TypeVar("M", bound="Model[Any]")


@runtime_checkable
class Savable(Protocol):
    """A tokenizer: anything that writes itself to a path."""

    def save(self, path: str) -> None:
        """Write the file."""


class Model(nn.Module, Generic[C]):
    """The base of our models: a module with a config, saved to a folder and loaded from it."""

    config_class: ClassVar[type[ModelConfig]]
    config: C

    def attention_blocks(self) -> dict[Role, list[AttentionBlock]]:
        """Return the attention of each role and layer."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(cls: type[M], folder: Folder) -> M:
        """Load the model of a folder, in evaluation mode; raise ValueError if its files do not match.

        Every file is verified first if the folder has a manifest, which `save_pretrained` writes.
        """
        path = Path(folder)
        if (path / MODEL_MANIFEST).exists():
            verify(path)
        fields = read_fields(path)
        config = _as_config(cls.config_class, fields, path / MODEL_CONFIG)
        tensors, saved_with = read_weights(path / WEIGHTS)
        if saved_with is not None:
            _check_origin(path, config, saved_with)
        # The weights would be initialised only to be overwritten: make the model without memory for them.
        with torch.device("meta"):
            model = cls(config)
        check_tensors(path / WEIGHTS, tensors, model.state_dict(), cls.__name__)
        model.load_state_dict(tensors, assign=True)
        return model.eval()

    def save_pretrained(self, folder: Folder, tokenizer: Savable | None = None) -> None:
        """Write the model to a folder, each file whole or not at all; other files there are left alone."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        if tokenizer is not None:
            with replacing(path / TOKENIZER) as temporary:
                tokenizer.save(str(temporary))
        self.write_files(path)
        write_manifest(path, {}, (MODEL_CONFIG, TOKENIZER, WEIGHTS))
        flush(path)

    def write_files(self, folder: Path) -> None:
        """Write weights and config, without the manifest of their hashes."""
        write_model_files(folder, self.state_dict(), self.config.model_dump_json(indent=2))


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off in the context; afterwards each module has its own mode back."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[str]:
    """Switch dropout and gradients off in the context, which is given the model's device."""
    with in_eval_mode(model), torch.no_grad():
        yield str(next(model.parameters()).device)


def write_model_files(folder: Path, tensors: Mapping[str, Tensor], config: str) -> None:
    """Write weights and the JSON of their config to a folder."""
    write_tensors(folder / WEIGHTS, tensors, {"config": config})
    write_atomically(folder / MODEL_CONFIG, f"{config}\n".encode())


def read_fields(folder: Path) -> dict[str, Any]:
    """Read the fields of a model folder's config."""
    path = folder / MODEL_CONFIG
    check_regular(path)
    try:
        return parse_fields(path.read_bytes(), path)
    except FileNotFoundError:
        raise ModelFileError(
            f"there is no file {path}; a model folder has {MODEL_CONFIG} and {WEIGHTS}"
        ) from None


def parse_fields(content: str | bytes, place: Path) -> dict[str, Any]:
    """Parse the JSON object of a model's file; raise a ModelFileError if it is damaged."""
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
    """Raise if the weights were saved with another config, as when copying a folder was interrupted."""
    weights = folder / WEIGHTS
    theirs = _as_config(type(config), parse_fields(saved_with, weights), weights)
    for name in type(config).model_fields:
        configured, saved = getattr(config, name), getattr(theirs, name)
        if configured != saved:
            raise ModelFileError(
                f"{folder / MODEL_CONFIG} has {name}={configured!r} but {weights} was saved with {saved!r}; "
                "save the model again to have both of one model"
            )
