"""Small traces to draw: made by hand, or captured from models with random weights."""

from dataclasses import replace

import numpy as np
import torch

from diffwindow.checks import WINDOW_RULES
from diffwindow.functional import soft_window
from diffwindow.soft_window import apply_rule, compose_window
from diffwindow.view.trace import AttentionTrace, GoldSpan, LayerMaps

WORDS = ["the", "keys", "to", "the", "cab@@", "inet"]


def random_layer(
    role="Enc",
    layer=1,
    *,
    heads=2,
    queries=6,
    keys=6,
    sides=("text", "text"),
    seed=0,
    segment_size=1,
    window_tolerance=0.0,
    sinks=0,
):
    """Make an additive window's maps from random pointers and weights, in float32."""
    rng = np.random.default_rng([seed, layer])

    def softmax(sharpness):
        x = np.exp(sharpness * rng.standard_normal((heads, queries, keys)))
        return torch.from_numpy((x / x.sum(-1, keepdims=True)).astype(np.float32))

    left, right = softmax(2.0), softmax(2.0)
    options = {"segment_size": segment_size, "window_tolerance": window_tolerance, "sinks": sinks}
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if role == "Dec" else None
    window = soft_window(left, right, **options, mask=visible)
    maps = [x.numpy() for x in (softmax(2.0), window, left, right)]
    return LayerMaps(role, layer, "AW", *sides, *maps, **options)


def small_trace(*, layers=2, label="Enc(AW)", title="the keys to the cabinet", seed=0):
    """Trace six tokens, two of which are one word, through two layers of two heads, with a gold span."""
    maps = [random_layer(layer=number, seed=seed) for number in range(1, layers + 1)]
    return AttentionTrace(maps, {"text": WORDS}, label=label, title=title, gold=GoldSpan("Enc", 5, 0, 2))


def ruled_traces(trace):
    """Return a trace by rule for windows at test time, with the windows of the rule."""
    traces = {}
    for rule in WINDOW_RULES[1:]:
        layers = []
        for maps in trace.layers:
            soft = compose_window(torch.from_numpy(maps.phi_left), torch.from_numpy(maps.phi_right))
            window = apply_rule(soft, rule).values.numpy()
            layers.append(replace(maps, window=window, window_rule=rule, weights=maps.weights * window))
        traces[rule] = replace(trace, layers=layers)
    return traces
