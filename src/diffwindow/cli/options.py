"""Arguments and options that several verbs take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffwindow.decoding.translate import Search

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a model folder.")]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Run or model folders; several are an ensemble.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam size; that of the run by default.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Power of the length that divides log p; that of the run by default.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Draw from the k likeliest tokens.")]
TopP = Annotated[float, typer.Option(help="Draw from the fewest tokens that hold this probability.")]
Seed = Annotated[int, typer.Option(min=0, max=2**62, help="The same seed gives the same text.")]
MinLength = Annotated[int, typer.Option(min=0, help="The fewest tokens of an output.")]
NoRepeat = Annotated[int, typer.Option(min=0, help="Never repeat a sequence of this many tokens; 0 may.")]
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
            raise ValueError(f"{options} {verb} with {either(partners)}, not with {chosen}")


def either(names: Sequence[str]) -> str:
    """Join names by "or".

    >>> either(["mini", "smoke"]), either(["paper", "mini", "smoke"]), either(["mini"])
    ('mini or smoke', 'paper, mini or smoke', 'mini')
    """
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def chosen_search(own: Search, *, beam: int | None, length_penalty: float | None) -> Search:
    """Return the search of a run, changed by the options that are given."""
    return replace(
        own,
        beam=own.beam if beam is None else beam,
        length_penalty=own.length_penalty if length_penalty is None else length_penalty,
    )
