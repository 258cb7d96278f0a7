"""WindowAdapter: the paper's equations on another model's queries and keys."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from diffwindow import WindowAttention, functional, use_impl
from diffwindow.kernels import operator
from diffwindow.models.window_adapter import WindowAdapter
from diffwindow.notation import Attention

SCALE = 0.3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def opened(attention, **settings):
    window = WindowAdapter(attention, num_heads=4, head_dim=6, **settings)
    with torch.no_grad():
        for parameter in window.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return window.double()


def heads(queries=5, keys=7):
    """Queries of four heads, keys and values of two, which serve two heads each."""
    return (torch.randn(3, h, n, 6).double() for h, n in ((4, queries), (2, keys), (2, keys)))


@pytest.mark.parametrize(
    ("kind", "gate", "normalize", "tolerance", "sinks"),
    [
        ("AW", False, False, 0.0, 0),
        ("AW", False, False, 0.3, 0),
        ("MW", False, False, 0.0, 0),
        ("MW", True, False, 0.0, 2),
        ("MW", True, True, 0.3, 0),
        ("MW", True, True, 0.3, 1),
    ],
)
@pytest.mark.parametrize("segment_size", [1, 2])
def test_outputs_are_those_of_the_equations(kind, gate, normalize, tolerance, sinks, segment_size):
    """A head at a time, with padding on the left, a bias, and keys that are not projected again."""
    settings = {"segment_size": segment_size, "boundary_dim": 2, "gate": gate, "normalize": normalize}
    window = opened(Attention(kind, **settings, sinks=sinks), window_tolerance=tolerance)
    q, k, v = heads()
    bias = torch.randn(1, 4, 5, 7).double()
    mask = torch.ones(3, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., :3] = False
    found = window(q, k, v, attn_mask=mask, attn_bias=bias, scale=SCALE)
    for head in range(4):
        x, y, z, visible = q[:, head], k[:, head // 2], v[:, head // 2], mask[:, 0]

        def score(pair, x=x, y=y, head=head):
            return SCALE * (x @ pair.query[head]) @ (y @ pair.key[head]).mT

        phi_left, phi_right = (
            score(pair).masked_fill(~visible, -torch.inf).softmax(-1) for pair in (window.left, window.right)
        )
        m = functional.soft_window(
            phi_left,
            phi_right,
            segment_size=segment_size,
            segment_origin=torch.tensor([0, 3, 0]),
            window_tolerance=tolerance,
        )
        for row, first in enumerate((0, 3, 0)):
            m[row, :, first : first + sinks] = 1.0
        assert (m == 0).any() or not tolerance
        scores = SCALE * x @ y.mT + bias[:, head]
        if kind == "AW":
            scores = scores + score(window.local) * m
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        if normalize:
            inside = weights * m / (weights * m).sum(-1, keepdim=True)
            weights = weights + window.gate[head] * (inside - weights)
        elif kind == "MW":
            weights = weights * (1 + window.gate[head] * (m - 1) if gate else m)
        assert_close(found[:, head], weights @ z)


@pytest.mark.parametrize("attention", [Attention("AW"), Attention("MW", gate=True)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_it_starts_as_plain_attention(attention, is_causal):
    window = WindowAdapter(attention, num_heads=4, head_dim=6)
    q, k, v = (x.float() for x in heads(7))
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=SCALE, enable_gqa=True)
    assert_close(window(q, k, v, is_causal=is_causal, scale=SCALE), plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", [Attention("AW"), Attention("MW", normalize=True, sinks=2)])
def test_cached_keys_change_nothing(attention):
    """The last query of a causal sequence is what a decoder's step computes from the cached keys."""
    window = opened(attention)
    q, k, v = heads(7)
    step = window(q[:, :, -1:], k, v)
    assert_close(step, window(q, k, v, is_causal=True)[:, :, -1:])


def test_gradients_reach_every_parameter():
    for attention in (Attention("AW"), Attention("MW", gate=True), Attention("MW")):
        window = opened(attention)
        window(*heads()).square().sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in window.parameters())


def test_maps_of_a_row_that_the_bias_hides_are_zero():
    window = opened(Attention("MW", gate=True))
    q, k, _ = heads(7)
    bias = torch.zeros(7, 7, dtype=q.dtype)
    bias[2] = float("-inf")
    weights = window.maps(q, k, attn_bias=bias).weights
    assert weights.isfinite().all()
    assert not weights[:, :, 2].any()


def test_a_window_keeps_its_width_and_nothing_of_its_inputs():
    """Keys would take more memory than the cache they come from, and go into pickles."""
    window = opened(Attention("AW"))
    before = set(vars(window))
    window(*heads(20), is_causal=True)
    width = window.mean_width()
    assert set(vars(window)) == before
    held = [value for value in vars(window).values() if isinstance(value, torch.Tensor)]
    assert [value.numel() for value in held] == [1]
    # a step of decoding tells nothing about the width
    window(*heads(1))
    assert window.mean_width() == width


def test_the_mean_width_counts_only_what_a_query_sees():
    window = opened(Attention("AW", segment_size=4))
    q, k, v = heads(2)
    k, v = (x[:, :, :1].expand(-1, -1, 2, -1) for x in (k, v))
    window(q, k, v, is_causal=True)
    # the first query sees one key of the one segment, the second both
    assert window.mean_width() == pytest.approx(1.5)


def test_boundaries_are_not_wider_than_heads():
    with pytest.raises(ValueError, match="AW,Dim=9 has wider boundaries than the heads, which are 4 wide"):
        WindowAdapter(Attention("AW", boundary_dim=9), num_heads=2, head_dim=4)


@pytest.mark.usefixtures("unchecked")
def test_use_impl_reaches_all_windows_of_a_model():
    layers = torch.nn.ModuleList([WindowAttention(8, 2, impl="cpu"), opened(Attention("AW")).float()])
    q, k, v = (x.float() for x in heads())

    def implementations():
        return [layer.impl for layer in layers]

    with use_impl(layers, "reference"):
        assert implementations() == ["reference", "reference"]
        with torch.no_grad(), patch.object(operator, "window_attention", side_effect=AssertionError):
            layers[1](q, k, v)
    assert implementations() == ["cpu", "auto"]
    use_impl(layers, "reference")
    assert implementations() == ["reference", "reference"]
    with pytest.raises(ValueError, match="impl='gpu' is not one of"):
        use_impl(layers, "gpu")
