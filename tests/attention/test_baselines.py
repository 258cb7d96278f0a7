"""Each baseline against its paper's equations, one pair of query and key at a time."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

from diffwindow.attention.baselines import RAMP, RelativeAttention, mean_span
from diffwindow.attention.kinds import Attention, build_attention
from samples.by_hand import HEADS, WIDTH, attend, batch, by_hand, mixed, real_keys, score, softmax


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def randomised(kind, size=None, dropout=0.0):
    attention = build_attention(Attention(kind, size), WIDTH, HEADS, dropout=dropout).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return attention


def check_self_attention(attention, row, *, causal):
    """Compare on padded batches; only real queries count, for the others have no place in a sequence."""
    x, mask = batch()

    def visible_row(h, i, q, k, v, b):
        seen = [j for j in real_keys(mask, b) if not causal or j <= i]
        return row(h, i, q, k, v, seen) if seen else torch.zeros_like(q)

    expected = by_hand(attention, x, x, visible_row)
    actual = attend(attention, x, x, mask, is_causal=causal)
    assert_close(actual[mask], expected[mask])


both_directions = pytest.mark.parametrize("causal", [False, True])


@both_directions
def test_global(causal):
    def row(h, i, q, k, v, seen):
        return mixed(softmax({j: score(q, k[j]) for j in seen}), v)

    check_self_attention(randomised("Global"), row, causal=causal)


@both_directions
def test_shaw_adds_a_clipped_distance_to_keys_and_values(causal):
    attention = randomised("Rel", size=2)

    def clipped(i, j):
        return max(-2, min(2, j - i)) + 2

    def row(h, i, q, k, v, seen):
        keys = {j: k[j] + attention.key_table[clipped(i, j)] for j in seen}
        values = {j: v[j] + attention.value_table[clipped(i, j)] for j in seen}
        return mixed(softmax({j: score(q, keys[j]) for j in seen}), values)

    check_self_attention(attention, row, causal=causal)


def test_shaws_tables_are_shared_over_heads():
    tables = RelativeAttention(64, 8, size=16)
    assert tables.key_table.shape == tables.value_table.shape == (33, 8)


@both_directions
def test_band_sees_keys_at_most_so_far_away(causal):
    def row(h, i, q, k, v, seen):
        return mixed(softmax({j: score(q, k[j]) for j in seen if abs(i - j) <= 2}), v)

    check_self_attention(randomised("Band", size=2), row, causal=causal)


@both_directions
def test_bell_subtracts_a_squared_distance(causal):
    attention = randomised("Bell")

    def row(h, i, q, k, v, seen):
        bell = {j: (i - j) ** 2 / (2 * attention.deviation[h] ** 2) for j in seen}
        return mixed(softmax({j: score(q, k[j]) - bell[j] for j in seen}), v)

    check_self_attention(attention, row, causal=causal)


def test_bell_starts_with_the_deviation_that_its_size_names():
    assert build_attention(Attention("Bell", 7), 8, 2).deviation.tolist() == [7.0, 7.0]


@both_directions
def test_span_ramps_down_at_its_end(causal):
    attention = randomised("Span", size=4)
    # A long sequence, so that the ramp of 32 keys ends within it.
    x = torch.randn(1, 45, WIDTH, dtype=torch.float64)
    mask = torch.ones(1, 45, dtype=torch.bool)

    def row(h, i, q, k, v, b):
        z = 4 * torch.sigmoid(attention.span_logit[h])
        seen = [j for j in range(45) if not causal or j <= i]
        soft = {j: ((RAMP + z - abs(i - j)) / RAMP).clamp(0, 1) for j in seen}
        mass = {j: soft[j] * torch.exp(score(q, k[j])) for j in seen}
        total = sum(mass.values())
        return mixed({j: weight / total for j, weight in mass.items()}, v)

    expected = by_hand(attention, x, x, row)
    assert_close(attend(attention, x, x, mask, is_causal=causal), expected)


def test_the_mean_span_is_over_heads_and_summed_over_layers():
    layers = torch.nn.ModuleList(randomised("Span", size=size) for size in (4, 64))
    with torch.no_grad():
        for layer in layers:
            # sigmoid(0) = 1/2 and sigmoid(log 3) = 3/4, again and again
            layer.span_logit.copy_(torch.tensor([0.0, math.log(3.0)]).repeat(HEADS // 2))
    # 4 (1/2 + 3/4)/2 + 64 (1/2 + 3/4)/2
    assert mean_span(layers).item() == pytest.approx(2.5 + 40.0)
    assert mean_span(copy.deepcopy(layers)) == mean_span(layers)
    assert mean_span(torch.nn.Linear(2, 2)) is None


def test_span_learns_from_its_ramp():
    attention = randomised("Span", size=64)
    x = torch.randn(1, 90, WIDTH, dtype=torch.float64)
    attend(attention, x, x, torch.ones(1, 90, dtype=torch.bool)).square().sum().backward()
    gradient = attention.span_logit.grad
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


def fraction(pointer, index, queries):
    """sigmoid(u tanh(W q)) of one query, where u is a row of the pointer's output."""
    return torch.sigmoid(pointer.output.weight[index] @ torch.tanh(pointer.hidden.weight @ queries))


def whole_queries(attention, x):
    return x @ attention.in_proj.weight[:WIDTH].T + attention.in_proj.bias[:WIDTH]


def test_yang_biases_towards_a_predicted_centre():
    attention = randomised("Loc")
    x, mask = batch()
    queries = whole_queries(attention, x)

    def row(h, i, q, k, v, b):
        real = real_keys(mask, b)
        centre = len(real) * fraction(attention.pointer, h, queries[b, i])
        deviation = len(real) * fraction(attention.pointer, HEADS + h, queries[b, i]) / 2
        logits = {
            j: score(q, k[j]) - (place - centre) ** 2 / (2 * deviation**2) for place, j in enumerate(real)
        }
        return mixed(softmax(logits), v)

    expected = by_hand(attention, x, x, row)
    assert_close(attend(attention, x, x, mask)[mask], expected[mask])


def test_luong_aligns_in_a_window_under_a_gaussian():
    size = 2
    attention = randomised("Gauss", size=size)
    source, mask = batch(length=9)
    target = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    queries = whole_queries(attention, target)

    def row(h, i, q, k, v, b):
        real = real_keys(mask, b)
        centre = len(real) * fraction(attention.pointer, h, queries[b, i])
        near = {j: place - centre for place, j in enumerate(real) if abs(place - centre) <= size}
        align = softmax({j: score(q, k[j]) for j in near})
        return mixed({j: align[j] * torch.exp(-(near[j] ** 2) / (2 * (size / 2) ** 2)) for j in near}, v)

    assert_close(attend(attention, target, source, mask), by_hand(attention, target, source, row))


def test_luong_finds_a_key_wherever_it_points():
    attention = randomised("Gauss", size=1)
    torch.nn.init.normal_(attention.pointer.output.weight, std=50.0)
    source = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    target = torch.randn(1, 200, WIDTH, dtype=torch.float64)
    weights = attention.maps(attention.project_queries(target), attention.project_keys(source)).weights
    assert (weights.sum(-1) > 0).all()


@pytest.mark.parametrize("kind", ["Rel", "Gauss", "Band", "Global"])
def test_maps_are_without_dropout(kind):
    attention = randomised(kind, dropout=0.5)
    x, _ = batch()
    projected = attention.project_self(x)
    assert_close(attention.maps(*projected).weights, attention.eval().maps(*projected).weights)
    attention.train()
    assert not torch.equal(attention.attend(*projected), attention.attend(*projected))


def test_yangs_gradients_are_finite_beside_a_sequence_of_padding():
    attention = randomised("Loc")
    x, mask = batch()
    mask = mask.clone()
    mask[0] = False
    attend(attention, x, x, mask).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
