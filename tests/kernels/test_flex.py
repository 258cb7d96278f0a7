"""Interval attention by torch's flex_attention, run without a GPU: its outputs against the reference."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow.kernels import flex
from diffwindow.kernels.interval import Call
from diffwindow.ops import interval_attention
from samples.intervals import IntervalCase, arguments

CASES = {
    "plain": {},
    "causal with sinks": {"causal": True, "sinks": 4, "window": "spans"},
    "sinks from an origin, left padding": {"sinks": 3, "origin": True, "mask": "left padding"},
    "groups of three": {"kv_heads": 3, "shared": 3, "window": "spans", "queries": 257, "keys": 257},
    "one query": {"queries": 1, "scale": 0.3},
    "a mask of its own per query": {"mask": "per query"},
    "a bias that hides": {"bias": "hides"},
    "rows that see nothing": {"mask": "hides all"},
    "broadcast windows": {"window": "broadcast"},
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_outputs_are_those_of_the_reference(name):
    tensors, bounds, options, _ = arguments(IntervalCase(**CASES[name]))
    call = Call(*tensors, None, None, *bounds, seed=None, **options)
    assert_close(flex.attend(call), interval_attention(*tensors, *bounds, impl="reference", **options))
