"""Time updates of trained models against those of the first, in turns, in one run.

What a `window_tolerance` saves depends on the windows that a model has learned, so runs are timed as they
are: from the final model, on batches of their own training data. Nothing is written.

    diffwindow reproduce long-text --data DIR --out reproduced
    python benchmarks/updates.py reproduced/runs/mini/lm-long/*/seed1 [--seconds 60] [--threads 1]
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from attention import interleave
from diffwindow.data.batching import TokenBatches
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.training.distributed import World
from diffwindow.training.loader import BatchLoader
from diffwindow.training.run import Run
from diffwindow.training.updater import Updater


def make_update(folder: Path, *, batches: int = 4) -> Callable[[], None]:
    """Return a function that makes an update of a run's model, each time with the next of some batches."""
    run, trained, world = Run.open(folder), ModelFolder.read(folder), World()
    config = run.config.train
    task = run.task(run.open_store())
    sampler = TokenBatches(
        task.lengths("train"), max_tokens=config.max_tokens, max_rows=config.max_rows, seed=config.seed
    )
    with BatchLoader(task, sampler, world, config.accumulate) as loader:
        works = [next(loader) for _ in range(batches)]
    updater = Updater(task, trained.model.train(), config, world)
    made = 0

    def update() -> None:
        nonlocal made
        updater(config.max_updates + made, works[made % batches], measure=False)
        made += 1

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "runs", type=Path, nargs="+", help="run folders; the others are compared with the first"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to measure")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    updates = {run: make_update(run) for run in options.runs}
    first, *_ = seconds = interleave(list(updates.values()), options.seconds, 3)
    for run, each in zip(updates, seconds, strict=True):
        print(f"{each * 1e3:>9.1f} ms an update  {each / first:>6.2f}  {run}")


if __name__ == "__main__":
    main()
