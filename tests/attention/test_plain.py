"""Plain attention in training on a CPU, which runs in our kernels, against PyTorch's."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from diffwindow import functional
from diffwindow.attention.plain import plain_attention
from diffwindow.attention.visibility import EVERYTHING, Visibility

PADDING = torch.arange(9) < torch.tensor([9, 4, 1]).view(3, 1, 1, 1)
NEAR = (torch.arange(9) - torch.arange(9)[:, None]).abs() <= 2
CALLS = {
    "everything": (EVERYTHING, None),
    "causal": (Visibility(is_causal=True), None),
    "padding": (Visibility(PADDING), None),
    "padding, causal": (Visibility(PADDING, is_causal=True), None),
    "bias": (Visibility(PADDING, attn_bias=torch.randn(2, 9, 9)), None),
    "a kind's bias": (Visibility(PADDING), torch.randn(2, 9, 9)),
    "a kind's mask": (Visibility(PADDING, is_causal=True), NEAR),
    "two biases": (Visibility(attn_bias=torch.randn(9)), torch.randn(2, 9, 9)),
}


def leaves():
    torch.manual_seed(0)
    return [torch.randn(3, 2, 9, 8, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", CALLS)
def test_training_gives_what_inference_does(name):
    visibility, bias = CALLS[name]
    q, k, v = leaves()
    out = plain_attention(q, k, v, visibility, bias, scale=0.4)
    with torch.no_grad():
        assert_close(out, plain_attention(q, k, v, visibility, bias, scale=0.4))


@pytest.mark.parametrize("kernels", [True, False])
def test_dropout_is_the_same_with_and_without_kernels(kernels, monkeypatch):
    if not kernels:
        monkeypatch.setenv("DIFFWINDOW_KERNELS", "off")
    q, k, v = leaves()
    torch.manual_seed(3)
    out = plain_attention(q, k, v, Visibility(PADDING), dropout_p=0.4)
    torch.manual_seed(3)
    weights = functional.masked_softmax(functional.scores(q, k), PADDING)
    expected = functional.attend(functional.dropout(weights, 0.4), v)
    assert_close(out, expected)
    assert_close(torch.autograd.grad(out.sum(), q), torch.autograd.grad(expected.sum(), q))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_repeats_the_dropout(use_reentrant):
    def attend(q, k, v):
        return plain_attention(q, k, v, Visibility(is_causal=True), dropout_p=0.4)

    results = []
    for run in (attend, partial(checkpoint, attend, use_reentrant=use_reentrant)):
        inputs = leaves()
        run(*inputs).square().sum().backward()
        results.append([x.grad for x in inputs])
    assert_close(*results)


def test_second_derivatives():
    results = []
    for attend in (lambda *xs: plain_attention(*xs, EVERYTHING), reference):
        inputs = leaves()
        first = torch.autograd.grad(attend(*inputs).square().sum(), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum(x.square().sum() for x in first), inputs))
    assert_close(*results)


def reference(q, k, v):
    return functional.attend(functional.scores(q, k).softmax(-1), v)


def test_a_bias_with_gradients_and_float64_stay_in_torch():
    q, k, v = leaves()
    bias = torch.randn(2, 9, 9, requires_grad=True)
    out = plain_attention(q, k, v, EVERYTHING, bias)
    assert_close(out, F.scaled_dot_product_attention(q, k, v, bias))
    assert torch.autograd.grad(out.sum(), bias)[0].isfinite().all()
    wide = [x.double() for x in (q, k, v)]
    assert plain_attention(*wide, EVERYTHING).dtype == torch.float64
