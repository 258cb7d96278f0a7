"""Two processes with gloo: the updates of one process with twice the accumulation."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from diffwindow.models.weights import read_weights
from diffwindow.training import distributed
from diffwindow.training.distributed import connected
from diffwindow.training.failures import LOST_CODE, Interrupted, TrainingError
from diffwindow.training.records import read_records
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


class Sleeping(MajorityTask):
    """Makes a file in the loss of an update, and sleeps."""

    def __init__(self, update: int, mark: Path) -> None:
        super().__init__()
        self._left = update
        self._mark = mark

    def loss(self, model, batch):
        self._left -= 1
        if self._left == 0:
            self._mark.touch()
            time.sleep(60)
        return super().loss(model, batch)


class SlowToValidate(MajorityTask):
    def validate(self, model, split, **options):
        time.sleep(6)
        return super().validate(model, split, **options)


def start(folder: Path, tasks: list[MajorityTask], timeout: float = 120.0, **changes: object) -> list[int]:
    """Train in processes, each with a task of its own; return their ids."""
    port = free_port()

    def work(rank: int) -> None:
        os.environ |= group_environment(rank, 2, port)
        try:
            with connected("cpu", timeout) as world:
                fit(folder, tasks[rank], world, **{**CHANGES, **changes})
        except (TrainingError, Interrupted) as error:
            (folder / f"said{rank}").write_text(f"{type(error).__name__}: {error}")
            os._exit(getattr(error, "code", 1))

    return [in_child(lambda rank=rank: work(rank)) for rank in range(len(tasks))]


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def two_processes(folder: Path, second: MajorityTask) -> list[int]:
    """Train in two processes, the second with a task of its own; give how they ended."""
    return [end_of(child) for child in start(folder, [MajorityTask(), second])]


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


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
    assert two_processes(run, Signalled(8, signal.SIGKILL)) == [LOST_CODE, -signal.SIGKILL]
    said = (run / "said0").read_text()
    lost = f"LostProcessError: lost {socket.gethostname()} (process 1 of 2), last heard from 3 s ago while "
    assert said.startswith(lost), said
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


def test_a_signal_stops_a_process_that_waits_for_another(tmp_path, one):
    run, mark = tmp_path / "two", tmp_path / "asleep"
    first, second = start(run, [MajorityTask(), Sleeping(8, mark)])
    wait_for(mark)
    os.kill(first, signal.SIGTERM)
    began = time.monotonic()
    assert end_of(first) == 128 + signal.SIGTERM
    # in a collective that would take two minutes to fail
    assert time.monotonic() - began < 30
    assert "stopped by SIGTERM after update 7, which is saved" in (run / "said0").read_text()
    os.kill(second, signal.SIGKILL)
    end_of(second)
    fit(run, accumulate=2, **CHANGES)
    assert_same_weights(one / "model", run / "model")


def test_a_process_that_is_silent_for_too_long_is_lost(tmp_path, one):
    run, mark = tmp_path / "two", tmp_path / "asleep"
    first, second = start(run, [MajorityTask(), Sleeping(8, mark)], timeout=4.0)
    wait_for(mark)
    os.kill(second, signal.SIGSTOP)
    assert end_of(first) == LOST_CODE
    said = (run / "said0").read_text()
    lost = (
        rf"LostProcessError: lost {socket.gethostname()} \(process 1 of 2\), last heard from \d+ s ago while "
    )
    assert re.match(rf"{lost}.*; the newest checkpoint is that of update 7", said), said
    os.kill(second, signal.SIGKILL)
    end_of(second)
    fit(run, accumulate=2, **CHANGES)
    assert_same_weights(one / "model", run / "model")


def test_a_process_that_hangs_is_named_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "MARGIN_SECONDS", 0.0)
    first, second = start(tmp_path, [MajorityTask(), Sleeping(8, tmp_path / "asleep")], timeout=3.0)
    assert end_of(first) == LOST_CODE
    said = (tmp_path / "said0").read_text()
    assert said.startswith("LostProcessError: every process answers, but a collective failed (")
    place = rf"{socket.gethostname()} \(process 1 of 2\) is in Sleeping.loss \(test_distributed.py:\d+\)"
    assert re.search(rf"; {place}; the newest checkpoint is that of update 7", said), said
    os.kill(second, signal.SIGKILL)
    end_of(second)


def test_processes_wait_for_a_long_validation_of_the_first(tmp_path, monkeypatch):
    # longer than any collective may take
    monkeypatch.setattr(distributed, "MARGIN_SECONDS", 0.0)
    tasks = [SlowToValidate(), MajorityTask()]
    children = start(tmp_path, tasks, timeout=4.0, max_updates=6, final="last")
    assert [end_of(child) for child in children] == [0, 0]


@pytest.mark.slow
def test_torchrun(tmp_path):
    launcher = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    command = [sys.executable, "-m", *launcher]
    sizes = ["data.rows=200", "model.embed_dim=16", "train.max_tokens=400", "train.max_updates=6"]
    times = ["train.log_every=2", "train.valid_every=3", "train.save_every=3", "train.device=cpu"]
    train = ["diffwindow", "train", "agreement", *sizes, *times, "--virtual-gpus", "2", "--out"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([*command, "-m", *train, str(tmp_path / "two")], env=env, check=True, timeout=240)
    subprocess.run([sys.executable, "-m", *train, str(tmp_path / "one")], env=env, check=True, timeout=240)
    assert_same_weights(tmp_path / "one/model", tmp_path / "two/model")
