"""The verbs `train`, `average` and `list`."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from diffwindow.cli.completion import complete_presets
from diffwindow.cli.data import list_corpora
from diffwindow.cli.errors import check_folder, report_training_errors
from diffwindow.cli.library import (
    data_corpora,
    reproduce_tables,
    tasks_entries,
    tasks_presets,
    training_config,
    training_overrides,
    training_run,
)
from diffwindow.messages import did_you_mean


class Resume(StrEnum):
    """What to do in a folder that holds a run."""

    auto = "auto"
    never = "never"


def train(
    preset: Annotated[
        str,
        typer.Argument(
            help="A preset of `diffwindow list`, a YAML file, or a run to resume.",
            autocompletion=complete_presets,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value]…", help="Overrides, such as train.max_updates=1000."),
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help='The attention of each layer, such as "Enc(AW)-Cr(AW,Seg)-Dec(MW)".')
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A prepared corpus, or a folder with its raw files.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/… by default.")] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Start from the weights of a run or model folder."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, batches and dropout.")] = None,
    resume: Annotated[
        Resume,
        typer.Option(help="auto resumes from the newest checkpoint; never refuses a folder with a run."),
    ] = Resume.auto,
    virtual_gpus: Annotated[
        int | None,
        typer.Option(min=1, help="Batches per update, over all processes: 8 is the paper's 8 GPUs."),
    ] = None,
) -> None:
    """Train a model in a run folder; the same command resumes a run that stopped.

    Several processes: torchrun --nproc-per-node 2 -m diffwindow train …
    """
    _check_words(preset, overrides or [], data=data, start=start)

    if data is None and preset in tasks_entries.TASKS and (known := os.environ.get("DIFFWINDOW_DATA")):
        data = Path(known)
    values: dict[str, Any] = {
        "attention": attention,
        "train.seed": seed,
        "data.path": str(data.resolve()) if data else None,
        "start": str(start.resolve()) if start else None,
        "train.accumulate": _per_process(virtual_gpus) if virtual_gpus else None,
    }
    config = training_overrides.resolve(
        preset, overrides or (), {key: value for key, value in values.items() if value is not None}
    )
    if config.data.path is None and (path := os.environ.get("DIFFWINDOW_DATA")):
        config = config.with_data(path)
    if preset in tasks_entries.TASKS and config.data.path and os.environ.get("RANK", "0") == "0":
        print(
            tasks_presets.describe_sizes(preset, Path(config.data.path), config.model_dump()), file=sys.stderr
        )
    is_run = (Path(preset) / training_config.RUN_CONFIG).is_file()
    folder = Path(preset) if is_run else default_folder(config.name, config.attention, config.train.seed)
    with report_training_errors():
        training_run.train(config, out or folder, resume=resume is Resume.auto)


def _check_words(preset: str, overrides: list[str], *, data: Path | None, start: Path | None) -> None:
    """Raise for a mistake that shows without torch, which takes seconds to import."""
    presets = (*data_corpora.CORPORA, *tasks_entries.TASKS)

    for override in overrides:
        training_config.split_override(override)
    for option, folder in (("--data", data), ("--from", start)):
        if folder is not None and not folder.exists():
            raise ValueError(f"{option} {folder}: there is no such folder")
    if not preset.endswith((".yaml", ".yml")) and not Path(preset).is_dir() and preset not in presets:
        raise ValueError(
            f"preset={preset!r} is neither a preset, nor a YAML file, nor a run folder; "
            f"{did_you_mean(preset, presets)}"
        )


def default_folder(name: str, attention: str, seed: int) -> Path:
    """Return the run folder to use unless another is given.

    >>> default_folder("sst2", "Enc(AW,Seg)", 1).as_posix()
    'runs/sst2-Enc(AW,Seg)-seed1'
    """
    return Path("runs") / f"{name}-{attention}-seed{seed}"


def _per_process(virtual_gpus: int) -> int:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if virtual_gpus % processes:
        raise ValueError(f"--virtual-gpus {virtual_gpus} is not a multiple of the {processes} processes")
    return virtual_gpus // processes


def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints.")] = 5,
    out: Annotated[Path | None, typer.Option(help="The model's folder; RUN/average by default.")] = None,
) -> None:
    """Write the average of a run's last checkpoints to a model folder."""
    check_folder(run)

    target = out or run / training_config.AVERAGE
    updates = training_run.Run.open(run).average(last, target)
    print(f"{target}: the average of updates {', '.join(map(str, updates))}")


def list_all() -> None:
    """List the presets, the corpora and the paper's tables."""
    print("Presets, for `diffwindow train`:")
    for name in tasks_entries.TASKS:
        print(f"{name:16} {name:14} your own data: sizes suit the prepared corpus of --data")
    for name in tasks_presets.NAMES:
        config = training_overrides.resolve(name)
        batches = f"{config.train.accumulate} x " if config.train.accumulate > 1 else ""
        print(
            f"{name:16} {config.task.kind:14} {config.train.max_updates:>7,} updates of {batches}"
            f"{config.train.max_tokens:,} tokens; width {config.model['embed_dim']}"
        )
    print("\nCorpora, for `diffwindow prepare`:")
    list_corpora()
    print("\nTables, for `diffwindow reproduce`; `diffwindow reproduce list` has their rows and costs:")
    for table in reproduce_tables.TABLES.values():
        print(f"{table.name:16} {table.title}")
