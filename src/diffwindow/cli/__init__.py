"""The `diffwindow` command. Verbs import what they need when they run, so that `--help` is instant."""

from __future__ import annotations

from typing import Annotated

import typer

from diffwindow import __version__
from diffwindow.cli import (
    compare,
    data,
    demo,
    describe,
    doctor,
    evaluate,
    fit,
    generate,
    parse,
    predict,
    publish,
    reproduce,
    runs,
    score,
    train,
    translate,
    view,
)
from diffwindow.cli.errors import report_errors
from diffwindow.console import lossy_stderr

app = typer.Typer(
    name="diffwindow",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("describe")(describe.describe)
app.command("doctor")(doctor.doctor)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("translate")(translate.translate)
app.command("generate")(generate.generate)
app.command("predict")(predict.predict)
app.command("score")(score.score)
app.command("parse")(parse.parse)
app.command("view")(view.view)
app.command("export")(publish.export)
app.command("push")(publish.push)
app.command("demo")(demo.demo)
app.command("average")(train.average)
app.command("runs")(runs.runs)
app.command("list")(train.list_all)
app.command("reproduce")(reproduce.reproduce)
app.command("compare")(compare.compare)
app.command("fit")(fit.fit)
app.command("prepare")(data.prepare)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"diffwindow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learned attention windows for Transformers."""


def main() -> None:
    """Run the command line; print a user's mistake as one sentence and exit with code 2."""
    with lossy_stderr(), report_errors():
        # the same name in usage and completion, also under `python -m`
        app(prog_name="diffwindow")
