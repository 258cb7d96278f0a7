"""Two processes with gloo: the updates of one process with twice the accumulation."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffwindow.models.weights import read_weights
from diffwindow.training.distributed import connected
from diffwindow.training.failures import Interrupted, TrainingError
from diffwindow.training.logs import read_records
from samples.majority_task import MajorityTask, fit
from samples.processes import FORK_WARNING, free_port, group_environment, in_child

pytestmark = pytest.mark.filterwarnings(FORK_WARNING)
CHANGES = {"max_updates": 12, "watch": "accuracy", "final": "best"}


class Signalled(MajorityTask):
    """Sends its own process a signal in the loss of an update."""

    def __init__(self, update: int, number: int) -> None:
        super().__init__()
        self._left = update
        self._number = number

    def loss(self, model, batch):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._number)
        return super().loss(model, batch)


def two_processes(folder: Path, second: MajorityTask) -> list[int]:
    """Train in two processes, the second with a task of its own; give how they ended."""
    port = free_port()

    def work(rank: int) -> None:
        os.environ |= group_environment(rank, 2, port)
        try:
            with connected("cpu") as world:
                fit(folder, second if rank else MajorityTask(), world, **CHANGES)
        except (TrainingError, Interrupted) as error:
            (folder / f"said{rank}").write_text(f"{type(error).__name__}: {error}")
            os._exit(getattr(error, "code", 1))

    children = [in_child(lambda rank=rank: work(rank)) for rank in range(2)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def assert_same_weights(one: Path, two: Path) -> None:
    first, second = (read_weights(folder / "model.safetensors")[0] for folder in (one, two))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def one(tmp_path):
    fit(tmp_path / "one", accumulate=2, **CHANGES)
    return tmp_path / "one"


def test_two_processes_equal_one_with_twice_the_accumulation(tmp_path, one):
    assert two_processes(tmp_path / "two", MajorityTask()) == [0, 0]
    # with dropout: every batch has its own seed, whichever process works on it
    for name in ("checkpoints/00000010", "checkpoints/00000012", "model"):
        assert_same_weights(one / name, tmp_path / "two" / name)
    assert read_records(tmp_path / "two/log.jsonl") == read_records(one / "log.jsonl")


def test_a_process_that_dies_ends_the_run_with_a_checkpoint(tmp_path, one):
    run = tmp_path / "two"
    assert two_processes(run, Signalled(8, signal.SIGKILL)) == [1, -signal.SIGKILL]
    said = (run / "said0").read_text()
    # what gloo says, up to its first full stop
    assert re.search(r"TrainingError: another process of the run ended \([^()]*[^.)]\); ", said), said
    assert "the newest checkpoint is that of update 7" in said
    # one process goes on with the batches of both
    fit(run, accumulate=2, **CHANGES)
    assert_same_weights(one / "model", run / "model")


def test_a_signal_to_one_process_stops_both_after_saving(tmp_path, one):
    run = tmp_path / "two"
    assert two_processes(run, Signalled(8, signal.SIGTERM)) == [143, 143]
    assert "after update 8, which is saved" in (run / "said0").read_text()
    fit(run, accumulate=2, **CHANGES)
    assert_same_weights(one / "model", run / "model")


@pytest.mark.slow
def test_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    sizes = ["data.rows=200", "model.embed_dim=16", "train.max_tokens=400", "train.max_updates=6"]
    times = ["train.log_every=2", "train.valid_every=3", "train.save_every=3", "train.device=cpu"]
    train = ["diffwindow", "train", "agreement", *sizes, *times, "--virtual-gpus", "2", "--out"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([*command, "-m", *train, str(tmp_path / "two")], env=env, check=True, timeout=240)
    subprocess.run([sys.executable, "-m", *train, str(tmp_path / "one")], env=env, check=True, timeout=240)
    assert_same_weights(tmp_path / "one/model", tmp_path / "two/model")
