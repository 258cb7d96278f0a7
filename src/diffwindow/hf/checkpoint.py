"""Save the windows of a transformers model apart from it, and put them back into the same base model.

A folder holds `windows.safetensors`, and `windows.json` with the base model, its revision and the plan.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from diffwindow import __version__
from diffwindow.attention.kinds import WINDOWED
from diffwindow.checks import check_bool, check_tolerance
from diffwindow.files import finite, parse_json, read_json, sha256_of, write_json
from diffwindow.hf.attention import CHILD
from diffwindow.hf.windows import RECORD, add_windows, check_unwrapped, remove_windows
from diffwindow.models.model import Model, in_eval_mode
from diffwindow.models.weights import ModelFileError, hash_tensors, read_weights, write_weights
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.training.checkpoints import ORIGIN
from diffwindow.training.run import Run
from diffwindow.view.capture import capture

WEIGHTS, DESCRIPTION = "windows.safetensors", "windows.json"
FORMAT = 2
# files of format 1 have a fingerprint of a few values, which is not compared any more
READABLE = (1, FORMAT)
# What values of a base may have been rounded to when it was loaded.
HALF_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Fields of a config that do not change what a trained model computes from its weights.
WITHOUT_EFFECT = re.compile(
    rf"{RECORD}|use_cache|max_position_embeddings|pretraining_tp|.*(drop|token_id|initializer|_name_or_path).*"
)
M = TypeVar("M", bound=PreTrainedModel)


class Settings(NamedTuple):
    """What `add_windows` needs to build the windows of a file again."""

    plan: str
    init: Any
    window_tolerance: float

    @classmethod
    def of(cls, fields: Mapping[str, Any], path: Path) -> "Settings":
        """Read the settings from the fields of a file; older files have no tolerance."""
        plan, tolerance = fields.get("plan"), fields.get("window_tolerance", 0.0)
        if not isinstance(plan, str):
            raise ModelFileError(f"{path} is damaged: its plan is {plan!r}")
        try:
            check_tolerance("window_tolerance", tolerance)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is damaged: {error}") from None
        return cls(plan, fields.get("init"), tolerance)

    def __str__(self) -> str:
        return f"{self.plan}, init={self.init!r}, window_tolerance={self.window_tolerance}"


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
            "config": _computed_fields(model.config.to_dict()),
            "fingerprints": base_fingerprints(model),
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
    check_bool("check_base", check_base)
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


def base_fingerprints(model: nn.Module) -> dict[str, str]:
    """Hash all parameters but the windows', by the type that a base may be loaded in.

    A base of fp32 has a hash in fp32 and its halves; one of half precision cannot tell what fp32 was. A base
    with offloaded layers has none.
    """
    base = _base(model)
    if any(parameter.is_meta for parameter in base.values()):
        return {}
    whole = {"float32": torch.float32} if _in_full_precision(base) else {}
    return {name: hash_tensors(base, dtype) for name, dtype in (whole | HALF_PRECISIONS).items()}


def _base(model: nn.Module) -> dict[str, Tensor]:
    return {name: x for name, x in model.named_parameters() if f".{CHILD}." not in name}


def _in_full_precision(base: Mapping[str, Tensor]) -> bool:
    return all(parameter.dtype.itemsize >= 4 for parameter in base.values())


class Base(NamedTuple):
    """What a file says about the base of its windows."""

    name: str
    fingerprints: dict[str, str]
    config: dict[str, Any]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Base":
        """Read the fields of a file; those of format 1 have neither these fingerprints nor a config."""
        name, revision = fields["name"] or "a model without a name", fields["revision"] or "unknown"
        fingerprints, config = dict(fields.get("fingerprints", {})), dict(fields.get("config", {}))
        return cls(f"{name}, revision {revision}", fingerprints, config)

    def check(self, model: PreTrainedModel, path: Path) -> None:
        """Raise unless a model has this base, perhaps in another precision."""
        parameters, model_name = _base(model), type(model).__name__
        if any(parameter.is_meta for parameter in parameters.values()):
            raise ValueError(
                f"layers of {model_name} are offloaded, so that its weights cannot be compared with those "
                "that the windows were trained on; check_base=False leaves that out"
            )
        if not self.fingerprints:
            raise ModelFileError(
                f"{path} has no fingerprint of all weights of its base ({self.name}): an older version wrote "
                "it, or layers were offloaded; load it with check_base=False into that base, and save again"
            )
        if not self._has_weights(parameters):
            raise ModelFileError(
                f"the windows of {path} were trained on another base than this {model_name}: {self.name}; "
                "load that one"
            )
        difference = _difference(self.config, _computed_fields(model.config.to_dict()))
        if difference is not None:
            name, before, now = difference
            raise ModelFileError(
                f"the windows of {path} were trained on a base with {name}={before!r}, but this {model_name} "
                f"has {now!r}; load the base with {before!r}, or pass check_base=False"
            )

    def _has_weights(self, parameters: Mapping[str, Tensor]) -> bool:
        whole = "float32" in self.fingerprints and _in_full_precision(parameters)
        types = {"float32": torch.float32} if whole else HALF_PRECISIONS
        return any(
            hash_tensors(parameters, dtype) == self.fingerprints.get(name) for name, dtype in types.items()
        )


def _computed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that change what a model computes, as they are in JSON."""
    common = PreTrainedConfig().to_dict()
    kept = {
        name: x for name, x in fields.items() if name not in common and not WITHOUT_EFFECT.fullmatch(name)
    }
    return {
        name: _computed_fields(x) if isinstance(x, dict) else json.loads(json.dumps(finite(x), default=str))
        for name, x in kept.items()
    }


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first field that differs, with both values; fields of one version alone do not count."""
    for name in (name for name in before if name in now):
        first, second = before[name], now[name]
        if isinstance(first, dict) and isinstance(second, dict):
            if inner := _difference(first, second):
                return f"{name}.{inner[0]}", *inner[1:]
        elif first != second:
            return name, first, second
    return None


def _window_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if f".{CHILD}." in name}


def _local(folder: str | os.PathLike[str], revision: str | None) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{folder!r} is not a folder of windows; pass its path, or its name on the hub")
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
    place, weights = path / DESCRIPTION, path / WEIGHTS
    description = read_json(place)
    if description.get("format") not in READABLE:
        raise ModelFileError(
            f"{place} has format {description.get('format')!r}, and this version reads {FORMAT};"
            " use the diffwindow version that wrote it"
        )
    try:
        settings, base = Settings.of(description, place), Base.of(description["base"])
        checksum = description["sha256"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{place} is damaged: {error!r}; save the windows again") from None
    if not weights.is_file() or sha256_of(weights) != checksum:
        raise ModelFileError(f"{weights} is missing or damaged; save the windows again")
    tensors, record = read_weights(weights)
    saved_with = Settings.of(parse_json(record or "{}", weights), weights)
    if saved_with != settings:
        raise ModelFileError(
            f"{place} describes {settings}, but {weights} was saved with {saved_with}; save the windows again"
        )
    if check_base:
        base.check(model, path)
    return settings, tensors


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
        tensors |= read_weights(file, containing=f".{CHILD}.")[0]
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


PICTURE = "windows.png"
# The longest sentence that a picture has room for.
LONGEST = 30
# What tells which model an evaluation is of; the card says it already.
IDENTITY = ("run", "attention", "parameters", "weights")
PIPELINES = {
    "translator": "translation",
    "language_model": "text-generation",
    "classifier": "text-classification",
}
CLASSES = {"translator": "Translator", "language_model": "LanguageModel", "classifier": "Classifier"}


def card_text(
    model: Model[Any],
    repo_id: str,
    *,
    run: Path | None = None,
    scores: dict[str, Any] | None = None,
    picture: bool = False,
) -> str:
    """Write the card; what the run does not tell is left out.

    `scores` is what `diffwindow evaluate RUN --json` prints of this model; that of another is an error.
    """
    if scores is not None:
        check_scores(model, scores)
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    name = CLASSES[config.model]
    parts = [
        "---",
        "library_name: diffwindow",
        f"pipeline_tag: {PIPELINES[config.model]}",
        "tags: [diffwindow, attention]",
        "---",
        f"# {repo_id}",
        "",
        f"A `{name}` with the attention `{config.attention}` and {size:,} parameters, made with diffwindow, "
        "which implements *Differentiable Window for Dynamic Local Attention* (ACL 2020).",
        "",
        "```python",
        f"from diffwindow.hf import {name}",
        "",
        f'model = {name}.from_pretrained("{repo_id}")',
        "```",
    ]
    if picture:
        parts += ["", f"![A window of the model, and its attention]({PICTURE})"]
    if scores is not None:
        shown = {name: value for name, value in scores.items() if name not in IDENTITY}
        parts += ["", "## Scores", "", *_table(dict(_leaves(shown)))]
    if run is not None:
        settings = Run.open(run).config.model_dump(mode="json")
        # its last part tells nothing that the corpus does not
        settings.get("data", {}).pop("path", None)
        origin = read_json(run / ORIGIN) if (run / ORIGIN).is_file() else {}
        parts += ["", "## Data", "", *_table(dict(_leaves(settings.pop("data", {}))))]
        parts += ["", *_table(dict(_leaves({"sha256": origin.get("corpus", {})})))]
        parts += ["", "## Training", "", *_table(dict(_leaves(settings)))]
        parts += ["", "## Versions", "", *_table(dict(_leaves(origin.get("versions", {}))))]
    else:
        parts += ["", "## Settings", "", *_table(config.model_dump())]
    return "\n".join(parts) + "\n"


def check_scores(model: Model[Any], scores: dict[str, Any]) -> None:
    """Raise unless an evaluation is of this model."""
    again = "evaluate the model again with `diffwindow evaluate RUN --json`"
    if "weights" not in scores:
        raise ValueError(f"the scores do not say which model they are of; {again}")
    if scores["weights"] != hash_tensors(model.state_dict()):
        raise ValueError(
            f"the scores are of another model, of the run {_public(str(scores.get('run')))}; {again}"
        )


def draw_windows(run: Path, path: Path) -> bool:
    """Draw the first window of a run's model on a short sentence of its corpus, if it can be done.

    A model without windows has no picture, nor has a run whose corpus is gone: then return False.
    """
    trained = ModelFolder.read(run)
    if not any(term.attention.kind in WINDOWED for term in trained.model.config.plan.terms):
        return False
    try:
        store = Run.open(run).open_store()
    except ValueError:
        return False
    task: Any = trained.task(store)
    split = "valid" if "valid" in store.splits else next(iter(store.splits))
    lengths = np.max(np.stack(task.lengths(split)), axis=0)
    short = np.flatnonzero(lengths <= LONGEST)
    batch = task.collate(split, np.array([short[0] if len(short) else int(lengths.argmin())]))
    names = {"source": "source", "target": "target"} if hasattr(batch, "source") else {"tokens": "tokens"}
    tokens = {
        side: trained.tokenizer.tokens(getattr(batch, name)[0].tolist()) for side, name in names.items()
    }
    with in_eval_mode(trained.model), capture(trained.model) as trace:
        task.loss(trained.model, batch)
    labels = tokens if len(tokens) > 1 else next(iter(tokens.values()))
    trace.with_tokens(labels).draw(path)
    return True


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested objects under dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield name, value


def _table(rows: dict[str, Any]) -> list[str]:
    """Format rows as a Markdown table; a bar in a value would end its cell."""
    body = [f"| {name} | {str(_shown(value)).replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return ["| | |", "|---|---|", *body] if body else []


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else _public(value) if isinstance(value, str) else value


def _public(text: str) -> str:
    """Return the names alone of files and folders: a local path is private, and of no use to readers.

    >>> _public("/home/me/runs/first, ../second"), _public("Enc(AW)")
    ('first, second', 'Enc(AW)')
    """
    return ", ".join(re.split(r"[/\\]", part.rstrip("/\\"))[-1] for part in text.split(", "))
