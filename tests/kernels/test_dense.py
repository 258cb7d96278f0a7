"""Linear layers in training: outputs and gradients against float64, and what goes to torch instead."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from diffwindow.kernels import dense, few_rows
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

EPS = torch.finfo(torch.float32).eps
RELU = pytest.mark.parametrize("relu", [False, True])


def example(rows: int, inputs: int, outputs: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,))
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def in_float64(leaves, grad, relu):
    """Return output and gradients, and what their roundings are relative to: the sums of absolute values."""
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    total = F.linear(*wide)
    out = total.relu() if relu else total
    x, weight, bias = (leaf.detach().abs().double() for leaf in leaves)
    size = grad.abs().double()
    sizes = [F.linear(x, weight, bias), size @ weight, size.mT @ x, size.sum(0)]
    return [out, *torch.autograd.grad(out, wide, grad.double())], sizes


# rows about a unit and a chunk of them; widths about a panel, four of them and an inner block
@RELU
@pytest.mark.parametrize("rows", [1, 47, 49, 481, 1000])
def test_odd_sizes(rows, relu):
    for inputs, outputs in ((16, 16), (48, 80), (272, 64), (64, 272), (112, 48)):
        leaves = example(rows, inputs, outputs)
        out = dense.linear(*leaves, relu=relu)
        grad = torch.randn_like(out)
        found = [out, *torch.autograd.grad(out, leaves, grad)]
        expected, sizes = in_float64(leaves, grad, relu)
        for ours, true, size in zip(found, expected, sizes, strict=True):
            assert (
                (ours.double() - true).abs() <= 4 * EPS * math.sqrt(max(rows, inputs, outputs)) * size
            ).all()


def test_any_dimensions_strides_and_rows_of_a_larger_matrix():
    stack, bias = torch.randn(96, 32, requires_grad=True), torch.randn(192, requires_grad=True)
    x = torch.randn(32, 20, 7, requires_grad=True)
    turned, leaves = x.transpose(0, 2), (stack, bias, x)
    out = dense.linear(turned, stack[16:64], bias[::2][16:64])
    expected = F.linear(turned, stack[16:64], bias[::2][16:64])
    torch.testing.assert_close(out, expected)
    grad = torch.randn(48, 20, 7).transpose(0, 2)
    found = torch.autograd.grad(out, leaves, grad)
    torch.testing.assert_close(found, torch.autograd.grad(expected, leaves, grad), rtol=1e-5, atol=1e-4)


@RELU
def test_threads_change_no_bit(relu):
    leaves = example(1000, 48, 160)

    def run():
        out = dense.linear(*leaves, relu=relu)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    expected = run()
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        try:
            assert all(torch.equal(*pair) for pair in zip(run(), expected, strict=True))
        finally:
            torch.set_num_threads(1)


def test_parts_that_are_frozen_or_missing():
    leaves = example(200, 32, 48)
    both = dense.linear(*leaves).square().sum()
    expected = torch.autograd.grad(both, leaves)
    for index, leaf in enumerate(leaves):
        chosen = [each.detach() for each in leaves]
        chosen[index] = leaf
        (found,) = torch.autograd.grad(dense.linear(*chosen).square().sum(), leaf)
        assert torch.equal(found, expected[index])
    x, weight, bias = leaves
    torch.testing.assert_close(dense.linear(x, weight, None) + bias, dense.linear(*leaves))


@RELU
def test_second_derivatives(relu):
    leaves = example(200, 32, 48)
    second = []
    for run in (lambda: dense.linear(*leaves, relu=relu), lambda: few_rows_in_torch(leaves, relu)):
        (grad,) = torch.autograd.grad(run().pow(3).mean(), leaves[0], create_graph=True)
        second.append(torch.autograd.grad(grad.square().sum(), leaves))
    torch.testing.assert_close(*second)


def test_gradients_of_many_outputs_at_once():
    leaves = example(200, 32, 48)
    out = dense.linear(*leaves, relu=True)
    grads = torch.randn(3, *out.shape)
    together = torch.autograd.grad(out, leaves, grads, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(out, leaves, grad, retain_graph=True) for grad in grads]
    for found, expected in zip(together, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


def few_rows_in_torch(leaves, relu):
    out = F.linear(*leaves)
    return out.relu() if relu else out


def test_nan_is_seen():
    x, weight, bias = example(200, 32, 48)
    with torch.no_grad():
        x[3, 2] = math.nan
    for relu in (False, True):
        found = dense.linear(x, weight, bias, relu=relu)
        assert found[3].isnan().all()
        assert found[4:].isfinite().all()


def test_what_goes_to_torch():
    x, weight, bias = example(200, 32, 48)
    assert dense.can_serve(x, weight, bias)
    assert dense.can_serve(x, weight, None)
    assert not dense.can_serve(x[:100], weight, bias)
    assert not dense.can_serve(x[:, :24], weight[:, :24], bias)
    assert not dense.can_serve(x, weight[:40], bias[:40])
    assert not dense.can_serve(x, weight[:, :16], bias)
    assert not dense.can_serve(x, weight, bias[:16])
    assert not dense.can_serve(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
    assert not dense.can_serve(x[:, :0], weight[:, :0], bias)
    with torch.autocast("cpu"):
        assert not dense.can_serve(x, weight, bias)


@RELU
def test_layers_use_it_and_their_hooks_run(relu):
    layer, x = nn.Linear(32, 48), torch.randn(200, 32)
    out = few_rows.apply(layer, x, relu=relu)
    assert "_Dense" in type(out.grad_fn).__name__
    expected = layer(x).relu() if relu else layer(x)
    torch.testing.assert_close(out, expected)
    seen = []
    layer.register_forward_hook(lambda *_: seen.append("hook"))
    torch.testing.assert_close(few_rows.apply(layer, x, relu=relu), expected)
    assert seen == ["hook"]
