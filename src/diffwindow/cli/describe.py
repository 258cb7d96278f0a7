"""The verb `describe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffwindow.cli.completion import complete_presets
from diffwindow.cli.library import files, tasks_entries, tasks_presets
from diffwindow.cli.options import AsJson, check_partners


def describe(
    preset: Annotated[
        str,
        typer.Argument(
            help="A preset of `diffwindow list`, such as wmt14-en-de.", autocompletion=complete_presets
        ),
    ],
    attention: Annotated[
        str, typer.Option(help='The attention of each layer, such as "Enc(AW)-Cr(AW,Seg)-Dec(MW)".')
    ] = "Global",
    vocab_size: Annotated[int | None, typer.Option(min=1, help="Another size of the vocabulary.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="STORE", help="The prepared corpus of a task's preset.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the attention of each layer of a model and its number of parameters; allocate no weights."""
    check_partners(preset, (("--data", data is not None, tuple(tasks_entries.TASKS)),))
    config = tasks_presets.model_preset(preset, data, attention=attention, vocab_size=vocab_size)
    layers = [
        {"role": role, "layer": number, "attention": str(kind)}
        for role, field in config.stacks().items()
        for number, kind in enumerate(config.plan.attentions(role, getattr(config, field)), start=1)
    ]
    parameters = config.count_parameters()
    if as_json:
        report = {"preset": preset, "parameters": parameters, "layers": layers, "config": config.model_dump()}
        print(files.to_json(report, indent=2))
        return
    print(f"{preset}  {config.attention}")
    for layer in layers:
        print(f"  {layer['role']:3} {layer['layer']}  {layer['attention']}")
    print(f"{parameters:,} parameters")
