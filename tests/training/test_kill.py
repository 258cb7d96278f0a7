"""SIGKILL at random moments: the run that goes on ends bit for bit as one that was never killed."""

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch
from majority import MajorityTask, fit, outcome

from diffwindow.training import trainer

# children of a server that has torch loaded start in milliseconds
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["diffwindow.training.trainer"])
CHANGES = {"final": "average", "average_last": 3, "accumulate": 2}


def work(folder: str) -> None:
    torch.set_num_threads(1)
    trainer.draw_curves = lambda records, path: None
    fit(Path(folder), MajorityTask(pause=0.002), **CHANGES)


def run_for(folder: Path, seconds: float | None) -> int | None:
    process = CONTEXT.Process(target=work, args=(str(folder),))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def kill_and_go_on(tmp_path: Path, kills: int) -> None:
    fit(tmp_path / "whole", MajorityTask(), **CHANGES)
    started = time.monotonic()
    assert run_for(tmp_path / "timed", None) == 0
    whole = time.monotonic() - started
    moments = random.Random(kills)
    killed = 0
    run = 0
    while killed < kills:
        run += 1
        folder = tmp_path / f"cut{run}"
        # a few kills in each run, until it gets to its end between two of them
        while killed < kills and run_for(folder, moments.uniform(0.1, 0.9) * whole) != 0:
            killed += 1
        assert run_for(folder, None) == 0
        assert outcome(folder) == outcome(tmp_path / "whole")


def test_six_kills(tmp_path):
    kill_and_go_on(tmp_path, 6)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [20, 100])
def test_many_kills(tmp_path, kills):
    kill_and_go_on(tmp_path, kills)
