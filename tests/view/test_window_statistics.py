from dataclasses import replace

import numpy as np
import pytest
import torch
from traces import random_layer, small_trace

from diffwindow.functional import soft_window
from diffwindow.view.trace import AttentionTrace, LayerMaps
from diffwindow.view.window_statistics import as_table, window_statistics


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
