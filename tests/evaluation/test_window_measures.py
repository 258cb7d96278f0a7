import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from diffwindow.data.corpora import recipe_of
from diffwindow.data.prepare import prepare
from diffwindow.evaluation.windows import (
    EXAMPLES,
    OutsideCounts,
    as_table,
    count_outside,
    gold_windows,
    inside,
    outside_shares,
    soft_overlap,
    window_statistics,
)
from diffwindow.functional import soft_window
from diffwindow.tasks.task import model_config, task_of
from diffwindow.training.config import TrainConfig
from diffwindow.training.distributed import World
from diffwindow.training.trainer import Trainer
from diffwindow.view.capture import capture
from diffwindow.view.trace import AttentionTrace, LayerMaps
from samples.traces import random_layer, small_trace

GOLD = gold_windows(np.array([2]), np.array([4]), 8)


def test_gold_windows_hold_both_ends():
    assert GOLD.nonzero()[1].tolist() == [2, 3, 4]


def test_overlap_of_the_gold_window_is_one_and_of_a_disjoint_one_zero():
    assert soft_overlap(GOLD.astype(float), GOLD) == [1.0]
    assert soft_overlap((~GOLD).astype(float), GOLD) == [0.0]
    # everything: 3 of 8; the paper's double count does not raise it
    assert soft_overlap(np.full((1, 8), 2.0), GOLD) == [3 / 8]


def test_a_soft_window_scores_by_its_mass():
    """Half inside and none outside: Σ min = 1.5, Σ max = 3."""
    assert soft_overlap(0.5 * GOLD, GOLD) == [0.5]
    assert soft_overlap(np.full((1, 8), 0.5), GOLD) == pytest.approx(1.5 / (3 + 2.5))


def test_attention_inside_needs_no_normalisation():
    weights = np.array([[0.0, 0.1, 0.1, 0.0, 0.1, 0.1, 0.0, 0.0]])
    assert inside(weights, GOLD) == pytest.approx(0.5)
    assert inside(np.zeros((1, 8)), GOLD) == [0.0]


def test_a_band_leaves_out_all_but_its_tiles():
    # 130 keys are three tiles; a window of one key per query touches the tiles of the diagonal
    counts = count_outside(torch.eye(130), torch.ones(130, 130, dtype=torch.bool), 1e-3)
    assert counts == (130 * 130, 130 * 129, 9, 6)
    assert counts.tiles_share == pytest.approx(2 / 3)
    assert counts.keys_share == pytest.approx(129 / 130)


def test_what_nobody_sees_does_not_count():
    causal = torch.ones(2, 130, 130, dtype=torch.bool).tril()
    counts = count_outside(torch.full((2, 130, 130), 0.5), causal, 0.1)
    # the six tiles on and below the diagonal, of two heads
    assert counts == (130 * 131, 0, 12, 0)
    assert count_outside(torch.full((2, 130, 130), 0.05), causal, 0.1).tiles_share == 1.0


def test_one_key_keeps_a_tile():
    window = torch.zeros(64, 128)
    window[63, 64] = 0.1
    counts = count_outside(window, torch.ones(64, 128, dtype=torch.bool), 0.1)
    assert (counts.tiles, counts.tiles_outside) == (2, 1)


def test_nothing_has_no_share():
    counts = count_outside(torch.zeros(2, 0, 5), torch.ones(2, 0, 5, dtype=torch.bool), 0.1)
    assert counts == OutsideCounts()
    assert (counts.keys_share, counts.tiles_share) == (0.0, 0.0)


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
        with torch.no_grad(), capture(model) as trace:
            model(tokens)
        window = trace["Enc", 1].window
        pairs, outside = pairs + window.size, outside + int((window == 0).sum())
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
    task = task_with(store, 0.4)
    Trainer(task, config, tmp_path, World(), save=lambda model, path: model.write_files(path)).fit()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    valid = [record for record in records if "keys_outside" in record]
    assert [record["update"] for record in valid] == [1, 2]
    assert all(0 <= record["tiles_outside"] <= record["keys_outside"] < 1 for record in valid)


def pointing(left, right, keys, *, role="Enc", weights=None):
    """Trace one head whose pointers of each query are at these keys."""
    one_hot = np.eye(keys, dtype=np.float32)
    phi_left, phi_right = one_hot[None, left], one_hot[None, right]
    weights = phi_left if weights is None else weights
    return AttentionTrace([LayerMaps(role, 1, "AW", "a", "b", weights, phi_left, phi_left, phi_right)])


def test_boundaries_count_from_the_query_in_order():
    # query 0 looks at keys 0-2, query 1 at 1-3, pointers crossed
    (row,) = window_statistics([pointing([0, 3], [2, 1], 4), pointing([0, 1, 2, 3], [0, 1, 2, 3], 4)])
    # the two queries of the first trace are the last two of its four keys
    assert row.queries == 6
    assert row.width == pytest.approx((3 + 3 + 4 * 1) / 6)
    assert row.start == pytest.approx(((0 - 2) + (1 - 3) + 0) / 6)
    assert row.end == pytest.approx(((2 - 2) + (3 - 3) + 0) / 6)
    assert row.width_deviation == pytest.approx(np.std([3, 3, 1, 1, 1, 1]))
    assert row.entropy == 0.0


def test_cross_attention_counts_from_the_diagonal():
    (row,) = window_statistics([pointing([0, 4], [0, 4], 5, role="Cr")])
    assert (row.start, row.end, row.width) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("segment_size", "origin"), [(1, 0), (3, 0), (3, 2)])
def test_the_width_is_the_sum_of_the_exact_window(segment_size, origin):
    layer = random_layer(heads=1, queries=7, keys=7)
    layer = replace(layer, segment_size=segment_size, segment_origin=origin)
    (row,) = window_statistics([AttentionTrace([layer])])
    phi = [torch.from_numpy(x).double()[None] for x in (layer.phi_left, layer.phi_right)]
    segments = {"segment_size": segment_size, "segment_origin": torch.tensor([origin])}
    window = soft_window(*phi, **segments, expectation="exact")
    assert row.width == pytest.approx(window.sum(-1).mean().item(), abs=1e-6)


def test_a_window_covers_the_whole_segments_of_its_boundaries():
    layer = replace(pointing([3], [3], 8).layers[0], segment_size=5)
    (row,) = window_statistics([AttentionTrace([layer])])
    # the query is the last of eight keys
    assert (row.start, row.end, row.width) == (0 - 7, 4 - 7, 5)


def test_a_segment_of_a_causal_window_ends_at_the_query():
    layer = replace(pointing([0, 3, 3, 5], [2, 3, 4, 6], 7, role="Dec").layers[0], segment_size=3)
    (row,) = window_statistics([AttentionTrace([layer])])
    # queries at 3 to 6: keys 0-2, 3-4, 3-5 and 3-6
    assert row.width == (3 + 2 + 3 + 4) / 4
    assert row.end == (-1 + 0 + 0 + 0) / 4


def test_queries_that_see_nothing_do_not_count():
    trace = pointing([0, 1], [0, 1], 2)
    for array in (trace.layers[0].phi_left, trace.layers[0].phi_right):
        array[0, 0] = 0.0
    (row,) = window_statistics([trace])
    assert (row.queries, row.width) == (1, 1.0)


def test_entropy_is_in_bits():
    (row,) = window_statistics([pointing([0, 1], [0, 1], 2, weights=np.full((1, 2, 2), 0.25, np.float32))])
    assert row.entropy == pytest.approx(1.0)


def test_a_model_without_windows_has_no_statistics():
    plain = AttentionTrace([LayerMaps("Enc", 1, "Global", "a", "a", np.ones((1, 1, 1), np.float32))])
    with pytest.raises(ValueError, match="no attention has a window"):
        window_statistics([plain])


def test_the_table_has_a_line_per_head():
    rows = window_statistics([small_trace()])
    assert len(as_table(rows)) == 1 + 4
    assert as_table(rows)[0].split() == [
        "role", "layer", "head", "width", "±", "start", "end", "entropy", "queries",
    ]  # fmt: skip


def test_the_share_outside_a_tolerance():
    trace = pointing([0, 3], [2, 1], 4)
    # 2 queries of 4 keys; the window of this trace is that of the left pointer alone
    (row,) = window_statistics([trace, trace], tolerance=0.5)
    assert row.keys_outside == pytest.approx(6 / 8)
    assert row.tiles_outside == 0.0
    lines = as_table([row])
    assert lines[0].endswith("keys outside  tiles outside")
    assert lines[1].endswith("0.750          0.000")
    (row,) = window_statistics([trace])
    assert (row.keys_outside, row.tiles_outside) == (None, None)


def test_a_decoder_does_not_count_what_it_cannot_see():
    (row,) = window_statistics([pointing([0, 0, 0], [0, 1, 2], 3, role="Dec")], tolerance=0.5)
    # key 0 of each query, of 1 + 2 + 3 keys seen
    assert row.keys_outside == pytest.approx(3 / 6)
