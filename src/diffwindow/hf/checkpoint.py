"""Save the windows of a transformers model apart from it, and put them back into the same base model.

A folder holds `windows.safetensors`, and `windows.json` with the base model, its revision and the plan.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from diffwindow import __version__
from diffwindow.arguments import check_tolerance
from diffwindow.files import read_json, sha256_of, write_json
from diffwindow.hf.attention import CHILD
from diffwindow.hf.windows import RECORD, add_windows, check_unwrapped, remove_windows
from diffwindow.models.weights import ModelFileError, read_weights, write_weights

WEIGHTS, DESCRIPTION = "windows.safetensors", "windows.json"
FORMAT = 1
M = TypeVar("M", bound=PreTrainedModel)


class Settings(NamedTuple):
    """What `add_windows` needs to build the windows of a file again."""

    plan: str
    init: Any
    window_tolerance: float

    @classmethod
    def of(cls, fields: Mapping[str, Any], path: Path) -> "Settings":
        """Read the settings from the fields of a file; older files have no tolerance."""
        plan, tolerance = fields["plan"], fields.get("window_tolerance", 0.0)
        if not isinstance(plan, str):
            raise ModelFileError(f"{path} is damaged: its plan is {plan!r}")
        try:
            check_tolerance("window_tolerance", tolerance)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is damaged: {error}") from None
        return cls(plan, fields["init"], tolerance)


def save_windows(model: PreTrainedModel, folder: str | os.PathLike[str]) -> None:
    """Write the windows of a model, and what they belong to, to a folder.

    They belong to the base weights as they are now: where the base was trained too, save it as well.
    """
    check_unwrapped(model)
    tensors = _window_tensors(model)
    if not tensors:
        raise ValueError(f"{type(model).__name__} has no windows to save; add_windows adds them")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    record = getattr(model.config, RECORD)
    write_weights(path / WEIGHTS, tensors, json.dumps(record))
    description = {
        "format": FORMAT,
        "diffwindow": __version__,
        "plan": record["plan"],
        "init": record["init"],
        "window_tolerance": record.get("window_tolerance", 0.0),
        "base": {
            "name": model.config.name_or_path or None,
            "revision": getattr(model.config, "_commit_hash", None),
            "model_type": model.config.model_type,
            "fingerprint": base_fingerprint(model),
            "fingerprint_fp16": base_fingerprint(model, torch.float16),
        },
        "sha256": sha256_of(path / WEIGHTS),
    }
    write_json(path / DESCRIPTION, description)


def load_windows(
    model: M, folder: str | os.PathLike[str], *, revision: str | None = None, check_base: bool = True
) -> M:
    """Add the windows of a folder to a model in place, and return it.

    The folder is one that `save_windows` wrote, such a folder on the hub ("user/name"), or a checkpoint that
    `save_pretrained` wrote of a model with windows, whose windows `from_pretrained` leaves out. Windows that
    were trained on other base weights are refused, unless `check_base=False`; those of a checkpoint have
    their base beside them and are not compared.
    """
    if all(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(f"a {type(model).__name__} on the meta device has no weights yet; load them first")
    path = _local(folder, revision)
    if (path / DESCRIPTION).is_file():
        settings, tensors = _read(path, model, check_base=check_base)
    else:
        settings, tensors = _read_checkpoint(path)
    add_windows(model, settings.plan, window_tolerance=settings.window_tolerance, init=settings.init)
    wanted = _window_tensors(model)
    # transformers may save tensors under the names of older versions
    names = {next(iter(revert_weight_conversion(model, {name: wanted[name]}))): name for name in wanted}
    tensors = {names.get(name, name): tensor for name, tensor in tensors.items()}
    problem = _misfit(tensors, wanted)
    if problem:
        remove_windows(model)
        raise ModelFileError(f"the windows of {path} do not fit {type(model).__name__}: {problem}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])
    return model


def base_fingerprint(model: nn.Module, loaded_as: torch.dtype | None = None) -> str:
    """Hash the names, shapes and first values of all parameters but the windows'.

    Values count as bfloat16, so that a model loaded in bf16 is still the same base. `loaded_as` rounds them
    to another type first: values that went through fp16 may round to another bfloat16.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if f".{CHILD}." not in name:
            digest.update(f"{name} {list(parameter.shape)}".encode())
            first = parameter.detach().flatten()[:64].cpu().to(loaded_as or parameter.dtype)
            digest.update(first.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def _matches(model: nn.Module, fingerprints: set[str]) -> bool:
    """Tell whether a model has the base weights of these fingerprints, perhaps rounded to half precision."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"layers of {type(model).__name__} are offloaded, so that its weights cannot be compared with "
            "those that the windows were trained on; check_base=False leaves that out"
        )
    return any(base_fingerprint(model, dtype) in fingerprints for dtype in (None, torch.float16))


def _window_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if f".{CHILD}." in name}


def _local(folder: str | os.PathLike[str], revision: str | None) -> Path:
    path = Path(folder)
    if path.is_dir():
        return path
    if str(folder).count("/") != 1 or path.is_absolute():
        raise ModelFileError(f"there is no folder {folder}")
    from huggingface_hub import snapshot_download

    patterns = [WEIGHTS, DESCRIPTION]
    return Path(snapshot_download(str(folder), revision=revision, allow_patterns=patterns))


def _read(path: Path, model: PreTrainedModel, *, check_base: bool) -> tuple[Settings, dict[str, Tensor]]:
    """Read a folder of `save_windows`, after checking that it is whole and belongs to this base."""
    description = read_json(path / DESCRIPTION)
    if description.get("format") != FORMAT:
        raise ModelFileError(
            f"{path / DESCRIPTION} has format {description.get('format')!r}, and this version reads {FORMAT};"
            " use the diffwindow version that wrote it"
        )
    try:
        settings, base = Settings.of(description, path / DESCRIPTION), description["base"]
        # files from before the second fingerprint know bases in fp32 and bf16 only
        fingerprints = {base["fingerprint"], base.get("fingerprint_fp16")}
        name, revision, checksum = base["name"], base["revision"], description["sha256"]
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{path / DESCRIPTION} is damaged: it lacks {error}") from None
    weights = path / WEIGHTS
    if not weights.is_file() or sha256_of(weights) != checksum:
        raise ModelFileError(f"{weights} is missing or damaged; save the windows again")
    if check_base and not _matches(model, fingerprints):
        raise ModelFileError(
            f"the windows of {path} were trained on another base than this {type(model).__name__}: "
            f"{name or 'a model without a name'}, revision {revision or 'unknown'}; load that one"
        )
    return settings, read_weights(weights)[0]


def _read_checkpoint(path: Path) -> tuple[Settings, dict[str, Tensor]]:
    """Read the windows of a checkpoint that transformers wrote, in one file or several."""
    config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    record = config.get(RECORD)
    if not isinstance(record, dict) or not isinstance(record.get("plan"), str) or "init" not in record:
        raise ModelFileError(
            f"{path} holds no windows: it has no {DESCRIPTION}, and no config.json with {RECORD!r}"
        )
    tensors: dict[str, Tensor] = {}
    for file in sorted(path.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as shard:
            tensors |= {name: shard.get_tensor(name) for name in shard.keys() if f".{CHILD}." in name}  # noqa: SIM118
    return Settings.of(record, path / "config.json"), tensors


def _misfit(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> str | None:
    if missing := wanted.keys() - found.keys():
        return f"{min(missing)} is missing"
    if extra := found.keys() - wanted.keys():
        return f"there is no place for {min(extra)}"
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            return f"{name} is {list(found[name].shape)} and not {list(tensor.shape)}"
    return None
