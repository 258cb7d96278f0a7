"""Verbs in several processes, as torchrun starts them: one result, whatever their number."""

import json
import os
import sys
from pathlib import Path

import pytest

from diffwindow.cli import main
from diffwindow.training.overrides import resolve
from diffwindow.training.run import train
from samples.processes import FORK_WARNING, free_port, group_environment, in_child

pytestmark = pytest.mark.filterwarnings(FORK_WARNING)

SMALL = ["data.rows=60", "model.embed_dim=16", "model.ffn_dim=16", "model.num_heads=2", "train.max_updates=2"]


@pytest.fixture
def together(tmp_path):
    def run(*arguments, processes=2, folders=None, typed=""):
        """Run a verb in processes of one group; return the exit code, stdout and stderr of each."""
        port = free_port()

        def work(rank):
            os.environ |= group_environment(rank, processes, port)
            os.chdir(folders[rank] if folders else ".")
            for number, name in enumerate(streams):
                os.dup2(os.open(files[rank][name], os.O_RDWR | os.O_CREAT | os.O_TRUNC * number), number)
            sys.argv = ["diffwindow", *map(str, arguments)]
            try:
                with open(0) as sys.stdin, open(1, "w") as sys.stdout, open(2, "w") as sys.stderr:
                    main()
            except SystemExit as end:
                os._exit(end.code or 0)

        streams = ("in", "out", "err")
        files = [{name: tmp_path / f"{name}{rank}" for name in streams} for rank in range(processes)]
        for rank, names in enumerate(files):
            names["in"].write_text(typed if rank == 0 else "")
        children = [in_child(lambda rank=rank: work(rank)) for rank in range(processes)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return [
            (code, names["out"].read_text(), names["err"].read_text())
            for code, names in zip(codes, files, strict=True)
        ]

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    # small batches, so that each process has several
    train(resolve("agreement", [*SMALL, "task.valid_tokens=64"]), root / "classifier")
    own = ["model.encoder_layers=1", "model.decoder_layers=1", "task.valid_tokens=64"]
    train(resolve("reorder", [*SMALL, *own]), root / "translator")
    return root


@pytest.mark.parametrize("name", ["classifier", "translator"])
def test_evaluate_gives_one_report_for_any_number_of_processes(together, runs, name):
    ((code, alone, _),) = together("evaluate", runs / name, "--json", processes=1)
    assert code == 0
    first, second = together("evaluate", runs / name, "--json")
    assert (first[0], second[0]) == (0, 0)
    assert json.loads(first[1]) == json.loads(alone)
    assert second[1] == ""


def test_translate_reads_and_writes_in_the_first_process(together, runs):
    typed = "".join(f"{words}\n" for words in ["a b c", "", "b a", "c a b a"])
    ((code, alone, _),) = together("translate", runs / "translator", processes=1, typed=typed)
    assert (code, alone.count("\n")) == (0, 4)
    first, second = together("translate", runs / "translator", typed=typed)
    assert first[:2] == (0, alone)
    assert second[:2] == (0, "")


def test_a_node_that_does_not_see_the_run_folder_is_told_in_every_process(together, tmp_path):
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


def test_a_mistake_that_the_first_process_finds_is_told_in_every_process(together, runs):
    ends = together("train", "agreement", *SMALL, "--out", runs / "classifier", "--resume", "never")
    for code, _, err in ends:
        assert code == 2
        assert "holds a run" in err
        assert "Traceback" not in err
