import subprocess
import sys
import time
from types import ModuleType

import pytest
import torch

from diffwindow.extras import MissingExtraError
from diffwindow.files import write_json
from diffwindow.training.logs import RunLogs, Stopwatch, loss_record
from diffwindow.training.state import TrainState
from diffwindow.training.updater import UpdateResult
from samples.majority_task import settings


def result(loss, units):
    return UpdateResult(1, torch.tensor([loss, units], dtype=torch.float64), torch.empty(0), [], [])


def test_a_lap_counts_its_own_updates_and_leaves_pauses_out():
    began = time.perf_counter()
    stopwatch = Stopwatch()
    for _ in range(2):
        stopwatch.count()
    with stopwatch.pause():
        time.sleep(0.2)
    # the first result is from before a resumed run began
    speed = stopwatch.lap([result(1.0, 100.0), result(1.0, 10.0), result(1.0, 20.0)])
    assert speed["seconds"] <= time.perf_counter() - began - 0.2
    assert speed["updates_per_s"] * speed["seconds"] == pytest.approx(2)
    assert speed["units_per_s"] * speed["seconds"] == pytest.approx(30)


def test_the_loss_is_the_mean_over_units_and_none_if_all_were_skipped():
    state = TrainState({"epoch": 3}, update=4, skipped=1)
    assert loss_record([result(6.0, 1.0), result(2.0, 3.0)], state, settings())["loss"] == 2.0
    assert loss_record([result(0.0, 0.0)], state, settings())["loss"] is None


class StubPage(ModuleType):
    """Stands for the package wandb and for a run on it; keeps what it is told."""

    def __init__(self):
        super().__init__("wandb")
        self.started, self.logged, self.finished = [], [], 0

    def init(self, **asked):
        self.started.append(asked)
        return self

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "update")

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished += 1


def test_weights_and_biases_gets_the_values_by_update_and_one_page_per_run(tmp_path, monkeypatch):
    page = StubPage()
    page.__spec__ = object()
    monkeypatch.setitem(sys.modules, "wandb", page)
    write_json(tmp_path / "run.json", {"attention": "Enc(AW)"})
    for update in (2, 4):
        logs = RunLogs(tmp_path, wandb="windows")
        logs.write("train", update, {"loss": 0.5, "grad_norm": None})
        logs.close()
    first, second = page.started
    assert first == second
    assert (first["project"], first["config"], first["resume"]) == (
        "windows",
        {"attention": "Enc(AW)"},
        "allow",
    )
    assert page.logged == [{"update": 2, "train/loss": 0.5}, {"update": 4, "train/loss": 0.5}]
    assert page.finished == 2


def test_weights_and_biases_is_off_by_default_and_named_if_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    RunLogs(tmp_path).close()
    assert not (tmp_path / "wandb.json").exists()
    monkeypatch.setattr("diffwindow.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'diffwindow\[wandb\]'"):
        RunLogs(tmp_path, wandb="windows")


def test_weights_and_biases_without_an_account_is_one_sentence(tmp_path, monkeypatch):
    page = StubPage()
    page.__spec__, page.Error = object(), RuntimeError
    page.init = lambda **asked: (_ for _ in ()).throw(RuntimeError("No API key configured."))
    monkeypatch.setitem(sys.modules, "wandb", page)
    with pytest.raises(
        ValueError, match=r"train\.wandb=windows: No API key configured; set WANDB_MODE=offline"
    ):
        RunLogs(tmp_path, wandb="windows")


REAL = """
import sys
from pathlib import Path
from diffwindow.training.logs import RunLogs
logs = RunLogs(Path(sys.argv[1]), wandb="windows")
logs.write("train", 1, {"loss": 0.5})
logs.close()
"""


@pytest.mark.slow
def test_the_real_package_writes_its_files_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    subprocess.run([sys.executable, "-c", REAL, tmp_path], check=True, capture_output=True)
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
