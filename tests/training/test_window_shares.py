import json

import pytest
import torch

from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.tasks.registry import model_config, task_of
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.trainer import Trainer
from diffwindow.training.window_shares import EXAMPLES, outside_shares

TINY = {"embed_dim": 8, "ffn_dim": 8, "num_heads": 2, "num_layers": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return prepare(recipe_of("agreement", rows=100), tmp_path_factory.mktemp("agreement") / "store")


def task_with(store, tolerance, attention="Enc(MW)@1"):
    return task_of(store, model_config(store, TINY | {"attention": attention, "window_tolerance": tolerance}))


def test_shares_are_those_of_the_maps(store):
    task = task_with(store, 0.4)
    torch.manual_seed(0)
    model = task.build_model()
    torch.nn.init.normal_(model.encoder.layers[0].self_attention.attention.in_proj.weight, std=1.0)
    shares = outside_shares(task, model, "valid")
    rows = len(task.lengths("valid")[0])
    assert 1 < rows < EXAMPLES
    pairs = outside = 0
    for row in range(rows):
        tokens = task.collate("valid", torch.tensor([row]).numpy()).tokens
        window = model.attention_maps(tokens)["Enc"][0].window
        pairs, outside = pairs + window.numel(), outside + int((window == 0).sum())
    assert shares["keys_outside"] == pytest.approx(outside / pairs)
    assert 0 < shares["keys_outside"] < 1
    # a sentence is one tile, and none lies outside as a whole
    assert shares["tiles_outside"] == 0.0
    assert model.training


@pytest.mark.parametrize("attention", ["Global", "Enc(MW)"])
def test_without_a_tolerance_or_a_window_there_is_no_share(store, attention):
    tolerance = 0.4 if attention == "Global" else 0.0
    task = task_with(store, tolerance, attention)
    assert outside_shares(task, task.build_model(), "valid") == {}


def test_validations_log_the_shares(store, tmp_path):
    config = TrainConfig(
        max_updates=2, valid_every=1, log_every=1, warmup=0, device="cpu", window_penalty=0.1
    )
    Trainer(task_with(store, 0.4), config, tmp_path, World()).fit()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    valid = [record for record in records if "keys_outside" in record]
    assert [record["update"] for record in valid] == [1, 2]
    assert all(0 <= record["tiles_outside"] <= record["keys_outside"] < 1 for record in valid)
