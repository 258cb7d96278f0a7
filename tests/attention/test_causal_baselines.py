"""Forgetting and stick-breaking attention against their papers' equations, one pair at a time."""

import math

import pytest
import torch
from torch.testing import assert_close

from diffwindow.attention.baselines import (
    ForgettingAttention,
    StickBreakingAttention,
    forgetting_bias,
    stick_weights,
)
from diffwindow.attention.visibility import padded_visibility
from samples.by_hand import HEAD, HEADS, WIDTH, batch, mixed, real_keys, score, softmax

KINDS = [ForgettingAttention, StickBreakingAttention]


def randomised(kind):
    torch.manual_seed(0)
    attention = kind(WIDTH, HEADS).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return attention


def projected(attention, x):
    """Return queries, keys, (gates,) values as `[b][h][n]`, straight from the weights."""
    gates = [HEADS] if isinstance(attention, ForgettingAttention) else []
    blocks = (x @ attention.in_proj.weight.T + attention.in_proj.bias).split(
        [WIDTH, WIDTH, *gates, WIDTH], -1
    )
    return [block.unflatten(-1, (HEADS, -1)).transpose(1, 2) for block in blocks]


def by_hand(attention, x, weigh):
    """Mix values by `weigh(b, h, i)`, a dict from keys to weights, and project."""
    v = projected(attention, x)[-1]
    heads = [
        [
            [mixed(w, v[b, h]) if (w := weigh(b, h, i)) else v.new_zeros(HEAD) for h in range(HEADS)]
            for i in range(6)
        ]
        for b in range(3)
    ]
    stacked = torch.stack([torch.stack([torch.cat(row) for row in rows]) for rows in heads])
    return stacked @ attention.out_proj.weight.T + attention.out_proj.bias


def run(attention, x, mask):
    return attention.attend(*attention.project_self(x), padded_visibility(mask, is_causal=True))


def test_forgetting_adds_up_the_logarithms_of_the_gates_between():
    attention = randomised(ForgettingAttention)
    x, mask = batch()
    q, k, gate, _ = projected(attention, x)

    def weigh(b, h, i):
        logits = {}
        for j in real_keys(mask, b):
            if j > i:
                continue
            kept = 1.0
            for between in range(j + 1, i + 1):
                kept *= 1 / (1 + math.exp(-gate[b, h, between].item()))
            logits[j] = score(q[b, h, i], k[b, h, j]) + math.log(kept)
        return softmax(logits) if logits else {}

    assert_close(run(attention, x, mask)[mask], by_hand(attention, x, weigh)[mask])


def test_a_stick_is_broken_from_the_newest_key_back():
    attention = randomised(StickBreakingAttention)
    x, mask = batch()
    q, k, _ = projected(attention, x)

    def weigh(b, h, i):
        left, weights = 1.0, {}
        for j in reversed([j for j in real_keys(mask, b) if j < i]):
            part = 1 / (1 + math.exp(-score(q[b, h, i], k[b, h, j]).item()))
            weights[j] = left * part
            left *= 1 - part
        assert sum(weights.values()) <= 1
        return weights

    assert_close(run(attention, x, mask)[mask], by_hand(attention, x, weigh)[mask])


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_that_is_kept_gives_the_same(kind):
    attention = randomised(kind)
    x, _ = batch()
    queries, keys = attention.project_self(x)
    whole = attention.attend(queries, keys, padded_visibility(None, is_causal=True))
    for length in (1, 4, 6):
        last = attention.attend(queries[:, length - 1 : length], keys[:, :length])
        assert_close(last[:, 0], whole[:, length - 1])


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_the_weights_that_are_used(kind):
    attention = randomised(kind)
    x, mask = batch()
    visibility = padded_visibility(mask, is_causal=True)
    weights = attention.maps(*attention.project_self(x), visibility).weights
    v = projected(attention, x)[-1]
    mixed_heads = (weights @ v).transpose(1, 2).flatten(2)
    assert_close(run(attention, x, mask), mixed_heads @ attention.out_proj.weight.T + attention.out_proj.bias)
    assert not weights.triu(1).any()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_right_and_finite(kind):
    attention = randomised(kind)
    x, mask = batch()
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(attention, x, mask)[mask], (x,))


def test_long_texts_and_large_scores_stay_finite():
    scores = torch.tensor([[200.0, -200.0, 0.0, 200.0]], requires_grad=True)
    weights = stick_weights(scores, torch.ones(1, 4, dtype=torch.bool))
    assert_close(weights, torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    weights.sum().backward()
    assert scores.grad.isfinite().all()
    bias = forgetting_bias(torch.full((1, 1, 5000, 1), -30.0), 5000)
    assert bias.isfinite().all()
    assert (bias <= 0).all()
