"""Stacked projections: kernels write the gradients of their parts side by side, so that nothing is copied."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow import WindowAttention
from diffwindow.kernels import stack
from diffwindow.ops import interval_attention
from samples.kernel_marks import NEEDS_COMPILER

WIDTHS = (12, 12, 8)


def heads_of(parts):
    return [x.unflatten(-1, (4, -1)).transpose(1, 2) for x in parts]


def loss(parts):
    return interval_attention(*heads_of(parts), is_causal=True).square().sum()


def torch_split(x, sizes):
    return x.split(list(sizes), dim=-1)


@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_stack_are_written_in_place(dtype, monkeypatch):
    x = torch.randn(3, 9, sum(WIDTHS)).to(dtype).requires_grad_()
    expected = torch.autograd.grad(loss(torch_split(x, WIDTHS)), x)[0]
    value = loss(stack.split(x, WIDTHS))
    monkeypatch.setattr(torch, "cat", lambda *_: pytest.fail("gradients were copied"))
    assert torch.equal(torch.autograd.grad(value, x)[0], expected)


@NEEDS_COMPILER
def test_a_layer_splits_twice_and_copies_nothing(monkeypatch):
    layer, x = WindowAttention(16, 2), torch.randn(2, 6, 16)
    out, _ = layer(x, x, x, need_weights=False)
    monkeypatch.setattr(torch, "cat", lambda *_: pytest.fail("gradients were copied"))
    out.sum().backward()
    assert layer.in_proj.weight.grad.isfinite().all()


def test_gradients_that_are_apart_are_copied_together():
    x = torch.randn(2, 5, sum(WIDTHS), requires_grad=True)
    results = []
    for split in (stack.split, torch_split):
        first, _, last = split(x, WIDTHS)
        # the second part has no gradient
        results.append(torch.autograd.grad((first.sum() + last.square().sum()), x)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (1, 1)])
def test_stacks_without_rows_and_with_one(shape):
    x = torch.randn(*shape, sum(WIDTHS), requires_grad=True)
    results = [torch.autograd.grad(loss(split(x, WIDTHS)), x)[0] for split in (stack.split, torch_split)]
    assert torch.equal(*results)


def test_gradients_of_many_outputs_at_once():
    x, sizes = torch.randn(2, 5, sum(WIDTHS), requires_grad=True), WIDTHS
    outs = [interval_attention(*heads_of(split(x, sizes))) for split in (stack.split, torch_split)]
    grads = torch.randn(3, *outs[0].shape)
    found = [torch.autograd.grad(out, x, grads, is_grads_batched=True)[0] for out in outs]
    assert_close(*found)


def test_second_derivatives():
    x = torch.randn(2, 5, sum(WIDTHS), requires_grad=True)
    results = []
    for split in (stack.split, torch_split):
        (first,) = torch.autograd.grad(loss(split(x, WIDTHS)), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert_close(*results)


def test_neighbours_are_kept_together_and_strangers_apart():
    rows = torch.randn(2, 7, 40)
    q, k, v, other = heads_of(rows.split([8, 12, 12, 8], dim=-1))
    alone = heads_of([torch.randn(2, 7, 12)])[0]
    grads = stack.empty_heads_like([v, alone, q, k])
    assert grads[1] is None
    first, second, third = grads[2], grads[3], grads[0]
    assert first.untyped_storage().data_ptr() == third.untyped_storage().data_ptr()
    assert second.data_ptr() - first.data_ptr() == 8 * 4
    assert [x.shape for x in (first, second, third)] == [x.shape for x in (q, k, v)]
    # with a gap between them
    assert stack.empty_heads_like([q, v]) == [None, None]
    assert stack.empty_heads_like([k, other]) == [None, None]
