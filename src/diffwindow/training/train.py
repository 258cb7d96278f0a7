"""From settings to a trained model: the run folder, the corpus, the processes, the loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from diffwindow.console import lossy_stderr
from diffwindow.data.prepare import Progress, quiet
from diffwindow.files import locked
from diffwindow.tasks.task import Task
from diffwindow.training.config import Config
from diffwindow.training.distributed import World, connected
from diffwindow.training.progress import Screen, Silent, Terminal
from diffwindow.training.run_folder import Run
from diffwindow.training.trainer import Trainer
from diffwindow.training.updater import pick_precision


def train(
    config: Config,
    folder: Path,
    *,
    resume: bool = True,
    progress: AbstractContextManager[Progress] | None = None,
) -> Path:
    """Run an experiment in a folder, from where it stands, and give the folder of the final model.

    `progress` shows the preparation of the corpus, if there is any; it ends before the training shows itself.
    """
    with lossy_stderr(), connected(config.train.device) as world, ExitStack() as held:
        with world.together():
            # said before a long preparation, not after
            pick_precision(config.train.precision, world.device)
            # the first process makes and verifies what the others open
            if world.main:
                held.enter_context(_owned(folder))
                run = Run.start(folder, config, resume=resume)
                with progress or nullcontext(quiet) as report:
                    run.prepare_store(progress=report)
                made = run.open_store()
                run.check_origin(made)
                for split in {"train", "valid"} & made.splits.keys():
                    made.split(split)
        world.check_shared(folder)
        with world.together():
            run = Run(folder, config)
            store = run.open_store()
            _reproducible(config, world)
            task: Task[Any] = run.task(store)
        with _shown(world, config.train.max_updates) as screen:
            return Trainer(task, config.train, folder, world, screen).fit()


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Keep the run folder from other runs: they would remove each other's files."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield


@contextmanager
def _shown(world: World, total: int) -> Iterator[Screen]:
    if not world.main:
        yield Silent()
        return
    with Terminal(total) as terminal:
        yield terminal


def _reproducible(config: Config, world: World) -> None:
    """Ask the GPU for kernels that give the same bits each time; those of the CPU do anyway."""
    if config.train.deterministic and world.device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
