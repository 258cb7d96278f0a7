"""Dropout and residuals of blocks: the kernels against `functional`, and the masks they share."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from diffwindow import functional
from diffwindow.kernels import residual as kernel
from diffwindow.models import residual
from samples.kernel_marks import NEEDS_COMPILER

RATES = pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])


def example(*shape: int, dtype=torch.float32, branch_dtype=None):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype)
    branch = (torch.randn(shape, generator=generator) + 0.5).to(branch_dtype or dtype)
    norm = nn.LayerNorm(shape[-1], dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(shape[-1], generator=generator))
        norm.bias.copy_(torch.randn(shape[-1], generator=generator))
    return x.requires_grad_(), branch.requires_grad_(), norm


def joined(x, branch, norm, rate):
    torch.manual_seed(3)
    return residual.join(x, branch, norm, rate, training=True)


def in_float64(x, branch, norm, rate):
    torch.manual_seed(3)
    seed = functional.draw_seed(x) if rate else None
    inputs = [each.detach().double().requires_grad_() for each in (x, branch, norm.weight, norm.bias)]
    return functional.join_residual(*inputs, eps=norm.eps, dropout_p=rate, seed=seed), inputs


@NEEDS_COMPILER
@RATES
@pytest.mark.parametrize("width", [1, 7, 16, 33, 128])
def test_output_and_gradients(rate, width):
    for lead in ((1,), (3, 5), (2, 100)):
        x, branch, norm = example(*lead, width)
        assert kernel.can_serve(x, branch, kernel.Norm(norm.weight, norm.bias, norm.eps))
        out = joined(x, branch, norm, rate)
        expected, inputs = in_float64(x, branch, norm, rate)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=2e-5)
        grad = torch.randn_like(out)
        found = torch.autograd.grad(out, (x, branch, norm.weight, norm.bias), grad)
        for ours, true in zip(found, torch.autograd.grad(expected, inputs, grad.double()), strict=True):
            # a width of one has no deviation to divide by
            size = 1 + true.abs().max().item() + (width == 1) * norm.eps**-0.5
            torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=2e-5 * size)


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_at_most_rounded(dtype):
    x, branch, norm = example(40, 48, dtype=dtype, branch_dtype=torch.bfloat16)
    assert kernel.can_serve(x, branch, kernel.Norm(norm.weight, norm.bias, norm.eps))
    out = joined(x, branch, norm, 0.3)
    expected, inputs = in_float64(x, branch, norm, 0.3)
    assert out.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
    torch.testing.assert_close(out.double(), expected, rtol=tolerance[dtype], atol=tolerance[dtype])
    grad = torch.randn_like(out)
    leaves = (x, branch, norm.weight, norm.bias)
    found = torch.autograd.grad(out, leaves, grad)
    for leaf, ours, true in zip(
        leaves, found, torch.autograd.grad(expected, inputs, grad.double()), strict=True
    ):
        assert ours.dtype == leaf.dtype
        close = tolerance[leaf.dtype]
        torch.testing.assert_close(ours.double(), true, rtol=close, atol=close * true.abs().max().item())


@NEEDS_COMPILER
def test_inputs_and_gradients_with_any_strides():
    x, branch, norm = example(6, 5, 24)
    expected = joined(x, branch, norm, 0.3)
    turned = [
        each.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_() for each in (x, branch)
    ]
    out = joined(*turned, norm, 0.3)
    assert torch.equal(out, expected)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, turned, grad.transpose(0, 1).contiguous().transpose(0, 1))
    for ours, true in zip(found, torch.autograd.grad(expected, (x, branch), grad), strict=True):
        assert torch.equal(ours, true)


@NEEDS_COMPILER
def test_threads_change_no_bit():
    x, branch, norm = example(1000, 40)
    leaves = (x, branch, norm.weight, norm.bias)

    def run():
        out = joined(x, branch, norm, 0.3)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    expected = run()
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        try:
            assert all(torch.equal(*pair) for pair in zip(run(), expected, strict=True))
        finally:
            torch.set_num_threads(1)


@NEEDS_COMPILER
@RATES
def test_dropout_alone(rate):
    x = torch.randn(30, 21, requires_grad=True)
    torch.manual_seed(3)
    out = residual.dropout(x, rate, training=True)
    torch.manual_seed(3)
    expected = functional.dropout(x, rate)
    assert torch.equal(out, expected)
    grad = torch.randn_like(out)
    for ours, true in zip(
        torch.autograd.grad(out, x, grad), torch.autograd.grad(expected, x, grad), strict=True
    ):
        assert torch.equal(ours, true)


def test_rate_and_independence():
    """Of the mask that blocks use: over elements, neighbours, and calls."""
    torch.manual_seed(0)
    rate, x = 0.3, torch.ones(64, 32, 128)
    drops = [(residual.dropout(x, rate, training=True) == 0).double() - rate for _ in range(2)]
    deviation = rate * (1 - rate) / x.numel() ** 0.5
    assert abs(drops[0].mean()) < 4 * deviation / (rate * (1 - rate)) ** 0.5
    others = [drops[0].roll(1, axis) for axis in range(3)]
    for other in (*others, drops[1]):
        assert abs((drops[0] * other).mean()) < 4 * deviation


@NEEDS_COMPILER
def test_without_kernels_the_mask_and_the_generator_are_the_same(monkeypatch):
    x, branch, norm = example(4, 9, 20)
    results = []
    for kernels in (True, False):
        if not kernels:
            monkeypatch.setattr(kernel, "can_serve", lambda *_: False)
        out = joined(x, branch, norm, 0.5)
        results.append((out, joined(x, branch, None, 0.5), torch.get_rng_state()))
    assert torch.equal(results[0][2], results[1][2])
    assert torch.equal(results[0][1], results[1][1])
    torch.testing.assert_close(results[0][0], results[1][0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_repeats_the_mask(use_reentrant):
    x, branch, norm = example(4, 9, 20)

    def gradients(run):
        torch.manual_seed(1)
        return torch.autograd.grad(run(x, branch, norm, 0.5).square().sum(), (x, branch))

    def run(x, branch, norm, rate):
        return residual.join(x, branch, norm, rate, training=True)

    def checkpointed(*arguments):
        return checkpoint(run, *arguments, use_reentrant=use_reentrant)

    if use_reentrant:
        torch.manual_seed(1)
        expected = run(x, branch, norm, 0.5)
        torch.manual_seed(1)
        out = checkpointed(x, branch, norm, 0.5)
        assert torch.equal(out, expected)
        out.square().sum().backward()
        found = (x.grad, branch.grad)
    else:
        found = gradients(checkpointed)
    assert all(torch.equal(*pair) for pair in zip(found, gradients(run), strict=True))


def test_second_derivatives():
    x, branch, norm = example(3, 6, dtype=torch.float64)
    torch.autograd.gradgradcheck(lambda *inputs: joined(*inputs, norm, 0.3), (x, branch))
    x, branch, norm = example(3, 6)
    second = []
    for run in (lambda: joined(x, branch, norm, 0.3), lambda: in_torch(x, branch, norm, 0.3)):
        (grad,) = torch.autograd.grad(run().pow(3).sum(), branch, create_graph=True)
        second.append(torch.autograd.grad(grad.square().sum(), (x, branch, norm.weight)))
    torch.testing.assert_close(*second)


def test_gradients_of_many_outputs_at_once():
    x, branch, norm = example(3, 6)
    for out in (joined(x, branch, norm, 0.3), residual.dropout(branch, 0.3, training=True)):
        grads = torch.randn(2, *out.shape)
        (together,) = torch.autograd.grad(out, branch, grads, is_grads_batched=True, retain_graph=True)
        one_by_one = [torch.autograd.grad(out, branch, grad, retain_graph=True)[0] for grad in grads]
        torch.testing.assert_close(together, torch.stack(one_by_one))


def in_torch(x, branch, norm, rate):
    torch.manual_seed(3)
    return functional.join_residual(x, branch, norm.weight, norm.bias, eps=norm.eps, dropout_p=rate)


def test_evaluation_is_torchs():
    x, branch, norm = example(4, 9, 20)
    assert torch.equal(residual.join(x, branch, norm, 0.5, training=False), norm(x + branch))
    assert torch.equal(residual.join(x, branch, None, 0.5, training=False), x + branch)
    assert residual.dropout(x, 0.5, training=False) is not None
    assert torch.equal(residual.dropout(x, 0.5, training=False), F.dropout(x, 0.5, training=False))


def test_norms_with_hooks_are_called():
    x, branch, norm = example(4, 9, 20)
    seen = []
    norm.register_forward_hook(lambda *_: seen.append("hook"))
    joined(x, branch, norm, 0.5)
    assert seen == ["hook"]
