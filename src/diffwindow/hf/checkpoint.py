"""Save the windows of a transformers model apart from it, and put them back into the same base model.

A folder holds `windows.safetensors`, and `windows.json` with the base model, its revision and the plan.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from diffwindow import __version__
from diffwindow.checks import check_bool
from diffwindow.files import check_regular, finite, sha256_of, write_json
from diffwindow.hf.attention import CHILD
from diffwindow.hf.windows import RECORD, add_spans, add_windows, check_unwrapped, remove_windows
from diffwindow.models.added_windows import WindowInit
from diffwindow.models.config import first_mistake
from diffwindow.models.model import parse_fields
from diffwindow.models.span_adapter import SpanSettings
from diffwindow.models.weights import ModelFileError, check_tensors, hash_tensors, read_weights, write_tensors

WINDOW_WEIGHTS, DESCRIPTION = "windows.safetensors", "windows.json"
WINDOWS_FORMAT = 2
# What values of a base may have been rounded to when it was loaded.
HALF_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Fields of a config that do not change what a trained model computes from its weights: those of training and
# of `generate`. ESM scales its embeddings by token_dropout.
WITHOUT_EFFECT = re.compile(
    rf"{RECORD}|use_cache|pretraining_tp|.*(initializer|_name_or_path).*|(?!token_dropout).*drop.*"
    r"|(bos|eos|sep|decoder_start|forced_bos|forced_eos)_token_id"
)
B = TypeVar("B", bound=BaseModel)
M = TypeVar("M", bound=PreTrainedModel)


class Settings(BaseModel):
    """What `add_windows` needs to build the windows of a file again."""

    model_config = ConfigDict(frozen=True, strict=True)

    plan: str
    init: WindowInit
    window_tolerance: Annotated[float, Field(ge=0.0, lt=1.0)]

    def __str__(self) -> str:
        return f"{self.plan}, init={self.init!r}, window_tolerance={self.window_tolerance}"


class Base(BaseModel):
    """What a file says about the base of its windows."""

    model_config = ConfigDict(frozen=True)

    name: str | None
    revision: str | None
    model_type: str
    config: Annotated[dict[str, Any], Field(min_length=1)]
    dtype: str
    fingerprints: dict[str, str]

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Base":
        """Return the base of a model with windows."""
        return cls(
            name=model.config.name_or_path or None,
            revision=getattr(model.config, "_commit_hash", None),
            model_type=model.config.model_type,
            config=_computed_fields(model.config.to_dict()),
            dtype=_float_types(_base(model)),
            fingerprints=base_fingerprints(model),
        )

    def __str__(self) -> str:
        return f"{self.name or 'a model without a name'}, revision {self.revision or 'unknown'}"

    def check(self, model: PreTrainedModel, path: Path) -> None:
        """Raise unless a model has this base, perhaps in another precision."""
        tensors, model_name = _base(model), type(model).__name__
        if any(tensor.is_meta for tensor in tensors.values()):
            raise ValueError(
                f"layers of {model_name} are offloaded, so that its weights cannot be compared with those "
                "that the windows were trained on; check_base=False leaves that out"
            )
        if not self.fingerprints:
            raise ModelFileError(
                f"{path} has no fingerprint of its base ({self}), because layers were offloaded; load it "
                "with check_base=False into that base, and save again"
            )
        if not self._has_weights(tensors):
            raise ModelFileError(
                f"the windows of {path} were trained on another base than this {model_name}: {self}; "
                "load that one"
            )
        difference = _difference(self.config, _computed_fields(model.config.to_dict()))
        if difference is not None:
            name, before, now = difference
            raise ModelFileError(
                f"the windows of {path} were trained on a base with {name}={before!r}, but this {model_name} "
                f"has {now!r}; load the base with {before!r}, or pass check_base=False"
            )

    def _has_weights(self, tensors: Mapping[str, Tensor]) -> bool:
        """Compare in the model's own types or, if the file has no hash in these, in those of the file."""
        own = _float_types(tensors)
        known = (own, *_halves(own), *_halves(self.dtype), self.dtype)
        name = next((name for name in known if name in self.fingerprints), own)
        return hash_tensors(tensors, _rounding(name)) == self.fingerprints.get(name)


class Description(BaseModel):
    """What `windows.json` says beside the settings of the windows."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: int = WINDOWS_FORMAT
    diffwindow: str = __version__
    base: Base
    sha256: str


def save_windows(model: PreTrainedModel, folder: str | os.PathLike[str]) -> None:
    """Write the windows of a model, and what they belong to, to a folder.

    They belong to the base weights as they are now: where the base was trained too, save it as well.
    """
    _check_model(model)
    path = _as_path(folder)
    tensors = _window_tensors(model)
    if not tensors:
        raise ValueError(f"{type(model).__name__} has no windows to save; add_windows adds them")
    record = getattr(model.config, RECORD, None)
    if record is None:
        raise ValueError(
            f"the windows of {type(model).__name__} were added to a part of it; save those of that part"
        )
    settings = _settings_kind(record).model_validate(record)
    path.mkdir(parents=True, exist_ok=True)
    write_tensors(path / WINDOW_WEIGHTS, tensors, {"config": json.dumps(record)})
    description = Description(base=Base.of(model), sha256=sha256_of(path / WINDOW_WEIGHTS))
    write_json(path / DESCRIPTION, settings.model_dump() | description.model_dump())


def load_windows(
    model: M, folder: str | os.PathLike[str], *, revision: str | None = None, check_base: bool = True
) -> M:
    """Add the windows of a folder to a model in place, and return it.

    The folder is one that `save_windows` wrote, such a folder on the hub ("user/name"), or a checkpoint that
    `save_pretrained` wrote of a model with windows, whose windows `from_pretrained` leaves out. Windows that
    were trained on other base weights are refused, unless `check_base=False`; those of a checkpoint have
    their base beside them and are not compared.
    """
    _check_model(model)
    check_bool("check_base", check_base)
    if all(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(f"a {type(model).__name__} on the meta device has no weights yet; load them first")
    path = _local(folder, revision)
    if (path / DESCRIPTION).is_file():
        settings, tensors = _read(path, model, check_base=check_base)
    else:
        settings, tensors = _read_checkpoint(path)
    if isinstance(settings, SpanSettings):
        add_spans(model, settings)
    else:
        add_windows(model, settings.plan, window_tolerance=settings.window_tolerance, init=settings.init)
    wanted = _window_tensors(model)
    # transformers may save tensors under the names of older versions
    names = {next(iter(revert_weight_conversion(model, {name: wanted[name]}))): name for name in wanted}
    tensors = {names.get(name, name): tensor for name, tensor in tensors.items()}
    try:
        check_tensors(path, tensors, wanted, type(model).__name__)
    except ModelFileError:
        remove_windows(model)
        raise
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])
    return model


def base_fingerprints(model: nn.Module) -> dict[str, str]:
    """Hash all parameters and saved buffers but the windows', by the types that a base may be loaded in.

    A base in half precision cannot tell what fp32 was. A base with offloaded layers has no hash.
    """
    base = _base(model)
    if any(tensor.is_meta for tensor in base.values()):
        return {}
    own = _float_types(base)
    whole = [] if _halves(own) else ["float32"]
    return {name: hash_tensors(base, _rounding(name)) for name in (own, *whole, *HALF_PRECISIONS)}


def _base(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: x
        for name, x in model.state_dict().items()
        if isinstance(x, Tensor) and f".{CHILD}." not in name
    }


def _float_types(base: Mapping[str, Tensor]) -> str:
    """Name the types of a base's floats, as "float32" or "bfloat16+float32"."""
    types = {str(x.dtype).removeprefix("torch.") for x in base.values() if x.is_floating_point()}
    return "+".join(sorted(types))


def _halves(types: str) -> list[str]:
    return [name for name in types.split("+") if name in HALF_PRECISIONS]


def _rounding(name: str) -> torch.dtype | None:
    """Return the type that floats are rounded to; None, for several types, leaves each as it is."""
    return getattr(torch, name, None)


def _computed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that change what a model computes, as they are in JSON."""
    common = PreTrainedConfig().to_dict().keys() - {"model_type"}
    kept = {
        name: x for name, x in fields.items() if name not in common and not WITHOUT_EFFECT.fullmatch(name)
    }
    return {
        name: _computed_fields(x) if _is_config(x) else json.loads(json.dumps(finite(x), default=str))
        for name, x in kept.items()
    }


def _is_config(value: object) -> bool:
    return isinstance(value, dict) and "model_type" in value


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first field that differs, with both values.

    Fields of a config that one version of transformers has alone do not count, nor does a padding token that
    one side has not: models without padding may be given one.
    """
    both = _is_config(before)
    for name in before if both else {**before, **now}:
        if both and name not in now:
            continue
        first, second = before.get(name), now.get(name)
        if name == "pad_token_id" and None in (first, second):
            continue
        if isinstance(first, dict) and isinstance(second, dict):
            if inner := _difference(first, second):
                return f"{name}.{inner[0]}", *inner[1:]
        elif first != second:
            return name, first, second
    return None


def _window_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if f".{CHILD}." in name}


def _check_model(model: nn.Module) -> None:
    check_unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"a {type(model).__name__} is not a transformers model; save_pretrained saves our models with "
            "their windows"
        )


def _as_path(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{folder!r} is not a folder of windows; pass its path")
    return Path(folder)


def _local(folder: str | os.PathLike[str], revision: str | None) -> Path:
    path = _as_path(folder)
    if path.is_dir():
        return path
    if str(folder).count("/") != 1 or path.is_absolute():
        raise ModelFileError(f"there is no folder {folder}")
    from huggingface_hub import snapshot_download

    patterns = [WINDOW_WEIGHTS, DESCRIPTION]
    return Path(snapshot_download(str(folder), revision=revision, allow_patterns=patterns))


def _read(
    path: Path, model: PreTrainedModel, *, check_base: bool
) -> tuple[Settings | SpanSettings, dict[str, Tensor]]:
    """Read a folder of `save_windows`, after checking that it is whole and belongs to this base."""
    place, weights = path / DESCRIPTION, path / WINDOW_WEIGHTS
    fields = _read_fields(place)
    if fields.get("format") != WINDOWS_FORMAT:
        raise ModelFileError(
            f"{place} has format {fields.get('format')!r}, and this version reads {WINDOWS_FORMAT};"
            " use the diffwindow version that wrote it"
        )
    description = _validate(Description, fields, place)
    if not weights.is_file() or sha256_of(weights) != description.sha256:
        raise ModelFileError(f"{weights} is missing or damaged; save the windows again")
    tensors, record = read_weights(weights)
    settings = _validate(_settings_kind(fields), fields, place)
    saved_with = _validate(type(settings), parse_fields(record or "{}", weights), weights)
    if saved_with != settings:
        raise ModelFileError(
            f"{place} describes {settings}, but {weights} was saved with {saved_with}; save the windows again"
        )
    if check_base:
        description.base.check(model, path)
    return settings, tensors


def _read_checkpoint(path: Path) -> tuple[Settings | SpanSettings, dict[str, Tensor]]:
    """Read the windows of a checkpoint that transformers wrote, in one file or several."""
    config = _read_fields(path / "config.json") if (path / "config.json").is_file() else {}
    if RECORD not in config:
        raise ModelFileError(
            f"{path} holds no windows: it has no {DESCRIPTION}, and no config.json with {RECORD!r}; "
            "windows that were added to a part of a model are saved with that part"
        )
    tensors: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        tensors |= read_weights(file, containing=f".{CHILD}.")[0]
    record = config[RECORD]
    return _validate(_settings_kind(record), record, path / "config.json"), tensors


def _settings_kind(record: Any) -> type[Settings] | type[SpanSettings]:
    """Tell pointers, which have a plan, from fitted spans."""
    return SpanSettings if isinstance(record, Mapping) and "spans" in record else Settings


def _read_fields(path: Path) -> dict[str, Any]:
    check_regular(path)
    return parse_fields(path.read_bytes(), path)


def _validate(kind: type[B], fields: Any, path: Path) -> B:
    """Return what a file holds as an object; raise if a field is missing or has a wrong value."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ModelFileError(f"{path} is damaged: {first_mistake(error)}; save the windows again") from None
