"""Dropout in the kernels: a mask from a counter, the same one backward, from torch's generator."""

import numpy as np
import pytest
import torch

from diffwindow import functional, ops
from diffwindow.kernels import toolchain
from samples.configurations import Configuration, call, tensors

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="no C++ compiler")
KINDS = pytest.mark.parametrize("additive", [False, True], ids=["multiplicative", "additive"])


def splitmix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def kept(seed: int, shape: tuple[int, int, int, int], p: float) -> torch.Tensor:
    """Rebuild the mask that the kernels draw from a seed."""
    *rows, keys = shape
    row = splitmix(np.uint64(seed) ^ splitmix(np.arange(np.prod(rows), dtype=np.uint64)))
    low, high = row.astype(np.uint32)[:, None], (row >> np.uint64(32)).astype(np.uint32)[:, None]
    random = mix(mix(low + np.arange(keys, dtype=np.uint32)) ^ high)
    return torch.from_numpy(random >= np.uint32(p * 2**32)).view(shape)


@KINDS
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_output_and_gradients_given_the_mask(additive, p, monkeypatch):
    config = Configuration(additive=additive, queries=37, keys=70, causal=True)
    wide = [x.requires_grad_() for x in tensors(config)]
    torch.manual_seed(5)
    mask = kept(int(torch.randint(2**63 - 1, ())), (2, 2, 37, 70), p)

    def dropout(x, probability):
        return x * mask / (1 - probability)

    monkeypatch.setattr(functional.F, "dropout", dropout)
    expected = call(wide, impl="reference", is_causal=True, dropout_p=p)
    torch.manual_seed(5)
    narrow = [x.detach().float().requires_grad_() for x in wide]
    out = call(narrow, impl="cpu", is_causal=True, dropout_p=p)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(out, narrow, grad.float())
    for ours, true in zip(found, torch.autograd.grad(expected, wide, grad), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-5)


def weights(p: float) -> torch.Tensor:
    """Read the weights off the output: values are the unit vectors, and all scores are equal."""
    x = torch.zeros(4, 2, 64, 8)
    v = torch.eye(64).expand(4, 2, 64, 64)
    return ops.additive_window_attention(
        x, x, v, x, x, ops.Boundaries(x, x, x, x), dropout_p=p, impl="cpu"
    )  # fmt: skip


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
