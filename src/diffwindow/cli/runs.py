"""The verb `runs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffwindow.cli.errors import check_folder
from diffwindow.cli.library import files, training_config, training_records, training_run
from diffwindow.cli.options import AsJson

if TYPE_CHECKING:
    from diffwindow.training.records import RunSummary

HEADER = ("run", "attention", "state", "updates", "validation")


def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]…", help="Run folders, or folders with runs below; `runs` by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs: attention, state, updates and best validation; two run folders: how their configs differ.

    diffwindow runs runs
    diffwindow runs runs/plain runs/windows
    """
    folders = folders or [Path("runs")]
    found: list[Path] = []
    for folder in folders:
        check_folder(folder)
        if not (below := list(training_records.find_runs(folder))):
            raise ValueError(f"there is no run in {folder}; `diffwindow train` makes one")
        found += below
    summaries = [training_records.RunSummary.read(run) for run in found]
    differences: dict[str, tuple[Any, Any]] = {}
    are_compared = len(folders) == 2 and found == folders
    if are_compared:
        first, second = (training_run.Run.open(folder).config for folder in folders)
        differences = training_config.differences(first, second)
    if as_json:
        print(files.to_json({"runs": list(map(asdict, summaries)), "differences": differences}, indent=2))
        return
    print("\n".join(_columns([HEADER, *map(_cells, summaries)])))
    if differences:
        rows = [(name, *map(_setting, values)) for name, values in differences.items()]
        print("\n".join(["", *_columns([("setting", *map(str, folders)), *rows])]))
    elif are_compared:
        print("\nthe configs are the same")


def _cells(summary: RunSummary) -> tuple[str, ...]:
    most = "" if summary.max_updates is None else f" of {summary.max_updates:,}"
    score = (
        "" if summary.score is None else f"{summary.metric} {summary.score:.4g} at {summary.best_update:,}"
    )
    return summary.run, summary.attention, summary.state, f"{summary.updates:,}{most}", score


def _setting(value: Any) -> str:
    """Return a value as one would type it."""
    return "null" if value is None else str(value)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines in which cells of a column are as wide as the widest."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
