"""The objective is the task's loss, and for learned spans what Sukhbaatar et al. charge for them."""

import numpy as np
import pytest
import torch

from diffwindow.attention.base import watch
from diffwindow.attention.baselines import mean_span
from diffwindow.attention.window import WindowAttention
from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.special_tokens import PAD
from diffwindow.tasks.task import model_config, task_of
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.loader import UpdateBatches
from diffwindow.training.updater import Objective, Updater, learning_rate


def rates(updates, **changes):
    config = TrainConfig(max_updates=100, lr=1.0, warmup=10, warmup_from=0.0, **changes)
    return [learning_rate(update, config) for update in updates]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "linear", "cosine"])
def test_every_schedule_warms_up_to_the_peak(schedule):
    assert rates([1, 5, 10], schedule=schedule) == pytest.approx([0.1, 0.5, 1.0])


def test_what_comes_after():
    assert rates([40, 90], schedule="inverse_sqrt") == pytest.approx([0.5, 1 / 3])
    assert rates([11, 100], schedule="constant") == [1.0, 1.0]
    assert rates([55, 100], schedule="linear") == pytest.approx([0.5, 0.0])
    assert rates([55, 100], schedule="cosine", final_lr=0.2) == pytest.approx([0.6, 0.2])


def test_the_papers_rates():
    config = TrainConfig(max_updates=200_000)
    assert learning_rate(4000, config) == pytest.approx(7e-4)
    assert learning_rate(16_000, config) == pytest.approx(3.5e-4)
    assert learning_rate(1, config) == pytest.approx(1e-7 + (7e-4 - 1e-7) / 4000)


def test_without_warmup_the_first_update_has_the_full_rate():
    assert learning_rate(1, TrainConfig(max_updates=10, lr=0.5, warmup=0)) == 0.5


TINY = {"embed_dim": 8, "ffn_dim": 8, "num_heads": 2, "num_layers": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return prepare(recipe_of("agreement", rows=20), tmp_path_factory.mktemp("agreement") / "store")


def task_and_model(store, attention):
    task = task_of(store, model_config(store, TINY | {"attention": attention}))
    torch.manual_seed(0)
    return task, task.build_model()


def test_long_spans_are_charged_for_per_unit(store):
    task, model = task_and_model(store, "Enc(Span=64)@all")
    batch = task.collate("train", np.arange(5))
    charged = Objective(task, model, "cpu", "fp32", span_penalty=0.01)(batch)
    expected = task.loss(model, batch) + 5 * 0.01 * mean_span(model)
    torch.testing.assert_close(charged, expected)
    assert Objective(task, model, "cpu", "fp32")(batch) == task.loss(model, batch)


def test_other_attentions_pay_nothing(store):
    task, model = task_and_model(store, "Enc(AW)")
    batch = task.collate("train", np.arange(5))
    assert Objective(task, model, "cpu", "fp32", span_penalty=9.0)(batch) == task.loss(model, batch)


@pytest.mark.parametrize("shares", [[6], [1, 3, 2]])
def test_an_update_charges_once_however_it_is_accumulated(store, shares):
    task, model = task_and_model(store, "Enc(Span=64)@all")
    config = TrainConfig(max_updates=1, warmup=0, lr=1e-9, device="cpu")
    places = np.split(np.arange(6), np.cumsum(shares)[:-1])
    gradients = []
    for penalty in (0.0, 0.5):
        updater = Updater(task, model, config.model_copy(update={"span_penalty": penalty}), World())
        work = UpdateBatches([task.collate("train", rows) for rows in places], list(places), None, False)
        updater._accumulate(1, work, 6)
        gradients.append([p.grad.clone() for n, p in model.named_parameters() if "span_logit" in n])
        model.zero_grad(set_to_none=True)
    # d/dlogit of 0.5 · 64 · the mean over 2 heads of sigmoid(-4), in both layers
    inside = torch.tensor([-4.0, -4.0]).sigmoid()
    for free, charged in zip(*gradients, strict=True):
        torch.testing.assert_close(charged - free, 0.5 * 64 / 2 * inside * (1 - inside))


def windows_of(model, batch):
    """Return M of each window attention for a batch."""
    windows = []
    attentions = [module for module in model.modules() if isinstance(module, WindowAttention)]
    with watch(attentions, lambda one, *call: windows.append(one.maps(*call).window.values)), torch.no_grad():
        model(batch.tokens)
    return windows


@pytest.mark.parametrize("attention", ["Enc(MW,Norm)@all", "Enc(AW,Seg)@1"])
def test_wide_windows_are_charged_for_per_unit(store, attention):
    task, model = task_and_model(store, attention)
    batch = task.collate("train", np.arange(5))
    charged = Objective(task, model, "cpu", "fp32", window_penalty=0.5)(batch)
    free = Objective(task, model, "cpu", "fp32")(batch)
    layers = windows_of(model, batch)
    real = (batch.tokens != PAD)[:, None, None].expand_as(layers[0])
    means = [(window * real).sum(-1) / real.sum(-1) for window in layers]
    torch.testing.assert_close(charged - free, 5 * 0.5 * torch.stack(means).mean())
    # nothing is left behind
    assert all(module.watchers == () for module in model.modules() if isinstance(module, WindowAttention))
    torch.testing.assert_close(Objective(task, model, "cpu", "fp32")(batch), free)


def test_a_penalty_makes_windows_narrower(store):
    task, model = task_and_model(store, "Enc(MW)@all")
    batch = task.collate("train", np.arange(8))
    objective = Objective(task, model, "cpu", "fp32", window_penalty=10.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)

    def mean():
        return torch.stack([window.mean() for window in windows_of(model, batch)]).mean()

    before = mean()
    for _ in range(40):
        optimizer.zero_grad()
        objective(batch).backward()
        optimizer.step()
    assert mean() < 0.8 * before


def test_without_windows_there_is_no_penalty(store):
    task, model = task_and_model(store, "Global")
    batch = task.collate("train", np.arange(5))
    plain = task.loss(model, batch)
    assert Objective(task, model, "cpu", "fp32", window_penalty=9.0)(batch) == plain
