"""Average the last checkpoints of a run to a model folder."""

from __future__ import annotations

from pathlib import Path

from diffwindow.files import write_atomically
from diffwindow.models.pretrained import average_pretrained
from diffwindow.tasks.folder import TASK
from diffwindow.training.checkpoint import verify
from diffwindow.training.run import Run
from diffwindow.training.shelf import Shelf


def average_run(folder: Path, last: int, target: Path) -> list[int]:
    """Write the average of a run's last checkpoints, each verified first; give their updates."""
    run = Run.open(folder)
    shelf = Shelf(folder / "checkpoints")
    updates = shelf.scheduled(run.config.train.save_every)
    if len(updates) < last:
        raise ValueError(
            f"{folder} has {len(updates)} checkpoints, not {last}; lower --last, or train with a greater "
            "train.keep_last"
        )
    for update in updates[-last:]:
        verify(shelf.path(update))
    average_pretrained([shelf.path(update) for update in updates[-last:]], target)
    # how the model reads a corpus is no weight, and comes along as it is
    write_atomically(target / TASK, (shelf.path(updates[-1]) / TASK).read_bytes())
    return updates[-last:]
