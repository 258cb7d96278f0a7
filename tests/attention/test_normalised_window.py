"""WindowAttention with `normalize` and `window_tolerance`."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow import Classifier, ClassifierConfig, WindowAttention
from diffwindow.attention.kinds import build_attention
from diffwindow.notation import parse
from diffwindow.view.capture import capture


def sharp(**settings):
    """Build an attention with windows narrow enough to be cut."""
    torch.manual_seed(0)
    attention = WindowAttention(8, 2, window="multiplicative", **settings)
    torch.nn.init.normal_(attention.in_proj.weight, std=1.0)
    return attention.double()


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
@pytest.mark.parametrize("gate", [False, True])
def test_the_weights_are_those_of_the_output_and_sum_to_one(tolerance, gate):
    attention = sharp(window_tolerance=tolerance, normalize=True, gate=gate)
    if gate:
        torch.nn.init.constant_(attention.gate, 0.7)
    x = torch.randn(3, 9, 8).double()
    output, weights = attention(x, x, x, average_attn_weights=False)
    alone, nothing = attention(x, x, x, need_weights=False)
    assert nothing is None
    assert_close(output, alone)
    maps = attention.inspect(x, x)
    assert_close(maps.weights, weights)
    assert (maps.window == 0).any() == (tolerance > 0)
    assert (weights > 0)[maps.window > 0].all()
    if not gate:
        assert not weights[maps.window == 0].any()
        assert_close(weights.sum(-1), (maps.window > 0).any(-1).double())


def test_a_tolerance_cuts_the_window_and_leaves_the_rest():
    exact, cut = sharp(), sharp(window_tolerance=0.2)
    x = torch.randn(3, 9, 8).double()
    before, after = exact.inspect(x, x), cut.inspect(x, x)
    small = before.window < 0.2
    assert small.any()
    assert_close(after.window, before.window.masked_fill(small, 0.0))
    assert_close(after.weights, before.weights.masked_fill(small, 0.0))


def test_a_normalised_window_of_bf16_stays_near_fp32():
    attention = sharp(normalize=True, window_tolerance=0.2).float()
    x = torch.randn(3, 9, 8)
    output, _ = attention(x, x, x, need_weights=False)
    half, _ = attention.bfloat16()(x.bfloat16(), x.bfloat16(), x.bfloat16(), need_weights=False)
    assert half.dtype == torch.bfloat16
    assert (half.float() - output).abs().mean() < 0.1 * output.abs().mean()


def test_the_notation_and_the_config_build_it():
    attention = parse("Enc(MW,Norm)").terms[0].attention
    module = build_attention(attention, 8, 2, window_tolerance=0.1)
    assert (module.normalize, module.window_tolerance) == (True, 0.1)
    assert "window_tolerance=0.1, normalize=True" in repr(module)
    # a tolerance is for windows: plain attention has none
    build_attention(parse("Enc(Rel)").terms[0].attention, 8, 2, window_tolerance=0.1)


def test_a_trace_shows_what_the_model_computes():
    config = ClassifierConfig(
        vocab_size=9, embed_dim=8, num_heads=2, ffn_dim=8, num_layers=1, num_classes=2,
        attention="Enc(MW,Norm)", window_tolerance=0.9,
    )  # fmt: skip
    model = Classifier(config).eval()
    torch.nn.init.normal_(model.encoder.layers[0].self_attention.attention.in_proj.weight, std=1.0)
    with capture(model) as trace:
        model(torch.randint(4, 9, (1, 7)))
    (layer,) = trace.layers
    assert layer.kind == "MW, normalised, tolerance 0.9"
    assert layer.window_tolerance == 0.9
    assert (layer.window == 0).any()
    assert not layer.weights[layer.window == 0].any()
    assert "window_tolerance" in trace.to_html()
