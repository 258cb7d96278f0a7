"""The mask that the kernels draw for dropout, and a check of results under it."""

import numpy as np
import torch

from diffwindow import functional
from samples.configurations import call, leaves


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


def check_given_the_mask(config, p, impl, monkeypatch, **chosen):
    """Compare output and gradients with those of the reference under the mask that the kernels draw."""
    wide = leaves(config, torch.float64)
    torch.manual_seed(5)
    shape = (config.batch, config.heads, config.queries, config.keys)
    seed = int(torch.randint(2**63 - 1, (), device=config.device))
    mask = kept(seed, shape, p).to(config.device)

    def dropout(x, probability):
        return x * mask / (1 - probability)

    monkeypatch.setattr(functional.F, "dropout", dropout)
    expected = call(wide, impl="reference", is_causal=True, dropout_p=p, **chosen)
    torch.manual_seed(5)
    narrow = leaves(config, torch.float32)
    out = call(narrow, impl=impl, is_causal=True, dropout_p=p, **chosen)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(out, narrow, grad.float())
    for ours, true in zip(found, torch.autograd.grad(expected, wide, grad), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-5)
