"""Arguments and options that several verbs take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from diffwindow.decoding import Decoding

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a model folder.")]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Run or model folders; several are an ensemble.")
]
PICTURES = (".png", ".svg", ".pdf")
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.")]
# the options of decoding, by field; the run or the verb decides where one is not given
DECODING_OPTIONS: dict[str, Any] = {
    "beam": Annotated[
        int | None, typer.Option(min=1, help="Beam size; that of the run by default, 1 in `generate`.")
    ],
    "n_best": Annotated[int | None, typer.Option(min=1, help="Outputs or samples per text; 1 by default.")],
    "length_penalty": Annotated[
        float | None,
        typer.Option(
            help="Power of the length that divides log p; that of the run by default, 0 in `generate`."
        ),
    ],
    "temperature": Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Above 0, draw samples; below 1 favours likely tokens. 0 is beam search, the default of "
            "`translate`; that of `generate` is 1.",
        ),
    ],
    "top_k": Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")],
    "top_p": Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens that hold this probability.")
    ],
    "seed": Annotated[
        int | None, typer.Option(min=0, max=2**62, help="The same seed gives the same samples; 0 by default.")
    ],
    "min_new_tokens": Annotated[int | None, typer.Option(min=0, help="The fewest tokens of an output.")],
    "max_new_tokens": Annotated[
        int | None,
        typer.Option(min=1, help="The most tokens of an output; by default 50, or what suits a source."),
    ],
    "no_repeat_ngram": Annotated[
        int | None, typer.Option(min=0, help="Never repeat a sequence of this many tokens; 0 may.")
    ],
}
WindowRule = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="How windows are at test time: soft, as trained; discrete by argmax, half or joint; or none.",
    ),
]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the text, if not `text`; its number if there is no header.")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of the label, if not `label`; its number if there is no header.")
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Rows trained at once, one thread each; all cores by default, one on a GPU."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


def check_partners(chosen: str, rules: Sequence[tuple[str, bool, Sequence[str]]]) -> None:
    """Raise if an option is given that does not go with what was chosen.

    A rule has options, whether one of them is given, and the choices that they go with.
    """
    for options, given, partners in rules:
        if given and chosen not in partners:
            verb = "go" if " and " in options else "goes"
            raise ValueError(f"{options} {verb} with {join_with_or(partners)}, not with {chosen}")


def join_with_or(names: Sequence[str]) -> str:
    """Join names by "or".

    >>> join_with_or(["mini", "smoke"]), join_with_or(["paper", "mini", "smoke"]), join_with_or(["mini"])
    ('mini or smoke', 'paper, mini or smoke', 'mini')
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def check_picture(option: str, path: Path) -> None:
    """Raise before anything is computed if a picture could not be written."""
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{option} {path} does not end in {join_with_or(PICTURES)}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")


def takes_decoding(*fields: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of these fields of `Decoding`; it is called with those given, as `changes`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def run(**arguments: Any) -> None:
            values = {field: arguments.pop(field) for field in fields}
            changes = {field: value for field, value in values.items() if value is not None}
            verb(**arguments, changes=changes)

        signature = inspect.signature(verb, eval_str=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [one.replace(kind=keyword) for name, one in signature.parameters.items() if name != "changes"]
        added = [
            inspect.Parameter(field, keyword, annotation=DECODING_OPTIONS[field], default=None)
            for field in fields
        ]
        run.__dict__["__signature__"] = signature.replace(parameters=[*own, *added])
        return run

    return decorate


def change_decoding(own: Decoding, changes: Mapping[str, Any]) -> Decoding:
    """Return the decoding of a run or a verb with the changes that the options ask for."""
    decoding = replace(own, **changes)
    if not decoding.temperature and {"top_k", "top_p", "seed"} & changes.keys():
        raise ValueError("--top-k, --top-p and --seed are for samples; add a --temperature above 0")
    return decoding
