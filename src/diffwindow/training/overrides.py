"""From a preset or a YAML file and `key=value` overrides to a Config; a mistake is named with its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from diffwindow.files import read_json
from diffwindow.models.config import quoted
from diffwindow.tasks.presets import preset
from diffwindow.tasks.registry import TASKS
from diffwindow.training.config import Config

RUN_CONFIG = "run.json"
# fields of a model's config that are said elsewhere
NOT_OF_THE_MODEL = {
    "attention": "the attention is not in this section; set attention=…",
    "vocab_size": "the corpus decides the vocabulary; choose its size with `diffwindow prepare --vocab-size`",
    "num_classes": "the corpus decides the number of classes",
    "model": "the task decides the kind of model",
}
SETTINGS = "the settings"
# no settings are larger; aliases can make a short file so
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 1_000_000, 10_000, 20
Keys = tuple[str, ...]


@dataclass
class Layers:
    """Nested settings under construction, and where each was said: in `source`, if not elsewhere."""

    values: dict[str, Any]
    source: str = SETTINGS
    places: dict[Keys, str] = field(default_factory=dict)

    def put(self, path: Keys, value: Any, place: str) -> None:
        """Set one value, making the sections on its way."""
        section = self.values
        for depth, name in enumerate(path[:-1], 1):
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ValueError(f"{place}: {'.'.join(path[:depth])} is a value, not a section")
        section[path[-1]] = value
        self.places[path] = place

    def place(self, path: Keys) -> str:
        """Say where a setting, or the nearest section around it, was said."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.places:
                return self.places[path[:depth]]
        inside = [place for said, place in self.places.items() if said[: len(path)] == path]
        return inside[0] if inside else self.source


def resolve(source: str, overrides: Iterable[str] = (), flags: Mapping[str, Any] | None = None) -> Config:
    """Give the settings of a preset or YAML file, then `key=value` overrides, then command-line flags.

    >>> resolve("agreement", ["train.max_updates=50"], {"train.seed": 7}).train.max_updates
    50
    """
    layers = _base(source)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{quoted(text)} is not key=value, as in train.max_updates=100")
        shown = text if len(text) <= 100 else f"{text[:40]}…"
        layers.put(tuple(key.split(".")), _scalar(value, text), shown)
    for key, value in (flags or {}).items():
        layers.put(tuple(key.split(".")), value, key)
    for name, instead in NOT_OF_THE_MODEL.items():
        if place := layers.places.get(("model", name)):
            raise ValueError(f"{place}: {instead}")
    return _checked(layers)


def read_config(values: dict[str, Any], place: str) -> Config:
    """Check settings that were written by a run."""
    return _checked(Layers(values, place))


def _base(source: str) -> Layers:
    """Read a YAML file, the settings of a run folder, or a preset."""
    if source.endswith((".yaml", ".yml")):
        return _from_file(Path(source))
    saved = Path(source) / RUN_CONFIG
    return Layers(read_json(saved), str(saved)) if saved.is_file() else Layers(preset(source))


def _scalar(text: str, whole: str) -> Any:
    try:
        node = _composed(text)
        return None if node is None else yaml.SafeLoader("").construct_object(node, deep=True)
    except yaml.YAMLError:
        raise ValueError(f"{quoted(whole)}: the value is not valid YAML; quote it") from None
    except ValueError as error:
        raise ValueError(f"{quoted(whole)}: {error}") from None


def _composed(text: str) -> yaml.Node | None:
    """Parse YAML, but not what would take more memory or time than any settings do."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"settings have at most {MAX_BYTES:,} bytes, not {len(text):,}")
    too_deep = f"settings are nested at most {MAX_DEPTH} deep"
    try:
        root: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    except RecursionError:
        raise ValueError(too_deep) from None
    waiting, values = [(root, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > MAX_VALUES:
            raise ValueError(f"settings have at most {MAX_VALUES:,} values, those of aliases included")
        if depth > MAX_DEPTH:
            raise ValueError(too_deep)
        if isinstance(node, yaml.MappingNode):
            waiting += [(child, depth + 1) for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(child, depth + 1) for child in node.value]
    return root


def _from_file(path: Path) -> Layers:
    """Read a YAML file; its `preset` key, if any, names what it changes."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        with path.open(encoding="utf-8") as file:
            root = _composed(file.read(MAX_BYTES + 1))
        leaves = list(_leaves(root, ())) if isinstance(root, yaml.MappingNode) else None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ValueError(f"{place}: not valid YAML: {getattr(error, 'problem', error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if leaves is None:
        raise ValueError(
            f"{path}: settings are sections of `key: value`, as in `train: {{max_updates: 100}}`"
        )
    base = next((str(value) for said, value, _ in leaves if said == ("preset",)), None)
    layers = Layers(preset(base) if base else {"name": path.stem}, str(path))
    for said, value, line in leaves:
        if said != ("preset",):
            layers.put(said, value, f"{path}:{line}")
    return layers


def _leaves(section: yaml.MappingNode, path: Keys) -> Iterator[tuple[Keys, Any, int]]:
    """Yield path, value and line of everything in a YAML tree that is not itself a section."""
    for key, value in section.value:
        name = (*path, str(key.value))
        if isinstance(value, yaml.MappingNode):
            yield from _leaves(value, name)
        else:
            yield name, yaml.SafeLoader("").construct_object(value, deep=True), key.start_mark.line + 1


def _checked(layers: Layers) -> Config:
    try:
        config = Config.model_validate(layers.values)
    except ValidationError as error:
        raise ValueError(_sentence(error, layers)) from None
    _, model_config = TASKS[config.task.kind]
    try:
        # the corpus decides the vocabulary; any number shows whether the rest fits together
        read = model_config.read({"vocab_size": 4, **config.model_settings})
    except ValueError as error:
        said = ("attention",) if ("attention",) in layers.places else ("model",)
        raise ValueError(f"{layers.place(said)}: {error}") from None
    # as the model has them, so that a run which goes on knows Enc(AW, Seg) for Enc(AW,Seg)
    model = {name: getattr(read, name) for name in config.model}
    return config.model_copy(update={"attention": read.attention, "model": model})


def _sentence(error: ValidationError, layers: Layers) -> str:
    """Say the first mistake: where it is, what it is, and the nearest right name."""
    first = error.errors()[0]
    path = tuple(str(part) for part in first["loc"] if not isinstance(part, int))
    name = ".".join(path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return f"{layers.place(path)}: there is no setting {name!r}; {_nearest(path)}"
    if first["type"] == "missing" and len(path) < len(first["loc"]):
        return f"{layers.place(path)}: {name}={quoted(first['input'])} has too few values"
    if first["type"] == "missing":
        return f"{layers.place(path)}: the setting {name!r} is missing"
    if first["type"] == "value_error":
        # a mistake of the whole section names its settings itself
        place = layers.source if path == ("train",) else layers.place(path)
        return message if place == SETTINGS else f"{place}: {message}"
    place, said = layers.place(path), f"{name}={quoted(first['input'])}"
    # an override's place is its own text
    return f"{said}: {message}" if place == said else f"{place}: {said}: {message}"


def _nearest(path: Keys) -> str:
    """Name the setting that was meant: a right name in another section, or one spelled alike in this."""
    every = list(_names(Config))
    section = ".".join(path[:-1])
    inside = [other.rpartition(".")[2] for other in every if other.rpartition(".")[0] == section]
    elsewhere = [other for other in every if other.rpartition(".")[2] == path[-1]]
    alike = [".".join((*path[:-1], name)) for name in difflib.get_close_matches(path[-1], inside, n=1)]
    if elsewhere or alike:
        return f"did you mean {(elsewhere or alike)[0]!r}?"
    return f"{section or 'the top level'} has {', '.join(inside)}"


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _names(info.annotation, f"{prefix}{name}.")


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Give the settings that differ, by name: what they were and what they are."""
    before, after = _flat(_completed(old)), _flat(_completed(new))
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    }


def _completed(config: Config) -> dict[str, Any]:
    """Give all settings: a field of the model that is not named, for it is newer, has its default."""
    _, model = TASKS[config.task.kind]
    defaults = {name: field.default for name, field in model.model_fields.items() if not field.is_required()}
    return config.model_dump() | {"model": defaults | config.model}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
