"""SIGKILL at random moments: the run that goes on ends bit for bit as one that was never killed."""

import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest

from samples.majority_task import MajorityTask, fit, outcome
from samples.processes import FORK_WARNING, in_child

pytestmark = pytest.mark.filterwarnings(FORK_WARNING)
CHANGES = {"final": "average", "average_last": 3, "accumulate": 2}


def run_for(folder: Path, seconds: float) -> bool:
    """Train in a child, kill it after a time, and say whether it was done before."""
    child = in_child(lambda: fit(folder, MajorityTask(pause=0.002), **CHANGES))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return True
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def kill_and_go_on(tmp_path: Path, kills: int) -> None:
    fit(tmp_path / "whole", MajorityTask(), **CHANGES)
    expected = outcome(tmp_path / "whole")
    started = time.monotonic()
    assert run_for(tmp_path / "timed", 600)
    whole = time.monotonic() - started
    moments = random.Random(kills)
    killed = 0
    while killed < kills:
        folder = tmp_path / f"cut{killed}"
        # several kills in one run, until it gets to its end between two of them
        while killed < kills and not run_for(folder, moments.uniform(0.0, 0.9) * whole):
            killed += 1
        assert run_for(folder, 600)
        assert outcome(folder) == expected


@pytest.fixture
def folder(tmp_path):
    """A folder in memory where there is one: a hundred runs flush thousands of files."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_kills(folder, kills):
    kill_and_go_on(folder, kills)
