import time

import pytest
import torch

from diffwindow.training.logs import Stopwatch, loss_record
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
