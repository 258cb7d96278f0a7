"""The verb `compare`: plain models and windows on your own data."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from diffwindow.cli.library import data_store, reproduce_findings, reproduce_jobs, reproduce_own_data
from diffwindow.cli.options import Jobs
from diffwindow.cli.reproduce import run_and_report, split_names, write_last_report


def compare(
    data: Annotated[Path, typer.Argument(metavar="STORE", help="A folder that `diffwindow prepare` wrote.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value]…", help="Overrides for all rows, such as train.max_updates=1000."
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            metavar="KEY[;KEY]…",
            help="Other models, such as Enc(AW)+positions=rotary; the first is the baseline.",
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from 1.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("compared"),
    jobs: Jobs = None,
) -> None:
    """Train five models on your data, with other positions and with windows, and report which is better.

    The same command resumes.
    """
    store = data.resolve()
    table, scale = reproduce_own_data.own_table(
        store, data_store.read_manifest(data), split_names(rows), overrides or []
    )
    command = shlex.join(["diffwindow", *sys.argv[1:]])
    numbers = range(1, seeds + 1)
    asked = reproduce_own_data.own_jobs(table, scale, numbers, store, out)
    # a report shows every finished run, whichever seeds were asked for
    finished = reproduce_jobs.done_before(
        reproduce_own_data.own_jobs(table, scale, reproduce_jobs.every_seed(numbers, scale, out), store, out)
    )
    run_and_report(table, scale, asked, finished, out, command, jobs=jobs)
    write_last_report(reproduce_findings.findings(table, scale, finished, command), out, finished)
