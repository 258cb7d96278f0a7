"""A check of results under dropout, whose mask every implementation draws from the same seed."""

import torch

from samples.configurations import call, leaves


def check_dropout(config, p, impl, **chosen):
    """Compare output and gradients with those of the reference in float64 after the same manual seed."""
    wide, narrow = leaves(config, torch.float64), leaves(config, torch.float32)
    torch.manual_seed(5)
    expected = call(wide, impl="reference", is_causal=True, dropout_p=p, **chosen)
    torch.manual_seed(5)
    out = call(narrow, impl=impl, is_causal=True, dropout_p=p, **chosen)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(expected)
    found = torch.autograd.grad(out, narrow, grad.float())
    for ours, true in zip(found, torch.autograd.grad(expected, wide, grad), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-5)
