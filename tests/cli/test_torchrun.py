"""Verbs in several processes, as torchrun starts them: one result, whatever their number."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diffwindow.training.overrides import resolve
from diffwindow.training.train import train

SMALL = ["data.rows=60", "model.embed_dim=16", "model.ffn_dim=16", "model.num_heads=2", "train.max_updates=2"]


def together(*arguments, processes=2, folders=None, typed=""):
    """Run a verb in processes of one group; return the exit code, stdout and stderr of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "diffwindow", *map(str, arguments)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folders[rank] if folders else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    ends = [child.communicate(typed if rank == 0 else "", timeout=240) for rank, child in enumerate(children)]
    return [(child.returncode, *end) for child, end in zip(children, ends, strict=True)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    # small batches, so that each process has several
    train(resolve("agreement", [*SMALL, "task.valid_tokens=64"]), root / "classifier")
    own = ["model.encoder_layers=1", "model.decoder_layers=1", "task.valid_tokens=64"]
    train(resolve("reorder", [*SMALL, *own]), root / "translator")
    return root


@pytest.mark.parametrize("name", ["classifier", "translator"])
def test_evaluate_gives_one_report_for_any_number_of_processes(runs, name):
    ((code, alone, _),) = together("evaluate", runs / name, "--json", processes=1)
    assert code == 0
    first, second = together("evaluate", runs / name, "--json")
    assert (first[0], second[0]) == (0, 0)
    assert json.loads(first[1]) == json.loads(alone)
    assert second[1] == ""


def test_translate_reads_and_writes_in_the_first_process(runs, tmp_path):
    typed = "".join(f"{words}\n" for words in ["a b c", "", "b a", "c a b a"])
    ((code, alone, _),) = together("translate", runs / "translator", processes=1, typed=typed)
    assert (code, alone.count("\n")) == (0, 4)
    first, second = together("translate", runs / "translator", typed=typed)
    assert first[:2] == (0, alone)
    assert second[:2] == (0, "")


def test_a_node_that_does_not_see_the_run_folder_is_told_in_every_process(tmp_path):
    nodes = [tmp_path / "one", tmp_path / "two"]
    for node in nodes:
        node.mkdir()
    # a relative path on two machines: the second has a folder of that name, but not the same
    Path(nodes[1] / "run").mkdir()
    ends = together("train", "agreement", *SMALL, "--out", "run", folders=nodes)
    assert [code for code, _, _ in ends] == [2, 2]
    for _, _, err in ends:
        assert "does not see the folder run of the first process; put it on a file system that all" in err
        assert "Traceback" not in err
    assert not list((nodes[0] / "run").glob(".seen*"))


def test_a_mistake_that_the_first_process_finds_is_told_in_every_process(tmp_path, runs):
    ends = together("train", "agreement", *SMALL, "--out", runs / "classifier", "--resume", "never")
    for code, _, err in ends:
        assert code == 2
        assert "holds a run" in err
        assert "Traceback" not in err
