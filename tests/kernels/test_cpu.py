"""The fused CPU kernels against the float64 oracle, and what they promise besides."""

import math
import os

import pytest
import torch
from configuration import (
    LENGTHS,
    MASKS,
    Configuration,
    as_views,
    attention_mask,
    call,
    check,
    draw,
    options,
    output_and_gradients,
    tensors,
)

from diffwindow.kernels import build, cpu

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")

KINDS = pytest.mark.parametrize("additive", [False, True], ids=["multiplicative", "additive"])
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
    "wide scores": {"spread": 3.0},
    **{f"mask {mask}": {"mask": mask} for mask in MASKS[1:]},
    "causal and mask": {"causal": True, "mask": "per head", "segment_size": 3},
}


@KINDS
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_option_at_odd_lengths(additive, variant, length):
    queries = LENGTHS[-1 - LENGTHS.index(length)] if length in (2, 31, 65) else length
    check(Configuration(additive=additive, queries=queries, keys=length, batch=1, **VARIANTS[variant]))


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_random_configurations(start):
    for seed in range(start, start + 25):
        check(draw(seed))


@pytest.mark.slow
def test_many_random_configurations():
    first = int.from_bytes(os.urandom(3), "big")
    print(f"seeds {first} to {first + 1999}")
    for seed in range(first, first + 2000):
        check(draw(seed))


@KINDS
def test_the_number_of_threads_changes_no_bit(additive):
    for heads, length in ((3, 65), (1, 257)):
        config = Configuration(additive=additive, batch=1, heads=heads, queries=length, keys=length)
        results = []
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            try:
                results.append(output_and_gradients(config, "cpu", torch.float32))
            finally:
                torch.set_num_threads(1)
        for result in results[1:]:
            assert all(map(torch.equal, results[0], result))


@KINDS
def test_results_are_written_in_full(additive, monkeypatch):
    # Memory comes filled with NaN: what a kernel forgets to write shows.
    config = Configuration(additive=additive, mask="padding", queries=33, keys=70, widths=(20, 8, 8, 20, 12))
    expected = output_and_gradients(config, "cpu", torch.float32)
    outputs, grads = cpu._empty_outputs, cpu._empty_grads
    poison = lambda xs: type(xs)(x.fill_(math.nan) for x in xs)  # noqa: E731
    monkeypatch.setattr(cpu, "_empty_outputs", lambda q, v: poison(outputs(q, v)))
    monkeypatch.setattr(cpu, "_empty_grads", lambda inputs: poison(grads(inputs)))
    found = output_and_gradients(config, "cpu", torch.float32)
    assert all(map(torch.equal, expected, found))


@KINDS
def test_a_row_that_sees_nothing_is_zero_with_zero_gradients(additive):
    inputs = [x.float().requires_grad_() for x in tensors(Configuration(additive=additive))]
    mask = torch.ones(31, 65, dtype=torch.bool)
    mask[4] = False
    out = call(inputs, impl="cpu", attn_mask=mask)
    assert not out[:, :, 4].any()
    assert out.isfinite().all()
    grads = torch.autograd.grad(out[:, :, 4].sum(), inputs)
    assert not any(grad.any() for grad in grads)


@KINDS
def test_nan_is_not_swallowed(additive):
    for place in range(9 if additive else 7):
        inputs = [x.float() for x in tensors(Configuration(additive=additive))]
        inputs[place][0, 0, 3, 0] = math.nan
        assert call(inputs, impl="cpu").isnan().any(), place


@KINDS
def test_hidden_keys_may_hold_nan(additive):
    config = Configuration(additive=additive, mask="padding")
    inputs, chosen = [x.float() for x in tensors(config)], options(config)
    expected = call(inputs, impl="cpu", **chosen)
    hidden = ~attention_mask(config)[:, 0, 0]
    for place in (1, 4, 6, 8)[: 4 if additive else 3]:
        inputs[place].transpose(1, 2)[hidden] = math.nan
    assert torch.equal(call(inputs, impl="cpu", **chosen), expected)


def test_projected_views_are_not_copied(monkeypatch):
    config = Configuration()
    views = as_views([x.float() for x in tensors(config)])
    assert not any(x.is_contiguous() for x in views)
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    monkeypatch.setattr(torch.Tensor, "clone", None)
    call(views, impl="cpu", attn_mask=torch.ones(2, 1, 1, 65, dtype=torch.bool))


def test_rows_that_are_not_contiguous_are_understood():
    inputs = [x.float() for x in tensors(Configuration())]
    turned = [x.mT.contiguous().mT for x in inputs]
    assert torch.equal(call(turned, impl="cpu"), call(inputs, impl="cpu"))


def test_float64_goes_to_the_reference_and_an_explicit_request_fails():
    inputs = tensors(Configuration())
    assert call(inputs, impl="auto").dtype == torch.float64
    with pytest.raises(ValueError, match=r"impl=.cpu. is not available: .*float64"):
        call(inputs, impl="cpu")


def test_second_derivatives_are_refused():
    inputs = [x.float().requires_grad_() for x in tensors(Configuration())]
    out = call(inputs, impl="cpu")
    (grad,) = torch.autograd.grad(out.sum(), inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match='impl="reference"'):
        grad.sum().backward()


def test_empty_lengths():
    for queries, keys in ((0, 5), (3, 0)):
        inputs = [x.float() for x in tensors(Configuration(queries=queries, keys=keys))]
        out = call(inputs, impl="cpu")
        assert out.shape == (2, 2, queries, 16)
        assert not out.any()
