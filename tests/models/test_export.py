import logging

import pytest
import torch

from diffwindow import use_window_rule
from diffwindow.models.export import EncoderGraph, StepGraph, empty_prefix, export, export_onnx
from diffwindow.models.translator import Translator, TranslatorConfig

WINDOWS = "Enc(AW)-Cr(AW,Seg)-Dec(MW)"
# (sentences, source tokens, hypotheses, tokens before): none is what is traced, two begin a sentence.
CASES = [(1, 1, 1, 0), (1, 7, 4, 1), (3, 1, 2, 6), (4, 13, 5, 0), (3, 8, 1, 9)]


def small(attention, layers=2, positions="sinusoidal"):
    torch.manual_seed(0)
    config = TranslatorConfig(
        vocab_size=30,
        embed_dim=16,
        ffn_dim=32,
        num_heads=2,
        encoder_layers=layers,
        decoder_layers=layers,
        attention=attention,
        positions=positions,
    )
    return Translator(config).eval()


@torch.no_grad()
def inputs(model, sentences, length, width, before):
    """Random inputs of both graphs; sources are padded on the left, where segments must follow."""
    source = torch.randint(4, 30, (sentences, length))
    mask = torch.arange(length) >= torch.randint(0, length, (sentences, 1))
    tokens = torch.randint(4, 30, (sentences, width))
    prefix = tuple(torch.randn(sentences, width, before, x.shape[-1]) for x in empty_prefix(model, tokens))
    return (source, mask), (tokens, mask, EncoderGraph(model)(source, mask), prefix)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("attention", "positions"),
    [
        (WINDOWS, "sinusoidal"),
        pytest.param(WINDOWS, "rotary", marks=pytest.mark.slow),
        pytest.param("Global", "sinusoidal", marks=pytest.mark.slow),
        pytest.param("Enc(Rel)-Cr(Gauss)-Dec(Rel)", "sinusoidal", marks=pytest.mark.slow),
        pytest.param("Enc(AW,Tree)", "sinusoidal", marks=pytest.mark.slow),
        pytest.param(
            "Enc(MW,Norm)-Cr(MW,Seg=3,Norm,Sink=2)-Dec(MW,Norm,Sink=3)", "sinusoidal", marks=pytest.mark.slow
        ),
    ],
)
def test_exported_graphs_equal_the_model_at_other_lengths(attention, positions):
    model = small(attention, layers=1, positions=positions)
    before = [module.impl for module in model.modules() if hasattr(module, "impl")]
    # as a model is while it is trained: its dropout must not get into the graphs
    exported = export(model.train())
    assert model.training
    assert [module.impl for module in model.modules() if hasattr(module, "impl")] == before
    model.eval()
    encoder, step = (graph.module(check_guards=False) for graph in exported)
    # learned phrases need two gaps between tokens
    for case in (one for one in CASES if "Tree" not in attention or one[1] > 2):
        encoder_inputs, step_inputs = inputs(model, *case)
        torch.testing.assert_close(encoder(*encoder_inputs), EncoderGraph(model)(*encoder_inputs))
        torch.testing.assert_close(step(*step_inputs), StepGraph(model)(*step_inputs))


def run_onnx(session, values):
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, [value.numpy() for value in values], strict=True)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
@pytest.mark.parametrize(
    ("attention", "positions"),
    [
        (WINDOWS, "sinusoidal"),
        pytest.param(WINDOWS, "rotary", marks=pytest.mark.slow),
        pytest.param("Global", "sinusoidal", marks=pytest.mark.slow),
        pytest.param("Enc(MW,Seg=3)-Cr(MW)-Dec(AW)", "sinusoidal", marks=pytest.mark.slow),
        pytest.param(
            "Enc(MW,Norm)-Cr(MW,Seg=3,Norm,Sink=2)-Dec(MW,Norm,Sink=3)", "sinusoidal", marks=pytest.mark.slow
        ),
    ],
)
def test_onnxruntime_gives_what_the_model_gives(attention, positions, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    model = small(attention, layers=1, positions=positions)
    export_onnx(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "step.onnx"]
    encoder, step = (onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("encoder", "step"))
    for case in CASES:
        encoder_inputs, (tokens, mask, memory, prefix) = inputs(model, *case)
        found = run_onnx(encoder, encoder_inputs)
        for keys, expected in zip(found, memory, strict=True):
            torch.testing.assert_close(torch.from_numpy(keys), expected, rtol=1e-4, atol=1e-5)
        logits, *grown = run_onnx(step, (tokens, mask, *memory, *prefix))
        expected_logits, expected_grown = StepGraph(model)(tokens, mask, memory, prefix)
        torch.testing.assert_close(torch.from_numpy(logits), expected_logits, rtol=1e-4, atol=1e-5)
        for keys, expected in zip(grown, expected_grown, strict=True):
            torch.testing.assert_close(torch.from_numpy(keys), expected, rtol=1e-4, atol=1e-5)


def test_steps_of_the_graph_are_steps_of_the_model():
    model = small(WINDOWS)
    (source, mask), (tokens, *_) = inputs(model, 3, 7, 1, 0)
    state = model.begin(source, mask)
    memory, prefix = EncoderGraph(model)(source, mask), empty_prefix(model, tokens)
    for _ in range(4):
        logits, prefix = StepGraph(model)(tokens, mask, memory, prefix)
        torch.testing.assert_close(logits, model.step(tokens, state))
        tokens = logits.argmax(-1)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", ["argmax", "half", "none"])
def test_graphs_keep_the_window_rule_of_the_model(rule):
    model = small(WINDOWS, layers=1)
    with use_window_rule(model, rule):
        encoder, step = (graph.module(check_guards=False) for graph in export(model))
        for case in CASES:
            of_encoder, of_step = inputs(model, *case)
            torch.testing.assert_close(encoder(*of_encoder), EncoderGraph(model)(*of_encoder))
            torch.testing.assert_close(step(*of_step), StepGraph(model)(*of_step))


def test_a_rule_that_no_graph_can_hold_is_refused():
    model = small(WINDOWS, layers=1)
    with (
        use_window_rule(model, "joint"),
        pytest.raises(ValueError, match='export with "soft", "argmax", "half"'),
    ):
        export(model)
