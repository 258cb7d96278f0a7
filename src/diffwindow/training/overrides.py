"""A preset, a YAML file or a run folder, changed by `key=value` overrides, becomes a Config."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diffwindow.data.store import full_name
from diffwindow.files import read_json
from diffwindow.messages import quote
from diffwindow.tasks.entries import TASKS
from diffwindow.tasks.presets import DECIDED_ELSEWHERE, preset
from diffwindow.training.config import (
    RUN_CONFIG,
    Config,
    Draft,
    Keys,
    check_config,
    shorten_override,
    split_override,
)

# what the YAML library raises for a value that is not of the type of its tag, such as `!!int x`
_MISREAD = (ValueError, LookupError, TypeError, AttributeError)


class _Loader(yaml.SafeLoader):
    """A YAML reader that leaves dates as they are written: no value of a config is one."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def resolve(source: str, overrides: Iterable[str] = (), values: Mapping[str, Any] | None = None) -> Config:
    """Return the config of a preset, YAML file or run folder, changed by `key=value` texts, then by values.

    >>> resolve("agreement", ["train.max_updates=50"], {"train.seed": 7}).train.max_updates
    50
    """
    overrides = list(overrides)
    draft = _base(source, _data_path(overrides, values or {}))
    for text in overrides:
        path, value = split_override(text)
        draft.put(path, _scalar(value, text), shorten_override(text))
    for key, value in (values or {}).items():
        draft.put(tuple(key.split(".")), value, key)
    for name, remedy in DECIDED_ELSEWHERE.items():
        if place := draft.places.get(("model", name)):
            raise ValueError(f"{place}: {remedy}")
    # values of a wrong type are for `check_config` to name
    sections = (draft.values.get(name, {}) for name in ("task", "model"))
    if (
        ("start",) in draft.places
        and isinstance(draft.values["start"], str)
        and all(isinstance(section, dict) for section in sections)
    ):
        # reads a model's folder, which takes torch
        from diffwindow.training.run import follow_start

        follow_start(draft)
    return check_config(draft)


def _data_path(overrides: Sequence[str], values: Mapping[str, Any]) -> Path | None:
    """Return the corpus that overrides or values name: the preset of a task takes its sizes from it."""
    named = [text for text in overrides if text.startswith("data.path=")]
    path = values.get("data.path", _scalar(named[-1].partition("=")[2], named[-1]) if named else None)
    return Path(str(path)) if path else None


def _base(source: str, data: Path | None) -> Draft:
    if source.endswith((".yaml", ".yml")):
        return _from_file(Path(source), data)
    saved = Path(source) / RUN_CONFIG
    return Draft(read_json(saved), str(saved)) if saved.is_file() else Draft(preset(source, data))


def _scalar(text: str, override: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, *_MISREAD):
        raise ValueError(f"{quote(override)}: the value is not valid YAML; quote it") from None


def _from_file(path: Path, data: Path | None) -> Draft:
    """Read a YAML file; its key `preset`, if any, names the preset that it changes."""
    try:
        root = yaml.compose(_read_text(path), _Loader)
        leaves = list(_leaves(root, ())) if isinstance(root, yaml.MappingNode) else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ValueError(f"{place}: not valid YAML: {getattr(error, 'problem', error)}") from None
    except RecursionError:
        raise ValueError(f"{path}: a config is not nested so deep") from None
    if leaves is None:
        raise ValueError(
            f"{path}: a config has sections of `key: value`, such as `train: {{max_updates: 100}}`"
        )
    base = next((str(value) for key, value, _ in leaves if key == ("preset",)), None)
    named = next((Path(str(value)) for key, value, _ in leaves if key == ("data", "path") and value), None)
    values = preset(base, data or named) if base else _task_values(leaves) | {"name": path.stem}
    draft = Draft(values, str(path))
    for key, value, line in leaves:
        # an empty section changes nothing if it exists
        if key != ("preset",) and not (value == {} and isinstance(_value(draft.values, key), dict)):
            draft.put(key, value, f"{path}:{line}")
    return draft


def _read_text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: it is not a regular file")
    try:
        content = path.read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 at byte 0x{content[error.start]:02x}") from None


def _value(values: Any, path: Keys) -> Any:
    """Return a value of nested sections, or None if there is none."""
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _task_values(leaves: Iterable[tuple[Keys, Any, int]]) -> dict[str, Any]:
    """Return the values that every preset of the task has that a file names."""
    kind = next((full_name(value) for key, value, _ in leaves if key == ("task", "kind")), "")
    return copy.deepcopy(TASKS[kind].preset) if kind in TASKS else {}


def _leaves(section: yaml.MappingNode, path: Keys) -> Iterator[tuple[Keys, Any, int]]:
    """Yield the path, value and line of everything in a YAML tree that is not a section, or an empty one.

    Raise if a key is not a name, or is in its section twice.
    """
    names: set[str] = set()
    for key, value in section.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in names:
            twice = isinstance(key, yaml.ScalarNode)
            problem = f"the key {quote(key.value)} is there twice" if twice else "a key is a name"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        names.add(key.value)
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _leaves(value, (*path, key.value))
        else:
            yield (*path, key.value), _construct(value), key.start_mark.line + 1


def _construct(node: yaml.Node) -> Any:
    try:
        return _Loader("").construct_object(node, deep=True)
    except _MISREAD:
        problem = f"{quote(node.value)} is not of the type {node.tag.rpartition(':')[2]}"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
