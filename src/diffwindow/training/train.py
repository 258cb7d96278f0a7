"""From settings to a trained model: the run folder, the corpus, the processes, the loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from diffwindow.data.prepare import Progress, quiet
from diffwindow.tasks.task import Task
from diffwindow.training.config import Config
from diffwindow.training.distributed import World, connected
from diffwindow.training.objective import pick_precision
from diffwindow.training.run import Run
from diffwindow.training.screen import Screen, Silent, Terminal
from diffwindow.training.trainer import Trainer


def train(config: Config, folder: Path, *, resume: bool = True, progress: Progress = quiet) -> Path:
    """Run an experiment in a folder, from where it stands, and give the folder of the final model."""
    with connected(config.train.device) as world, _shown(world, config.train.max_updates) as screen:
        # said before a long preparation, not after
        pick_precision(config.train.precision, world.device)
        # the first process makes what the others open
        if world.main:
            run = Run.start(folder, config, resume=resume)
            run.prepare_store(progress=progress)
        world.wait()
        run = Run(folder, config)
        store = run.open_store()
        if world.main:
            run.check_origin(store)
        _reproducible(config, world)
        task: Task[Any] = run.task(store)
        return Trainer(task, config.train, folder, world, screen).fit()


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
