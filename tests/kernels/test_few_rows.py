"""Linear layers for few rows: against float64, and what goes to torch instead."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from diffwindow.kernels import few_rows
from samples.kernel_marks import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def everything_is_served(monkeypatch):
    """Serve small problems too, and fail where a call goes to torch."""
    monkeypatch.setattr(few_rows, "_MIN_PRODUCTS", 0)
    monkeypatch.setattr(few_rows.F, "linear", lambda *_: pytest.fail("torch was called"))


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 160])
def test_products_at_odd_sizes(rows, everything_is_served):
    for inputs, outputs in product((1, 7, 16, 255, 256, 257, 600), (1, 7, 8, 47, 48, 49, 130)):
        torch.manual_seed(outputs)
        x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        for chosen in (bias, None):
            exact = x.double() @ weight.double().mT + (0 if chosen is None else chosen.double())
            # each product and each sum rounds once
            size = x.abs().double() @ weight.abs().double().mT + 1
            error = (few_rows.linear(x, weight, chosen).double() - exact).abs()
            assert (error <= EPS * math.sqrt(inputs + 8) * size).all()


def test_rows_of_a_larger_matrix_and_any_number_of_dimensions(everything_is_served):
    stack, bias, x = torch.randn(100, 40), torch.randn(100), torch.randn(3, 2, 24)
    weight = stack[30:90, 8:32]
    found = few_rows.linear(x, weight, bias[30:90])
    torch.testing.assert_close(found, x @ weight.mT + bias[30:90])
    assert found.shape == (3, 2, 60)
    assert found.is_contiguous()


def test_neither_threads_nor_other_rows_change_a_bit(everything_is_served):
    x, weight = torch.randn(33, 300), torch.randn(500, 300)
    expected = few_rows.linear(x, weight)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        try:
            assert torch.equal(few_rows.linear(x, weight), expected)
        finally:
            torch.set_num_threads(1)
    for rows in (2, 17, 32):
        assert torch.equal(few_rows.linear(x[-rows:], weight), expected[-rows:])


@pytest.mark.parametrize("rows", [1, 3])
def test_nan_stays_in_its_row_and_column(rows, everything_is_served):
    x, weight = torch.randn(rows, 40), torch.randn(60, 40)
    weight[5, 3] = math.nan
    x[-1, 7] = math.inf
    found = few_rows.linear(x, weight)
    assert found[:, 5].isnan().all()
    assert found[:-1, :5].isfinite().all()
    assert not found[-1].isfinite().any()


def served(x, weight, bias=None) -> bool:
    return few_rows._can_serve(x, weight, bias)


def test_what_goes_to_torch():
    x, weight, bias = torch.randn(8, 64), torch.randn(256, 64), torch.randn(256)
    assert served(x, weight, bias)
    assert served(x, nn.Parameter(weight), nn.Parameter(bias))
    assert not served(torch.randn(few_rows.MAX_ROWS + 1, 64), weight)
    assert not served(x[:1, :8], weight[:8, :8])
    assert not served(x[:0], weight)
    assert not served(x.double(), weight.double())
    assert not served(x.bfloat16(), weight.bfloat16())
    assert not served(x.mT.contiguous().mT, weight)
    assert not served(x, weight.mT.contiguous().mT)
    assert not served(x, weight, torch.randn(512)[::2])
    assert not served(x, weight, bias[:8])
    assert not served(x, weight[:, :32])
    assert not served(x, weight[0])
    assert not served(x.to_sparse(), weight)
    assert not served(torch.complex(x, x).conj().imag, weight)
    with torch.autocast("cpu"):
        assert not served(x, weight)
        assert few_rows.linear(x, weight).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        few_rows.linear(x, weight[:, :32])


def test_a_tracer_sees_the_operator():
    weight = torch.randn(256, 64)
    graph = make_fx(lambda x: few_rows.linear(x, weight))(torch.randn(8, 64))
    assert "aten.mm" in graph.code


def test_compiled_in_one_graph():
    layer, x = nn.Linear(64, 256), torch.randn(8, 64)
    compiled = torch.compile(lambda x: few_rows.apply(layer, x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_layers_with_hooks_and_others_are_called():
    layer, x = nn.Linear(64, 256), torch.randn(8, 64)
    seen = []
    handle = layer.register_forward_hook(lambda *_: seen.append("hook"))
    few_rows.apply(layer, x)
    handle.remove()
    few_rows.apply(layer, x)
    assert seen == ["hook"]
    layer.forward = lambda x: seen.append("forward") or x
    assert few_rows.apply(layer, x) is x
    assert few_rows.apply(nn.Identity(), x) is x


def test_gradients():
    layer, x = nn.Linear(64, 256), torch.randn(8, 64)
    with torch.enable_grad():
        out = few_rows.apply(layer, x)
        assert torch.equal(out, F.linear(x, layer.weight, layer.bias))
        assert out.requires_grad
        assert few_rows.linear(x, layer.weight).requires_grad
    assert not few_rows.apply(layer, x).requires_grad


def test_relu_leaves_the_output_of_a_layer_with_hooks_as_it_is():
    layer, kept = torch.nn.Linear(32, 32), []
    layer.register_forward_hook(lambda _, inputs, output: kept.append(output))
    x = torch.randn(200, 32)
    out = few_rows.apply(layer, x, relu=True)
    torch.testing.assert_close(kept[0], torch.nn.functional.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(out, kept[0].relu())
