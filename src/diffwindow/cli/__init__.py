"""The `diffwindow` command. Verbs import what they need when they run, so that `--help` is instant."""

from __future__ import annotations

import typer

from diffwindow.cli import data, demo, evaluate, model, reproduce, train, translate
from diffwindow.cli.errors import spoken

app = typer.Typer(
    name="diffwindow",
    help="Learned attention windows for Transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("describe")(model.describe)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("translate")(translate.translate)
app.command("generate")(translate.generate)
app.command("demo")(demo.demo)
app.command("average")(train.average)
app.command("list")(train.list_presets)
app.command("reproduce")(reproduce.reproduce)
app.command("prepare")(data.prepare)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; a mistake of its user is one sentence and exit code 2."""
    with spoken():
        app()
