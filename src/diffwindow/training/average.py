"""Average the last checkpoints of a run to a model folder."""

from __future__ import annotations

from pathlib import Path

from diffwindow.files import write_atomically
from diffwindow.models.manifest import MANIFEST, verify
from diffwindow.models.pretrained import average_pretrained
from diffwindow.tasks.model_folder import TASK
from diffwindow.training.checkpoints import Shelf, write_checkpoint
from diffwindow.training.run_folder import Run


def average_run(folder: Path, last: int, target: Path) -> list[int]:
    """Write the average of a run's last checkpoints, each verified first; give their updates.

    It takes the place of a model that is at `target` already.
    """
    run = Run.open(folder)
    shelf = Shelf(folder / "checkpoints")
    updates = shelf.scheduled(run.config.train.save_every)
    if len(updates) < last:
        raise ValueError(
            f"{folder} has {len(updates)} checkpoints, not {last}; lower --last, or train with a greater "
            "train.keep_last"
        )
    if target.exists() and not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise ValueError(f"{target} holds something other than the model of a run; choose another --out")
    chosen = [shelf.path(update) for update in updates[-last:]]
    for path in chosen:
        verify(path)

    def save(folder: Path) -> None:
        average_pretrained(chosen, folder)
        # how the model reads a corpus is no weight, and comes along as it is
        write_atomically(folder / TASK, (chosen[-1] / TASK).read_bytes())

    write_checkpoint(target, save, {}, {"updates": updates[-last:]})
    return updates[-last:]
