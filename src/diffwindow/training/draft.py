"""Draft: the values of a config before they are checked, and a sentence about what is wrong with them.

Importing this module does not import torch, so that a mistake in a command is found at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from diffwindow.spelling import nearest, quoted
from diffwindow.training.config import Config

Keys = tuple[str, ...]
SECTIONS = ("data", "task", "train", "search")


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


def checked(draft: Draft) -> Config:
    """Return a draft as a Config; raise a ValueError of one sentence about its first mistake."""
    try:
        config = Config.model_validate(draft.values)
    except ValidationError as error:
        raise ValueError(_sentence(error, draft)) from None
    from diffwindow.tasks.registry import TASKS

    _, model_config = TASKS[config.task.kind]
    try:
        # the corpus decides the vocabulary; any number shows whether the rest fits together
        read = model_config(**{"vocab_size": 4, **config.model_options})
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
        raise ValueError(f"{quoted(text)} is not key=value, such as train.max_updates=100")
    path, keys = tuple(key.split(".")), set(_keys(Config))
    # the model checks its own fields, and a value has no keys
    parent = ".".join(path[:-1])
    if path[0] != "model" and key not in keys and (not parent or parent in SECTIONS):
        raise ValueError(f"{shortened_override(text)}: there is no key {key!r}; {_nearest(path)}")
    return path, value


def shortened_override(text: str) -> str:
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
        return _placed(place, f"{name}={quoted(first['input'])} has too few values")
    if first["type"] == "missing":
        return _placed(place, f"the key {name!r} is missing")
    if first["type"] == "value_error":
        # a mistake of a whole section names its keys in the message
        return _placed(
            draft.place_named_in(message, name) or (draft.source if name == "train" else place), message
        )
    value = f"{name}={quoted(first['input'])}"
    # the place of an override is its own text
    return f"{value}: {message}" if place == value else _placed(place, f"{value}: {message}")


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
