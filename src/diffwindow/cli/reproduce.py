"""The verb `reproduce`: the paper's tables, run and reported."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffwindow.cli.completion import complete_tables
from diffwindow.cli.errors import name_data_option
from diffwindow.cli.library import (
    files,
    reproduce_cost,
    reproduce_figures,
    reproduce_findings,
    reproduce_jobs,
    reproduce_report,
    reproduce_scales,
    reproduce_tables,
)
from diffwindow.cli.options import Jobs, join_with_or
from diffwindow.progress import show_progress

if TYPE_CHECKING:
    from diffwindow.reproduce.findings import Finding
    from diffwindow.reproduce.jobs import FinishedJob, Job
    from diffwindow.reproduce.scales import Scale
    from diffwindow.reproduce.table import Table

Names = Annotated[str, typer.Option(metavar="KEY[;KEY]…", help="Only these; see `reproduce list`.")]


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="A table of `diffwindow reproduce list`, figure1, figure2, or `list`.",
            autocompletion=complete_tables,
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(help="paper: its own settings; trained: to the end; mini: two cores; smoke: minutes."),
    ] = "mini",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from 1.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs, corpora and reports.")] = Path("reproduced"),
    data: Annotated[
        Path | None, typer.Option(envvar="DIFFWINDOW_DATA", help="Folder with the raw files.")
    ] = None,
    jobs: Jobs = None,
    columns: Names = "",
    rows: Names = "",
    row: Annotated[
        int | None, typer.Option(min=1, help="Sentence of the test set that figure3 shows, from 1.")
    ] = None,
) -> None:
    """Train and evaluate the rows of a table, and report them; the same command resumes.

    figure1 and figure2 are drawn without training.
    """
    if row is not None and table != "figure3":
        raise ValueError(f"--row is for figure3, not for {table}")
    if table == "list":
        _list()
        return
    if table in reproduce_figures.DRAWINGS:
        _draw_masks(table, columns or rows, out)
        return

    chosen_scale = reproduce_scales.scale_of(scale)
    full_table = chosen_scale.apply(reproduce_tables.table_of(table))
    scaled_table = full_table.at(chosen_scale.experiments)
    if not columns and not scaled_table.columns:
        scales = reproduce_scales.SCALES.items()
        others = [name for name, one in scales if full_table.at(one.experiments).columns]
        raise ValueError(f"{table} has no columns at scale {scale}; choose {join_with_or(others)}")
    numbers, folder = range(1, seeds + 1), out / f"{table}-{scale}"
    command = shlex.join(["diffwindow", *sys.argv[1:]])
    # a named column must exist at this scale; without names, those of the scale are run
    base = full_table if columns else scaled_table
    names = split_names(columns)
    if full_table.extra == "figure":
        # one picture, of one column
        names = names[:1] or [scaled_table.columns[0].name]
    chosen = base.choose(names, split_names(rows))
    asked = reproduce_jobs.jobs_of(chosen, chosen_scale, numbers, out)
    # a report shows every finished run, whichever part and seeds were asked for
    seeds_shown = reproduce_jobs.every_seed(numbers, chosen_scale, out)
    shown = reproduce_jobs.jobs_of(scaled_table, chosen_scale, seeds_shown, out)
    finished = reproduce_jobs.done_before(shown)
    if full_table.extra == "figure":
        # results that were copied without their models are trained again, to be drawn
        finished = [one for one in finished if reproduce_jobs.has_model(one.job)]
    missing = [column.name for column in full_table.columns if column not in scaled_table.columns]
    if missing and not columns:
        _tell(f"left out, because they have no {scale} scale: {', '.join(missing)}")

    def prepare(waiting: Sequence[Job]) -> None:
        with show_progress() as progress, name_data_option():
            reproduce_jobs.make_stores(waiting, data, progress=progress)

    run_and_report(full_table, chosen_scale, asked, finished, folder, command, jobs=jobs, prepare=prepare)
    if full_table.extra == "figure":
        one_column = base.choose(names, [])
        _draw(reproduce_jobs.jobs_of(one_column, chosen_scale, numbers[:1], out), row or 1, folder)
    speeds = None
    if full_table.extra == "speed":
        # all runs may have been copied without their corpus
        prepare(asked[:1])
        speeds = reproduce_cost.relative_speeds(full_table, asked[0].experiment, asked[0].store)
    finding = reproduce_findings.findings(full_table, chosen_scale, finished, command, speeds)
    write_last_report(finding, folder, finished)


def run_and_report(
    table: Table,
    scale: Scale,
    asked: Sequence[Job],
    finished: list[FinishedJob],
    folder: Path,
    command: str,
    *,
    jobs: int | None,
    prepare: Callable[[Sequence[Job]], None] = lambda waiting: None,
) -> None:
    """Run the jobs that have no one yet, add theirs, and write the report anew after each."""
    files.make_folder(folder)
    ended = {one.job.folder for one in finished}
    waiting = [job for job in asked if job.folder not in ended]
    if len(waiting) < len(asked):
        _tell(f"{len(asked) - len(waiting)} of {len(asked)} runs are done already")
    try:
        prepare(waiting)
        processes = jobs or reproduce_jobs.usual_processes()
        for one in reproduce_jobs.run_all(waiting, processes=processes, tell=_tell):
            finished.append(one)
            finding = reproduce_findings.findings(table, scale, finished, command)
            reproduce_report.write_report(finding, folder, reproduce_jobs.terms_by_column(finished))
    except KeyboardInterrupt:
        _tell("interrupted; the same command resumes")
        raise typer.Exit(130) from None


def write_last_report(finding: Finding, folder: Path, finished: Sequence[FinishedJob]) -> None:
    """Write the report, print its path, and exit with 1 if a run failed."""
    reproduce_report.write_report(finding, folder, reproduce_jobs.terms_by_column(finished))
    print(folder / reproduce_report.REPORT)
    if any(one.problem for one in finished):
        raise typer.Exit(1)


def _draw(jobs: Sequence[Job], row: int, folder: Path) -> None:
    """Draw the attention of the first and the last row, if both are trained."""
    plain, windowed = jobs[0], jobs[-1]
    if reproduce_jobs.has_model(plain) and reproduce_jobs.has_model(windowed):
        path, title = folder / reproduce_report.FIGURE, f"{plain.column.title}, test sentence {row}: "
        reproduce_figures.draw_figure_3(
            plain.folder, windowed.folder, plain.store, path, row=row, title=title
        )
        print(path)


def _draw_masks(name: str, chosen: str, out: Path) -> None:
    """Draw a figure that needs no training."""
    if chosen:
        raise ValueError(f"{name} has neither rows nor columns, but {chosen!r} was asked for")
    path = out / f"{name}.png"
    reproduce_figures.draw_masks(reproduce_figures.DRAWINGS[name](), path)
    print(path)


def split_names(names: str) -> list[str]:
    """Return the names of an option, which semicolons separate."""
    return [name.strip() for name in names.split(";") if name.strip()]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _list() -> None:
    """Print each table: its columns, their data, its rows, and what one seed costs at each scale."""
    print(f"{reproduce_scales.SMOKE.name}: {reproduce_scales.SMOKE.about}")
    for table in reproduce_tables.TABLES.values():
        print(f"{table.name}: {table.title}")
        for column in table.columns:
            print(f"  column {column.name}: {column.title}")
            for scale in reproduce_scales.SCALES.values():
                if scale is reproduce_scales.SMOKE or column.name not in scale.experiments:
                    continue
                experiment = scale.experiments[column.name]
                costs = [reproduce_cost.cost(experiment, row) for row in table.rows]
                core = reproduce_cost.format_hours(sum(one.core_hours for one in costs))
                gpu = reproduce_cost.format_hours(sum(one.gpu_hours for one in costs))
                print(
                    f"    {scale.name:7} {experiment.store_name}: {len(costs)} rows of {costs[0].updates:,} "
                    f"updates; one seed takes {core} on a core or {gpu} on a GPU"
                )
        print("  rows " + "; ".join(row.key for row in table.rows))
