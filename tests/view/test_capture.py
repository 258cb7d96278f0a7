import numpy as np
import pytest
import torch
from torch import nn

import diffwindow
from diffwindow import WindowAttention
from diffwindow.attention.base import watch
from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import start_translation
from diffwindow.models.classifier import ClassifierConfig
from diffwindow.models.translator import TranslatorConfig

SMALL = {"vocab_size": 20, "embed_dim": 16, "ffn_dim": 32, "num_heads": 2}


def classifier(attention="Enc(AW)"):
    torch.manual_seed(0)
    return ClassifierConfig(attention=attention, num_layers=2, **SMALL).build().eval()


def translator(attention="Enc(AW)-Cr(AW,Seg)-Dec(MW)"):
    torch.manual_seed(0)
    config = TranslatorConfig(attention=attention, encoder_layers=2, decoder_layers=2, **SMALL)
    return config.build().eval()


def test_a_trace_has_what_the_model_computed():
    model, tokens = classifier(), torch.tensor([[5, 6, 7, 2]])
    with diffwindow.capture(model, tokens=["a", "b", "c", "</s>"]) as trace:
        model(tokens)
    attentions = [block.attention for block in model.attention_blocks()["Enc"]]
    seen = []
    with torch.no_grad(), watch(attentions, lambda one, *call: seen.append(one.maps(*call))):
        model(tokens)
    windowed, plain = seen
    for name, expected in {"weights": windowed.weights, "window": windowed.window.values}.items():
        np.testing.assert_array_equal(getattr(trace["Enc", 1], name), expected[0])
    for name in ("phi_left", "phi_right"):
        np.testing.assert_array_equal(getattr(trace["Enc", 1], name), getattr(windowed.window, name)[0])
    np.testing.assert_array_equal(trace["Enc", 2].weights, plain.weights[0])
    assert trace["Enc", 2].window is None
    assert (trace["Enc", 1].kind, trace["Enc", 2].kind) == ("AW", "Global")
    assert trace.tokens == {"text": ["a", "b", "c", "</s>"]}
    assert set(trace.arrays()) == {
        "Enc.1.weights", "Enc.1.window", "Enc.1.phi_left", "Enc.1.phi_right", "Enc.2.weights",
    }  # fmt: skip


def test_capturing_changes_no_output_and_leaves_nothing_behind():
    model, tokens = classifier("Enc(AW,Seg)@1"), torch.tensor([[5, 6, 7, 2]])
    before = model(tokens)
    state = [dict(module.__dict__) for module in model.modules()]
    with diffwindow.capture(model):
        assert torch.equal(model(tokens), before)
    assert [dict(module.__dict__) for module in model.modules()] == state


def test_captures_nest():
    model, tokens = classifier(), torch.tensor([[5, 6, 7, 2]])
    with diffwindow.capture(model) as outer:
        with diffwindow.capture(model.encoder) as inner:
            model(tokens)
        model(tokens)
    np.testing.assert_array_equal(outer["Enc", 1].window, inner["Enc", 1].window)


def test_captures_end_in_any_order():
    model = classifier()
    first, second = diffwindow.capture(model), diffwindow.capture(model)
    first.__enter__()
    trace = second.__enter__()
    model(torch.tensor([[5, 6, 7, 2]]))
    first.__exit__(None, None, None)
    model(torch.tensor([[5, 6, 7, 8, 9, 2]]))
    second.__exit__(None, None, None)
    assert trace["Enc", 1].window.shape[1:] == (6, 6)
    attentions = [module for module in model.modules() if isinstance(module, diffwindow.WindowAttention)]
    assert all(attention.watchers == () for attention in attentions)


def test_gradients_flow_through_a_captured_model():
    model = classifier().train()
    with diffwindow.capture(model):
        model(torch.tensor([[5, 6, 7, 2]])).sum().backward()
    assert model.encoder.layers[0].self_attention.attention.in_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("row", [0, 1])
def test_padding_is_cut_off(row):
    model = classifier("Enc(AW,Seg=2)@all")
    alone, batch = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[0, 0, 5, 6, 7, 2], [5, 6, 7, 2, 0, 0]])
    with diffwindow.capture(model) as single:
        model(alone)
    with diffwindow.capture(model, row=row) as padded:
        model(batch)
    assert padded["Enc", 1].weights.shape == (2, 4, 4)
    assert padded["Enc", 1].segment_origin == 0
    for layer in (1, 2):
        np.testing.assert_allclose(padded["Enc", layer].window, single["Enc", layer].window, atol=1e-5)


def test_padding_of_the_source_leaves_the_queries_of_cross_attention():
    model, source = translator(), torch.tensor([[5, 6, 2, 0]])
    with diffwindow.capture(model) as trace:
        model(source, torch.tensor([[1, 8, 9, 7]]))
    assert trace["Enc", 1].weights.shape == (2, 3, 3)
    assert trace["Cr", 1].weights.shape == (2, 4, 3)
    assert trace["Dec", 1].weights.shape == (2, 4, 4)


def test_a_row_that_is_not_there_is_refused():
    model = classifier()
    with (
        pytest.raises(ValueError, match="row=1 is not a sentence of the batch, which has 1"),
        diffwindow.capture(model, row=1),
    ):
        model(torch.tensor([[5, 2]]))


def test_a_translator_has_three_roles():
    model = translator()
    with diffwindow.capture(model) as trace:
        model(torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 8, 9]]))
    assert [(maps.role, maps.layer, maps.kind) for maps in trace.layers] == [
        ("Enc", 1, "AW"), ("Enc", 2, "Global"), ("Cr", 1, "AW, segments of 5"), ("Cr", 2, "Global"),
        ("Dec", 1, "MW"), ("Dec", 2, "Global"),
    ]  # fmt: skip
    assert (trace["Cr", 1].queries, trace["Cr", 1].keys) == ("target", "source")
    assert trace["Cr", 1].weights.shape == (2, 3, 4)
    named = trace.with_tokens({"source": list("abcd"), "target": ["<s>", "x", "y"]})
    assert named.tokens["target"] == ["<s>", "x", "y"]


def test_decoding_step_by_step_gives_the_maps_of_the_whole():
    model, source = translator(), torch.tensor([[5, 6, 7, 2]])
    with diffwindow.capture(model) as steps:
        ((best,),) = beam_search(model, start_translation(model, source), Decoding(beam=1))
    with diffwindow.capture(model) as whole:
        model(source, torch.tensor([[1, *best.tokens]]))
    assert len(best.tokens) > 1
    for role in ("Enc", "Cr", "Dec"):
        np.testing.assert_allclose(steps[role, 1].window, whole[role, 1].window, atol=1e-5)
        np.testing.assert_allclose(steps[role, 2].weights, whole[role, 2].weights, atol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_window_attention_alone(need_weights):
    attention, x = WindowAttention(16, 2, window="multiplicative"), torch.randn(1, 5, 16)
    with diffwindow.capture(attention) as trace:
        attention(x, x, x, need_weights=need_weights, is_causal=True)
    # it never looks ahead
    (maps,) = trace.layers
    assert (maps.role, maps.layer, maps.kind) == ("Dec", 1, "MW")
    np.testing.assert_allclose(maps.window, attention.inspect(x, x, is_causal=True).window.values[0].detach())


def test_a_torch_decoder_layer_with_windows():
    layer = nn.TransformerDecoderLayer(16, 2, batch_first=True)
    layer.self_attn, layer.multihead_attn = WindowAttention(16, 2), WindowAttention(16, 2, segment_size=3)
    stack = nn.TransformerDecoder(layer, 3)
    with diffwindow.capture(stack.eval()) as trace:
        stack(torch.randn(1, 4, 16), torch.randn(1, 7, 16))
    assert [(maps.role, maps.layer) for maps in trace.layers] == [
        ("Enc", 1), ("Enc", 2), ("Enc", 3), ("Cr", 1), ("Cr", 2), ("Cr", 3),
    ]  # fmt: skip
    assert trace["Cr", 2].window.shape == (2, 4, 7)


def test_layers_keep_their_numbers_where_others_have_no_window():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, batch_first=True), 3, enable_nested_tensor=False
    )
    encoder.layers[2].self_attn = WindowAttention(16, 2)
    with diffwindow.capture(encoder) as trace:
        encoder(torch.randn(1, 4, 16))
    assert [(maps.role, maps.layer) for maps in trace.layers] == [("Enc", 3)]


def test_half_precision_is_captured():
    attention, x = WindowAttention(16, 2, dtype=torch.bfloat16), torch.randn(1, 5, 16, dtype=torch.bfloat16)
    with diffwindow.capture(attention) as trace:
        attention(x, x, x)
    assert trace["Enc", 1].window.dtype == np.float32


def test_a_baseline_that_attends_through_its_maps_is_captured_once():
    model = classifier("Enc(Rel)")
    with diffwindow.capture(model) as trace:
        model(torch.tensor([[5, 6, 7, 2]]))
    assert trace["Enc", 1].weights.shape == (2, 4, 4)
    assert trace["Enc", 1].kind == "Rel"


def test_what_cannot_be_captured_is_told():
    with (
        pytest.raises(ValueError, match="Linear holds no WindowAttention"),
        diffwindow.capture(nn.Linear(2, 2)),
    ):
        pass
    with pytest.raises(TypeError, match=r"model=None is not a torch.nn.Module"), diffwindow.capture(None):
        pass
    with (
        pytest.raises(TypeError, match="row='0' is not an integer"),
        diffwindow.capture(classifier(), row="0"),
    ):
        pass
    with pytest.raises(ValueError, match="no attention ran"), diffwindow.capture(classifier()):
        pass


def test_an_error_of_the_model_is_its_own():
    model = classifier()
    with pytest.raises(ValueError, match="the vocabulary has 20"), diffwindow.capture(model):
        model(torch.tensor([[50]]))
    assert "attend" not in model.encoder.layers[0].self_attention.attention.__dict__
