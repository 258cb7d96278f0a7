"""The fused CPU kernels against the float64 oracle, and what they promise besides."""

import math
import os

import pytest
import torch

from diffwindow import ops
from diffwindow.kernels import operator, registration
from samples.configurations import (
    BIASES,
    LAYOUTS,
    LENGTHS,
    MASKS,
    Configuration,
    as_views,
    call,
    check,
    check_unseen,
    draw,
    leaves,
    options,
    output_and_gradients,
    tensors,
)
from samples.kernel_marks import BOTH_KINDS, NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "exact": {"expectation": "exact"},
    "segments": {"segment_size": 5},
    "exact segments": {"segment_size": 5, "expectation": "exact"},
    "segments from an origin": {"segment_size": 5, "origin": True, "causal": True},
    "segments longer than a tile": {"segment_size": 70, "origin": True},
    "scale": {"scale": 0.7},
    "views": {"stacked": True},
    "bf16": {"dtype": torch.bfloat16},
    "bf16 views": {"dtype": torch.bfloat16, "stacked": True, "causal": True},
    "widths": {"widths": (7, 64, 20, 7, 40)},
    # products of five to seven panels, which are multiplied four, two and one at a time
    "wide heads": {"widths": (112, 80, 80, 112, 96)},
    "wide scores": {"spread": 3.0},
    **{f"mask {mask}": {"mask": mask} for mask in MASKS[1:]},
    **{f"layout {layout}": {"layouts": (layout,) * 9, "grad_layout": layout} for layout in LAYOUTS[1:]},
    **{f"bias {bias}": {"bias": bias} for bias in BIASES[1:]},
    "bias, causal, mask and segments": {
        "bias": "hides",
        "causal": True,
        "mask": "padding",
        "segment_size": 5,
    },
    "bias in bf16": {"bias": "per head", "dtype": torch.bfloat16},
    # more of these would make all rows alike, whose roundings add up instead of cancelling
    "layout one row": {
        "layouts": ("rows",) * 3 + ("one row",) + ("rows",) * 2 + ("one row",) + ("rows",) * 2
    },
    "sinks": {"sinks": 4, "causal": True},
    "more sinks than a tile": {"sinks": 70, "mask": "padding"},
    "sinks within segments from an origin": {"sinks": 7, "segment_size": 5, "origin": True},
    "causal and mask": {"causal": True, "mask": "per head", "segment_size": 3},
}


# `test_random_configurations` draws options and lengths together
@BOTH_KINDS
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option(additive, variant):
    # two tiles of 64 and a part of one
    check(Configuration(additive=additive, queries=65, keys=130, batch=1, **VARIANTS[variant]))


@BOTH_KINDS
def test_odd_lengths(additive):
    for length in LENGTHS:
        for queries in {1, length, 257}:
            check(Configuration(additive=additive, queries=queries, keys=length, batch=1, causal=True))


@pytest.mark.parametrize("start", range(0, 100, 25))
def test_random_configurations(start):
    for seed in range(start, start + 25):
        check(draw(seed))


@pytest.mark.slow
def test_many_random_configurations():
    first = int.from_bytes(os.urandom(3), "big")
    print(f"seeds {first} to {first + 1999}")
    for seed in range(first, first + 2000):
        check(draw(seed))


@BOTH_KINDS
def test_the_number_of_threads_changes_no_bit(additive):
    shapes = ((1, 3, 65, "none"), (1, 1, 257, "per query"), (5, 3, 40, "per head"), (7, 3, 20, "shared"))
    for batch, heads, length, bias in shapes:
        config = Configuration(
            additive=additive, batch=batch, heads=heads, queries=length, keys=length, bias=bias
        )
        results = []
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            try:
                results.append(output_and_gradients(config, "cpu", torch.float32, of_bias=True))
            finally:
                torch.set_num_threads(1)
        for result in results[1:]:
            assert all(map(torch.equal, results[0], result))


@BOTH_KINDS
def test_results_are_written_in_full(additive, monkeypatch):
    # Memory comes filled with NaN: what a kernel forgets to write shows.
    config = Configuration(additive=additive, mask="padding", queries=33, keys=70, widths=(20, 8, 8, 20, 12))
    expected = output_and_gradients(config, "cpu", torch.float32)
    outputs, grads = operator.empty_outputs, registration.empty_grads
    poison = lambda xs: type(xs)(x.fill_(math.nan) for x in xs)  # noqa: E731
    monkeypatch.setattr(operator, "empty_outputs", lambda call: poison(outputs(call)))
    monkeypatch.setattr(registration, "empty_grads", lambda call, **how: poison(grads(call, **how)))
    found = output_and_gradients(config, "cpu", torch.float32)
    assert all(map(torch.equal, expected, found))


@BOTH_KINDS
def test_a_row_that_sees_nothing_is_zero_with_zero_gradients(additive):
    inputs = [x.float().requires_grad_() for x in tensors(Configuration(additive=additive))]
    mask = torch.ones(31, 65, dtype=torch.bool)
    mask[4] = False
    out = call(inputs, impl="cpu", attn_mask=mask)
    assert not out[:, :, 4].any()
    assert out.isfinite().all()
    grads = torch.autograd.grad(out[:, :, 4].sum(), inputs)
    assert not any(grad.any() for grad in grads)


@BOTH_KINDS
def test_nan_is_not_swallowed(additive):
    for place in range(9 if additive else 7):
        inputs = [x.float() for x in tensors(Configuration(additive=additive))]
        inputs[place][0, 0, 3, 0] = math.nan
        assert call(inputs, impl="cpu").isnan().any(), place


@BOTH_KINDS
@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("mask_kind", ["padding", "per query", "bias"])
def test_what_nobody_sees_may_be_nan(additive, impl, mask_kind):
    for hidden in (slice(50, 65), slice(0, 7), slice(20, 30)):
        check_unseen(Configuration(additive=additive, seed=3), hidden, mask_kind, impl)
    bf16 = Configuration(additive=additive, seed=3, dtype=torch.bfloat16)
    check_unseen(bf16, slice(50, 65), mask_kind, impl)


def test_projected_views_are_not_copied(monkeypatch):
    config = Configuration()
    views = as_views([x.float() for x in tensors(config)])
    assert not any(x.is_contiguous() for x in views)
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    monkeypatch.setattr(torch.Tensor, "clone", None)
    call(views, impl="cpu", attn_mask=torch.ones(2, 1, 1, 65, dtype=torch.bool))


def test_float64_goes_to_the_reference_and_an_explicit_request_fails():
    inputs = tensors(Configuration())
    assert call(inputs, impl="auto").dtype == torch.float64
    with pytest.raises(ValueError, match=r"impl=.cpu. is not available: .*float64"):
        call(inputs, impl="cpu")


def derivatives(config, impl, order):
    """Differentiate the squared output again and again, each time in the direction of the inputs."""
    inputs = leaves(config, torch.float32)
    torch.manual_seed(0)
    value = call(inputs, impl=impl, dropout_p=0.3, **options(config)).square().sum()
    found = []
    for _ in range(order):
        grads = torch.autograd.grad(value, inputs, create_graph=True)
        found += grads
        value = sum((grad * x.detach()).sum() for grad, x in zip(grads, inputs, strict=True))
    return found


@BOTH_KINDS
def test_higher_derivatives_are_those_of_the_reference(additive):
    config = Configuration(additive=additive, queries=4, keys=5, segment_size=2, mask="padding", causal=True)
    for ours, true in zip(derivatives(config, "cpu", 3), derivatives(config, "reference", 3), strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-3, atol=1e-3)


@BOTH_KINDS
def test_denormal_numbers_are_zero_in_the_kernels_alone(additive):
    # scores spread so far that some pointers are below the normal numbers
    check(Configuration(additive=additive, queries=40, keys=200, spread=4.0))
    assert torch.full((8,), 1e-40).mul(0.5).gt(0).all()


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "widths", "value width"])
def test_empty_dimensions(empty, impl):
    """No key gives zeros; no width scores every pair 0, a uniform attention."""
    sizes = {"widths": {"widths": (0, 0, 0, 0, 16)}, "value width": {"widths": (16, 16, 16, 16, 0)}}
    config = Configuration(**sizes.get(empty, {empty: 0}), mask="none", segment_size=2)
    inputs = leaves(config, torch.float32)
    mask = torch.ones(config.batch, 1, config.queries, config.keys, dtype=torch.bool)
    out = call(inputs, impl=impl, attn_mask=mask, segment_size=2)
    assert out.shape == (config.batch, config.heads, config.queries, config.widths[-1])
    grads = torch.autograd.grad(out.sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    if empty == "keys":
        assert not out.any()
    if empty == "widths":
        torch.testing.assert_close(out, inputs[2].mean(2, keepdim=True).expand_as(out))


@NEEDS_COMPILER
@pytest.mark.parametrize("heads", [(0, 2), (2, 0)])
@pytest.mark.parametrize("shape", [(), (8,), (7, 8), (1, 1, 7, 8)])
def test_a_bias_that_broadcasts_over_no_heads_has_zero_gradients(heads, shape):
    q, k = torch.randn(*heads, 7, 4), torch.randn(*heads, 8, 4)
    bias = torch.randn(shape, requires_grad=True)
    out = ops.window_attention(q, k, k, ops.Boundaries(q, k, q, k), attn_bias=bias, impl="cpu")
    out.sum().backward()
    assert bias.grad.eq(0).all()
