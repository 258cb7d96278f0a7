"""Write the pages that the code knows by itself: settings, command line, notation, the live window."""

import json
import textwrap
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import griffe
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from diffwindow import notation
from diffwindow.cli import app
from diffwindow.models.classifier import ClassifierConfig
from diffwindow.models.language_model import LanguageModelConfig
from diffwindow.models.translator import TranslatorConfig
from diffwindow.tasks.presets import DECIDED_ELSEWHERE
from diffwindow.training import config
from diffwindow.view.page import page_html

SOURCES = Path(__file__).parents[1] / "src"
# the page's heading, the section's prefix in an override, the class
SETTINGS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("A run", "", config.Config),
    ("data", "data.", config.DataConfig),
    ("task", "task.", config.TaskConfig),
    ("train", "train.", config.TrainConfig),
    ("search", "search.", config.SearchConfig),
    ("model of a translator", "model.", TranslatorConfig),
    ("model of a classifier", "model.", ClassifierConfig),
    ("model of a language model", "model.", LanguageModelConfig),
)
NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}


def write_pages(folder: Path) -> None:
    """Write every generated page below the folder of the documentation."""
    for name, text in reference_pages().items():
        (folder / "reference" / name).write_text(text, encoding="utf-8")
    live = json.loads((folder / "assets/windows.json").read_text(encoding="utf-8"))
    (folder / "assets/windows.html").write_text(page_html(live), encoding="utf-8")


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference that the code knows, by their file names."""
    return {
        "settings.md": settings_page(),
        "command-line.md": command_line_page(),
        "notation.md": notation_page(),
    }


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table; a bar in a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def settings_page() -> str:
    """Return the page of all settings of `diffwindow train`, from the config classes."""
    parts = [
        "# Settings\n\nEvery key of a config: `diffwindow train PRESET train.lr=5e-4`, or a YAML file with "
        "these sections ([training](../guides/training.md#the-config)). The defaults are those of the "
        "classes; a preset may have others (`diffwindow describe PRESET --json` prints those of its model, "
        "and `run.json` in a run folder has all)."
    ]
    for heading, prefix, section in SETTINGS:
        rows = [
            (f"`{prefix}{name}`", _spoken(field.annotation), _default(field), _meaning(section, name))
            for name, field in section.model_fields.items()
            # what a run may not set in this section
            if not (prefix == "model." and name in DECIDED_ELSEWHERE)
        ]
        parts.append(f"## {heading}\n\n{table(('key', 'value', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts) + "\n"


def _meaning(section: type, name: str) -> str:
    """Return the docstring of a field, from the class itself or the first of its bases that has the field."""
    for owner in section.__mro__:
        if owner.__module__.startswith("diffwindow"):
            path = f"{owner.__module__}.{owner.__name__}".removeprefix("diffwindow.")
            attribute = _package()[path].members.get(name)
            if attribute is not None and attribute.docstring is not None:
                return str(attribute.docstring.value)
    raise ValueError(f"{section.__name__}.{name} has no docstring; write one below it")


@cache
def _package() -> griffe.Module:
    package = griffe.load("diffwindow", search_paths=[SOURCES])
    assert isinstance(package, griffe.Module)
    return package


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "" if field.default_factory is None else "none"
    if isinstance(field.default, BaseModel):
        return "its own"
    return f"`{_value(field.default)}`"


def _value(value: object) -> str:
    """Spell a value as YAML does."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return str(value) or '""'


def _spoken(annotation: Any) -> str:
    """Describe a type in words: `Literal["a", "b"]` is "`a`, `b`"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _spoken(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return ", ".join(_spoken(argument) for argument in arguments)
    if origin is tuple:
        return f"{len(arguments)} numbers"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a section"
    return NAMES[annotation]


def command_line_page() -> str:
    """Return the page of all commands, from the command line itself."""
    root = typer.main.get_command(app)
    parts = [
        "# Command line\n\nWhat `diffwindow COMMAND --help` prints. Exit codes: 0 done; 1 the run failed; "
        "2 wrong use or bad input; 75 another machine was lost, so run it again; 130 and 143 stopped by "
        "Ctrl-C or SIGTERM after saving."
    ]
    return "\n\n".join([*parts, *_commands(root, "diffwindow")]) + "\n"


def _commands(command: Any, name: str) -> list[str]:
    """Describe a command, or the commands of a group."""
    group = getattr(command, "commands", {})
    if group:
        return [part for key in sorted(group) for part in _commands(group[key], f"{name} {key}")]
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    rows = [(f"`{flags}`", help_text) for flags, help_text in _records(command, context) if flags != "--help"]
    paragraphs = (command.help or "").split("\n\n")
    # paragraphs of commands are examples
    examples = [one for one in paragraphs if one.startswith("diffwindow ")]
    about = " ".join(" ".join(one for one in paragraphs if one not in examples).split())
    typed = "\n".join([usage, *examples])
    parts = [f"## {name}\n\n{about}\n\n```text\n{typed}\n```"]
    return parts + ([table(("argument or option", "meaning"), rows)] if rows else [])


def _records(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Yield what the help says of each argument and option."""
    for parameter in command.get_params(context):
        flags, text = parameter.get_help_record(context)
        yield flags.strip(), " ".join(text.split())


def notation_page() -> str:
    """Return the page of the notation: grammar, roles, kinds and options, from their tables."""
    examples = textwrap.dedent(str(notation.__doc__).split("\n\n")[1])
    kinds = [
        (
            f"`{name}`" if kind.size is None else f"`{name}={kind.size}`",
            kind.meaning,
            ", ".join(f"`{role}`" for role in kind.roles),
            ", ".join(f"`{option}`" for option in kind.options),
        )
        for name, kind in notation.KINDS.items()
    ]
    segment, distance = (notation.OPTIONS[name].written for name in ("Seg", "Dist"))
    options = [(f"`{name}`", one.meaning, f"`{one.argument}`") for name, one in notation.OPTIONS.items()]
    return f"""# Notation

A text says which attention each role and layer of a model gets. It is the value of `--attention`, of the
`attention` field of a config, and the name of every row of the results.

```text
{examples}
```

## Grammar

```text
notation  =  "Global"  |  term {{ "-" term }}
term      =  role "(" kind [ "=" number ] {{ "," option [ "=" number ] }} ")" [ "@" layers ]
role      =  {_alternatives(notation.ROLES)}
kind      =  {_alternatives(name for name in notation.KINDS if name != "Global")}
option    =  {_alternatives(notation.OPTIONS)}
layers    =  "all"  |  number [ "-" number ]
```

White space is ignored. Layers count from 1; without `@`, a term is for the first half of the layers, rounded
up. A role or layer that no term names is `Global`. Two terms may not share a layer of a role. `Enc` is
self-attention of the encoder, `Dec` that of the decoder, `Cr` cross-attention. A mistake is an error with a
caret under the place and the nearest right name.

## Kinds

The number after `=` is the default of a kind that has one. [Models](models.md#attentions) has the equations.

{table(("kind", "attention", "roles", "options"), kinds)}

## Options

{table(("option", "meaning", "argument of WindowAttention"), options)}

`Seg` alone is `Seg={segment}` and `Dist` alone `Dist={distance}`; `Dim` and `Sink` need their
number. In Python, [`parse_attention`](api/notation.md) reads a notation and `Plan` holds it.
"""


def _alternatives(names: Any) -> str:
    return "  |  ".join(f'"{name}"' for name in names)


if __name__ == "__main__":
    write_pages(Path(__file__).parents[1] / "docs")
