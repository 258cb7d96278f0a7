"""Dropout: one mask in kernels and reference, forward and backward, seeded by torch's generator."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from diffwindow import WindowAttention, ops
from samples.configurations import Configuration
from samples.dropout import check_dropout
from samples.kernel_marks import BOTH_KINDS, NEEDS_COMPILER

pytestmark = NEEDS_COMPILER


@BOTH_KINDS
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_output_and_gradients_under_dropout(additive, p):
    check_dropout(Configuration(additive=additive, queries=37, keys=70), p, "cpu")


def weights(p: float) -> torch.Tensor:
    """Read the weights off the output: values are the unit vectors, and all scores are equal."""
    x = torch.zeros(4, 2, 64, 8)
    v = torch.eye(64).expand(4, 2, 64, 64)
    return ops.window_attention(x, x, v, ops.Boundaries(x, x, x, x), (x, x), dropout_p=p, impl="cpu")


def test_rate_and_independence():
    torch.manual_seed(0)
    p = 0.3
    drop = (weights(p) == 0).double() - p
    count, deviation = drop.numel(), (p * (1 - p)) ** 0.5
    assert abs(drop.mean()) < 4 * deviation / count**0.5
    # Neighbours along every axis are uncorrelated.
    for axis in range(4):
        product = drop * drop.roll(1, axis)
        assert abs(product.mean()) < 4 * p * (1 - p) / count**0.5
    assert weights(p).mean().item() == pytest.approx(1 / 64, rel=0.02)


def test_the_seed_is_torchs():
    torch.manual_seed(3)
    first, second = weights(0.5), weights(0.5)
    torch.manual_seed(3)
    assert torch.equal(weights(0.5), first)
    assert not torch.equal(first, second)


def test_everything_dropped_is_zero():
    assert not weights(1.0).any()


@pytest.mark.parametrize("relative_size", [None, 4])
def test_checkpointing_repeats_the_dropout_of_its_forward(relative_size):
    """Without gradients forward runs in the kernel; a bias that learns is repeated in the reference."""
    torch.manual_seed(0)
    attention = WindowAttention(16, 2, dropout=0.5, relative_size=relative_size)
    bias = torch.nn.Parameter(torch.randn(6, 6)) if relative_size is None else None
    learned = [*attention.parameters(), *([] if bias is None else [bias])]
    x = torch.randn(2, 6, 16, requires_grad=True)

    def run(x):
        return attention(x, x, x, attn_mask=bias, need_weights=False)[0]

    def output_and_gradients(run):
        torch.manual_seed(1)
        for parameter in learned:
            parameter.grad = None
        out = run(x)
        out.square().sum().backward()
        return [out, *(parameter.grad for parameter in learned)]

    plain = output_and_gradients(run)
    torch.testing.assert_close(output_and_gradients(lambda x: checkpoint(run, x, use_reentrant=True)), plain)
