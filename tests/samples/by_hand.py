"""Attention one pair of query and key at a time, in plain Python: what the modules are compared with."""

import math

import torch

from diffwindow.attention.visibility import padded_visibility

WIDTH, HEADS = 8, 2
HEAD = WIDTH // HEADS


def batch(length=6):
    """Three sequences: whole, padded on the right, padded on the left; and which tokens are real."""
    x = torch.randn(3, length, WIDTH, dtype=torch.float64)
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1, -2:] = False
    mask[2, :2] = False
    return x, mask


def projected(attention, queries, keys):
    """The heads' queries, keys and values, `[b][h][n]` vectors, straight from the weights."""
    w, b = attention.in_proj.weight, attention.in_proj.bias
    blocks = zip((queries, keys, keys), w.split(WIDTH), b.split(WIDTH), strict=True)
    return [(x @ weight.T + bias).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for x, weight, bias in blocks]


def softmax(logits):
    """Of a dict from keys to logits."""
    largest = max(value.item() for value in logits.values())
    exponents = {key: torch.exp(value - largest) for key, value in logits.items()}
    total = sum(exponents.values())
    return {key: value / total for key, value in exponents.items()}


def by_hand(attention, queries, keys, row):
    """Run `row(head, i, q_i, k, v, b)`, one output vector, over all queries and heads, then project."""
    q, k, v = projected(attention, queries, keys)
    heads = torch.stack(
        [
            torch.stack(
                [
                    torch.stack([row(h, i, q[b, h, i], k[b, h], v[b, h], b) for h in range(HEADS)])
                    for i in range(queries.shape[1])
                ]
            )
            for b in range(queries.shape[0])
        ]
    )
    return heads.flatten(2) @ attention.out_proj.weight.T + attention.out_proj.bias


def mixed(weights, values):
    """The weighted sum of the values of a dict from keys to weights."""
    return sum(weight * values[j] for j, weight in weights.items())


def score(q, k):
    return q @ k / math.sqrt(HEAD)


def real_keys(mask, b):
    return [j for j in range(mask.shape[1]) if mask[b, j]]


def attend(attention, queries, keys, mask, *, is_causal=False):
    """Run the module's own way through its projected interface."""
    visibility = padded_visibility(mask, is_causal=is_causal)
    return attention.attend(attention.project_queries(queries), attention.project_keys(keys), visibility)
