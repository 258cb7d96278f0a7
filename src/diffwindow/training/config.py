"""Config: everything that decides what a run does, typed and checked; a Draft is one before it is checked.

Importing this module does not import torch, so that a mistake in a command is found at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from diffwindow.data.store import full_name
from diffwindow.decoding import MAX_BEAM, MAX_LENGTH_PENALTY
from diffwindow.messages import nearest, quote
from diffwindow.tasks.entries import TASKS, TaskOptions

# the layout of a run folder
RUN_CONFIG, ORIGIN = "run.json", "origin.json"
CHECKPOINTS, BEST, MODEL, AVERAGE = "checkpoints", "best", "model", "average"
LOG, TIMING, TENSORBOARD, CURVES = "log.jsonl", "timing.jsonl", "tensorboard", "curves.png"
WANDB_ID = "wandb.json"
STORE = "data"

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Momentum = Annotated[float, Field(ge=0.0, lt=1.0)]

if TYPE_CHECKING:
    TaskKind = str
else:
    TaskKind = Literal[*TASKS]
Precision = Literal["fp32", "bf16", "fp16", "auto"]


def _file_name(name: str) -> str:
    if not name.strip() or name.startswith(".") or any(not c.isprintable() or c in "/\\:" for c in name):
        raise ValueError("a name has no slash, no colon, and does not begin with a dot")
    return name


def _updates_or_epoch(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(f"{quote(value)} is neither a number of updates, 1 or more, nor epoch") from None


SaveEvery = Annotated[Count | Literal["epoch"], WrapValidator(_updates_or_epoch)]


class Section(BaseModel):
    """A section of the config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    """The corpus."""

    corpus: str = ""
    """A corpus of `diffwindow data list`; empty for a store of your own."""
    path: str | None = None
    """A store, or a folder with the raw files of the corpus."""
    rows: Count | None = None
    """Examples of a generated corpus."""
    seed: Seed = 0
    """Seed of a generated corpus."""


class TaskConfig(TaskOptions):
    """The kind of task and its options."""

    kind: Annotated[TaskKind, BeforeValidator(full_name)]
    """What the model does."""

    @property
    def options(self) -> TaskOptions:
        """Return the options without the kind."""
        return TaskOptions(**self.model_dump(exclude={"kind"}))


class TrainConfig(Section):
    """The training loop, measured in updates, not epochs."""

    max_updates: Count
    """Length of the run."""
    seed: Seed = 1
    """Seed of the weights, the batches and dropout."""

    max_tokens: Count = 4096
    """Largest batch, in padded tokens of its longer side."""
    max_rows: Count | None = None
    """Largest batch, in examples."""
    accumulate: Count = 1
    """Batches per update and process."""
    too_long: Literal["drop", "error"] = "drop"
    """What happens to an example of more than `max_tokens`."""

    lr: Positive = 7e-4
    """The peak learning rate."""
    schedule: Literal["inverse_sqrt", "constant", "linear", "cosine"] = "inverse_sqrt"
    """How the rate falls after the warm-up."""
    warmup: Annotated[int, Field(ge=0)] = 4000
    """Updates in which the rate rises to `lr`."""
    warmup_from: NonNegative = 1e-7
    """The first rate of the warm-up."""
    final_lr: NonNegative = 0.0
    """The last rate of `linear` and `cosine`."""
    betas: tuple[Momentum, Momentum] = (0.9, 0.98)
    """Of Adam."""
    eps: Positive = 1e-8
    """Of Adam."""
    weight_decay: NonNegative = 0.0
    """Above 0: AdamW, which spares biases and norms."""
    clip_norm: Positive | None = None
    """Largest norm of the gradients."""
    span_penalty: NonNegative = 2e-6
    """For `Span`: added to the loss per token for each key of a layer's mean span."""
    window_penalty: NonNegative = 0.0
    """For `AW`, `MW`: times the mean of M, added to the loss per token; makes windows narrower."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto` takes a GPU if there is one."""
    precision: Precision = "fp32"
    """Autocast to `bf16` or `fp16`; `auto` takes what the GPU has."""
    compile: bool = False
    """Compile the model with `torch.compile`."""
    deterministic: bool = True
    """Use deterministic kernels on a GPU."""

    log_every: Count = 100
    """Updates between two lines of the log."""
    wandb: str | None = None
    """Project on Weights & Biases to log to as well, with the extra `wandb`; null: none."""
    valid_every: Count | None = 1000
    """Updates between two validations; null for none."""
    watch: str = "loss"
    """The metric of the validation that decides what is best."""
    patience: Count | None = None
    """Stop after this many validations without a better `watch`."""
    save_every: SaveEvery = 1000
    """Updates between two checkpoints; `epoch` saves at the end of each epoch."""
    keep_last: Count = 5
    """Checkpoints to keep."""
    final: Literal["last", "best", "average"] = "last"
    """The model of the run: the last, the best, or the average of the last checkpoints."""
    average_last: Count = 5
    """How many checkpoints `average` averages."""

    timeout_seconds: Annotated[float, Field(ge=1.0, le=86400.0)] = 120.0
    """Longest silence of another process before it counts as lost."""
    on_bad_loss: Literal["stop", "skip"] = "stop"
    """What happens when the loss is NaN, infinite or above `max_loss`."""
    max_loss: Positive = 100.0
    """Largest loss per token or example."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.final == "average" and self.keep_last < self.average_last:
            raise ValueError(
                f"train.average_last={self.average_last} needs as many checkpoints, but "
                f"train.keep_last={self.keep_last}"
            )
        if self.valid_every is None and (self.final == "best" or self.patience):
            raise ValueError(
                "train.final=best and train.patience need validations; set train.valid_every, "
                "or train.final=last without patience"
            )
        return self


class SearchConfig(Section):
    """How the trained model decodes by default."""

    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] = 5
    """Hypotheses per sentence."""
    length_penalty: Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] = 0.6
    """Scores are log p / length^penalty."""


class Config(Section):
    """Everything that decides what a run does."""

    name: Annotated[str, AfterValidator(_file_name)]
    """Name of the run."""
    start: str | None = None
    """Run or model folder whose weights the run starts from."""
    attention: str = "Global"
    """Which attention each role and layer gets, in the notation."""
    data: DataConfig
    """The corpus."""
    task: TaskConfig
    """The task and its options."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Fields of the task's model config that the corpus does not decide."""
    train: TrainConfig
    """The training loop."""
    search: SearchConfig = SearchConfig()
    """How the trained model decodes by default."""

    def with_data(self, path: str) -> Config:
        """Return the same config with another path of the corpus."""
        return self.model_copy(update={"data": self.data.model_copy(update={"path": path})})

    @property
    def model_options(self) -> dict[str, Any]:
        """Return the fields of the model's config, including the attention."""
        return {**self.model, "attention": self.attention}


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ, with the old and the new value."""
    before, after = _flat(_complete(old)), _flat(_complete(new))
    pairs = {name: (before.get(name), after.get(name)) for name in before | after}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _complete(config: Config) -> dict[str, Any]:
    """Return all values; fields of the model that an older version did not write have their defaults."""
    fields = TASKS[config.task.kind].config_class.model_fields
    defaults = {name: field.default for name, field in fields.items() if not field.is_required()}
    return config.model_dump() | {"model": defaults | config.model}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


Keys = tuple[str, ...]


@dataclass
class Draft:
    """The values of a config before they are checked, and where each was set: in `source` unless noted."""

    values: dict[str, Any]
    source: str = ""
    places: dict[Keys, str] = field(default_factory=dict)

    def put(self, path: Keys, value: Any, place: str) -> None:
        """Set one value, and make the sections around it."""
        section = self.values
        for depth, name in enumerate(path[:-1], 1):
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ValueError(f"{place}: {'.'.join(path[:depth])} is a value, not a section")
        section[path[-1]] = value
        self.places[path] = place

    def place(self, path: Keys) -> str:
        """Return where a key, or else the nearest section around it, was set."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.places:
                return self.places[path[:depth]]
        inside = [place for key, place in self.places.items() if key[: len(path)] == path]
        return inside[0] if inside else self.source

    def place_named_in(self, message: str, section: str) -> str:
        """Return where the first key of a section that a message names was set."""
        named = [
            (message.index(key[-1]), place)
            for key, place in self.places.items()
            if key[:-1] == (section,) and re.search(rf"\b{re.escape(key[-1])}\b", message)
        ]
        return min(named)[1] if named else ""


def check_config(draft: Draft) -> Config:
    """Return a draft as a Config; raise a ValueError of one sentence about its first mistake."""
    try:
        config = Config.model_validate(draft.values)
    except ValidationError as error:
        raise ValueError(_sentence(error, draft)) from None
    try:
        # the corpus decides the vocabulary; any number shows whether the rest fits together
        read = TASKS[config.task.kind].config_class(**{"vocab_size": 4, **config.model_options})
    except ValueError as error:
        key = "attention" if ("attention",) in draft.places else "model"
        place = draft.place_named_in(str(error), "model") or draft.place((key,))
        raise ValueError(_placed(place, str(error))) from None
    # as the model spells them, so that a resumed run takes Enc(AW, Seg) for Enc(AW,Seg)
    fields = {name: getattr(read, name) for name in config.model}
    return config.model_copy(update={"attention": read.attention, "model": fields})


def split_override(text: str) -> tuple[Keys, str]:
    """Return the path of an override's key, and its value as text; raise if there is no such key.

    >>> split_override("train.lr=1e-3")
    (('train', 'lr'), '1e-3')
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{quote(text)} is not key=value, such as train.max_updates=100")
    path, keys = tuple(key.split(".")), set(_keys(Config))
    # the model checks its own fields, and a value has no keys
    parent = ".".join(path[:-1])
    has_keys = not parent or any(name.startswith(f"{parent}.") for name in keys)
    if path[0] != "model" and key not in keys and has_keys:
        raise ValueError(f"{shorten_override(text)}: there is no key {key!r}; {_nearest(path)}")
    return path, value


def shorten_override(text: str) -> str:
    """Return an override as it is named in a message."""
    return text if len(text) <= 100 else f"{text[:40]}…"


def _placed(place: str, message: str) -> str:
    return f"{place}: {message}" if place else message


def _sentence(error: ValidationError, draft: Draft) -> str:
    """Describe the first mistake: where it is, what it is, and the nearest right name."""
    # a misspelled key before the one that it leaves missing
    first = min(error.errors(), key=lambda mistake: mistake["type"] == "missing")
    path = tuple(str(part) for part in first["loc"] if not isinstance(part, int))
    name, place = ".".join(path), draft.place(path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return _placed(place, f"there is no key {name!r}; {_nearest(path)}")
    if first["type"] == "missing" and len(path) < len(first["loc"]):
        return f"{_place_value(place, name, first['input'])} has too few values"
    if first["type"] == "missing":
        return _placed(place, f"the key {name!r} is missing")
    if first["type"] == "value_error":
        # a mistake of a whole section names its keys in the message
        return _placed(
            draft.place_named_in(message, name) or (draft.source if name == "train" else place), message
        )
    return f"{_place_value(place, name, first['input'])}: {message}"


def _place_value(place: str, name: str, value: object) -> str:
    """Name a value and where it was set, once: the place of an override is its own text."""
    if place.startswith(f"{name}="):
        return place
    return _placed("" if place == name else place, f"{name}={quote(value)}")


def _nearest(path: Keys) -> str:
    """Suggest the key that was meant: the same name in another section, or a similar one in this."""
    keys = list(_keys(Config))
    section = ".".join(path[:-1])
    inside = [other.rpartition(".")[2] for other in keys if other.rpartition(".")[0] == section]
    elsewhere = [other for other in keys if other.rpartition(".")[2] == path[-1]]
    near = nearest(path[-1], inside)
    similar = [] if near is None else [".".join((*path[:-1], near))]
    if elsewhere or similar:
        return f"did you mean {(elsewhere or similar)[0]!r}?"
    return f"{section or 'the top level'} has {', '.join(inside)}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _keys(info.annotation, f"{prefix}{name}.")
