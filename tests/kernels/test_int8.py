"""Linear layers of eight bits: the kernel against plain PyTorch, and both against the exact layer."""

import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from diffwindow.kernels import int8, toolchain
from diffwindow.kernels.int8 import Int8Linear
from samples.kernel_marks import NEEDS_COMPILER

needs_vnni = pytest.mark.skipif("avx512_vnni" not in toolchain.features(), reason="needs AVX-512 VNNI")
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def plain(layer: nn.Linear, monkeypatch: pytest.MonkeyPatch) -> Int8Linear:
    """Round a layer as on a machine without the kernel."""
    with monkeypatch.context() as patch:
        patch.setattr(int8, "_has_kernel", lambda: False)
        return Int8Linear(layer.weight, layer.bias)


@NEEDS_COMPILER
@needs_vnni
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 191, 193])
def test_the_kernel_rounds_and_adds_as_pytorch_does(rows, monkeypatch):
    for inputs, outputs in product((1, 3, 4, 15, 17, 64, 130), (1, 15, 63, 64, 65, 200)):
        torch.manual_seed(outputs)
        layer, x = nn.Linear(inputs, outputs), torch.randn(rows, inputs)
        kernel, reference = Int8Linear(layer.weight, layer.bias), plain(layer, monkeypatch)
        assert kernel.weight.dim() == 4
        assert reference.weight.dim() == 2
        # sums are exact; the scale, the product and the bias each round once
        torch.testing.assert_close(kernel(x), reference(x), rtol=4 * EPS, atol=4 * EPS)
        first, last = outputs // 3, outputs - outputs // 5
        assert torch.equal(kernel.outputs(x, first, last), kernel(x)[:, first:last])
        assert torch.equal(reference.outputs(x, first, last), reference(x)[:, first:last])


@pytest.mark.parametrize("bias", [True, False])
def test_an_error_is_at_most_half_a_step_of_each_factor(bias):
    layer, x = nn.Linear(96, 40, bias=bias), torch.randn(3, 5, 96)
    x_step, w_step = x.abs().amax(-1, keepdim=True) / 127, layer.weight.abs().amax(-1) / 127
    # |x w − x' w'| ≤ |x| |w − w'| + |w'| |x − x'|, and roundings of fp32
    of_weights = x.abs().sum(-1, keepdim=True) * w_step / 2
    of_inputs = x_step / 2 * (layer.weight.abs().sum(-1) + 96 * w_step / 2)
    found = Int8Linear(layer.weight, layer.bias)(x)
    assert found.shape == (3, 5, 40)
    assert ((found - layer(x)).abs() <= of_weights + of_inputs + 1e-5).all()


def test_no_row_depends_on_others():
    layer = nn.Linear(48, 100)
    rounded, x = Int8Linear(layer.weight, layer.bias), torch.randn(20, 48)
    x[3] *= 1e4
    assert torch.equal(torch.cat([rounded(row[None]) for row in x]), rounded(x))


@NEEDS_COMPILER
def test_neither_threads_nor_strides_change_a_bit():
    rounded, x = Int8Linear(torch.randn(500, 64)), torch.randn(33, 64)
    expected = rounded(x)
    assert torch.equal(rounded(x.mT.contiguous().mT), expected)
    torch.set_num_threads(3)
    try:
        assert torch.equal(rounded(x), expected)
    finally:
        torch.set_num_threads(1)


def test_rows_as_an_embedding_has_them(monkeypatch):
    layer, indices = nn.Linear(30, 70), torch.tensor([[0, 69], [5, 5]])
    for rounded in (Int8Linear(layer.weight), plain(layer, monkeypatch)):
        rows = rounded.rows(indices)
        assert ((rows - layer.weight[indices]).abs() <= layer.weight.abs().amax() / 127).all()
        for unknown in (70, -1):
            with pytest.raises(IndexError):
                rounded.rows(torch.tensor([unknown]))


def test_zero_and_what_is_not_finite(monkeypatch):
    layer, x = nn.Linear(8, 5), torch.randn(4, 8)
    x[0], x[1, 3], x[2, 2] = 0.0, math.nan, math.inf
    for rounded in (Int8Linear(layer.weight, layer.bias), plain(layer, monkeypatch)):
        found = rounded(x)
        assert torch.equal(found[0], layer.bias)
        assert not found[1:3].isfinite().any()
        assert found[3].isfinite().all()
        assert rounded(x[:0]).shape == (0, 5)


def test_what_torch_observes_sees_operators():
    rounded, x = Int8Linear(torch.randn(64, 16)), torch.randn(3, 16)
    assert "_int_mm" in make_fx(rounded)(x).code


def test_plain_pytorch_takes_other_types_and_strides(monkeypatch):
    layer, x = nn.Linear(16, 64), torch.randn(5, 3, 16).transpose(0, 1)
    rounded, reference = Int8Linear(layer.weight, layer.bias), plain(layer, monkeypatch)
    expected = rounded(x)
    torch.testing.assert_close(reference(x), expected)
    torch.testing.assert_close(rounded(x.bfloat16()).float(), expected, rtol=0.02, atol=0.1)
    torch.testing.assert_close(rounded.double()(x).float(), expected)


def test_neither_trained_nor_saved():
    model = nn.Sequential(Int8Linear(torch.randn(4, 4)), nn.Linear(4, 4)).eval()
    with pytest.raises(ValueError, match="cannot be trained"):
        model.train()
    with torch.enable_grad(), pytest.raises(ValueError, match="cannot be trained"):
        model(torch.randn(2, 4, requires_grad=True))
    with pytest.raises(ValueError, match="are not saved"):
        model.state_dict()
    with pytest.raises(ValueError, match="x has 3 features, but the layer has 4"):
        model(torch.randn(2, 3))
