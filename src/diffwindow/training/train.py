"""train(): from a config to a trained model in a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from diffwindow.console import lossy_stderr
from diffwindow.figures.learning_curves import draw_curves
from diffwindow.files import LOCK, locked, make_folder
from diffwindow.progress import SILENT, Progress, show_progress
from diffwindow.tasks.task import Task
from diffwindow.training.checkpoints import Checkpoints
from diffwindow.training.config import Config
from diffwindow.training.distributed import World, connected
from diffwindow.training.failures import Interrupted
from diffwindow.training.fine_tuning import starting_model
from diffwindow.training.logs import read_records
from diffwindow.training.run_folder import CHECKPOINTS, CONFIG, CURVES, LOG, ORIGIN, Run
from diffwindow.training.trainer import Trainer
from diffwindow.training.updater import pick_precision


def train(config: Config, folder: Path, *, resume: bool = True, progress: Progress | None = None) -> Path:
    """Train in a run folder, from its newest checkpoint if it has one; return the final model's folder.

    Progress is shown on stderr unless `progress` is given; only rank 0 shows it.
    """
    with lossy_stderr(), connected(config.train.device) as world, ExitStack() as stack:
        progress = progress or stack.enter_context(show_progress()) if world.main else SILENT
        with world.together():
            # before a long preparation, not after it
            pick_precision(config.train.precision, world.device)
            # rank 0 prepares and verifies what the others open
            if world.main:
                stack.enter_context(_locked_folder(folder))
                run = Run.start(folder, config, resume=resume)
                run.prepare_store(progress=progress)
                prepared = run.open_store()
                run.record_origin(prepared)
                for split in {"train", "valid"} & prepared.splits.keys():
                    prepared.split(split)
        world.check_shared(folder)
        with world.together():
            run = Run(folder, config)
            store = run.open_store()
            _make_deterministic(config, world)
            task = run.task(store)
            # a checkpoint would replace the weights of the start
            resumes = bool(Checkpoints(folder / CHECKPOINTS).updates())
            start = None if resumes or config.start is None else Path(config.start)
            build = task.build_model if start is None else partial(starting_model, task, start)
        try:
            model = Trainer(cast(Task[Any], task), config.train, folder, world, progress, build=build).fit()
        except Interrupted:
            _draw_curves(folder, world, progress)
            raise
        _draw_curves(folder, world, progress)
        return model


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Make the run folder, and keep other runs out of it; leave no trace of a run that is refused."""
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    make_folder(folder)
    with locked(folder):
        try:
            yield
        except (ValueError, OSError):
            written = {path.name for path in folder.iterdir()} - (before or set())
            # a corpus or a log is worth keeping, and then so is the config
            if written <= {CONFIG, ORIGIN, LOCK}:
                for name in written:
                    (folder / name).unlink()
                if before is None:
                    folder.rmdir()
            raise


def _draw_curves(folder: Path, world: World, progress: Progress) -> None:
    """Draw the learning curves, if that can be done: the run has ended well without them."""
    if not world.main:
        return
    try:
        draw_curves(read_records(folder / LOG), folder / CURVES)
    except (OSError, ValueError) as error:
        progress.note(f"there is no picture of the learning curves: {error}")


def _make_deterministic(config: Config, world: World) -> None:
    """Use deterministic kernels on a GPU; those of the CPU are deterministic anyway."""
    if config.train.deterministic and world.device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
