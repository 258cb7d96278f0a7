"""Windows of whole phrases: what a window is asked for, the layer and the models."""

from itertools import accumulate, product

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from diffwindow import (
    Classifier,
    ClassifierConfig,
    LanguageModel,
    LanguageModelConfig,
    Translator,
    TranslatorConfig,
    WindowAttention,
)
from diffwindow.attention.phrases import PhraseGates
from diffwindow.attention.visibility import Visibility
from diffwindow.models.export import export
from diffwindow.soft_window import compose_window

LENGTH = 5


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def pointers(*shape):
    return (torch.randn(*shape, dtype=torch.float64).mul(2).softmax(-1) for _ in range(2))


def segmentations(gates):
    """Yield each segmentation as the phrase of each key, with its probability."""
    for ends in product((0, 1), repeat=len(gates)):
        chance = torch.where(torch.tensor(ends, dtype=torch.bool), gates, 1 - gates).prod()
        yield [0, *accumulate(ends)], float(chance)


@pytest.mark.parametrize("seen", [range(LENGTH), range(1, LENGTH), range(LENGTH - 2)])
def test_edges_of_a_window_are_means_over_all_segmentations(seen):
    gates = torch.rand(LENGTH - 1, dtype=torch.float64)
    mask = torch.tensor([[key in seen for key in range(LENGTH)]])
    left, right = (phi.masked_fill(~mask, 0.0) for phi in pointers(1, LENGTH))
    left, right = left / left.sum(), right / right.sum()
    window = compose_window(left, right, mask=mask, expectation="exact", gates=gates)
    start = end = mass = 0.0
    cuts = [0.0] * (LENGTH - 1)
    for phrase, chance in segmentations(gates):
        mass += chance * sum(float(left[0, key]) for key in seen if phrase[key] == phrase[seen[0]])
        for one, other in product(seen, seen):
            p = chance * float(left[0, one] * right[0, other])
            first, last = sorted((phrase[one], phrase[other]))
            inside = [key for key in seen if first <= phrase[key] <= last]
            start, end = start + p * inside[0], end + p * inside[-1]
            for gap in range(LENGTH - 1):
                cuts[gap] += p * ((gap == inside[-1]) + (gap + 1 == inside[0]))
    assert float(window.start) == pytest.approx(start)
    assert float(window.end) == pytest.approx(end)
    assert float(window.width) == pytest.approx(end - start + 1)
    assert float(window.width) == pytest.approx(float(window.values[mask].sum()))
    assert window.cut_probabilities[0].tolist() == pytest.approx(cuts)
    same = window._replace(phi_right=left).log_prob(seen[0], seen[0])
    assert float(same.exp()) == pytest.approx(mass**2)


@pytest.mark.parametrize("rule", ["argmax", "half", "joint"])
def test_discrete_windows_end_with_their_phrases(rule):
    one_hot = torch.eye(6)
    # phrases 0-1, 2-4, 5
    gates = torch.tensor([0.1, 0.9, 0.4, 0.0, 0.5])
    window = compose_window(one_hot[1:2], one_hot[3:4], gates=gates)
    assert [int(x) for x in window.discrete(rule)] == [0, 4]
    seen = torch.tensor([[False, True, True, True, False, False]])
    assert [int(x) for x in window._replace(mask=seen).discrete(rule)] == [1, 3]
    with pytest.raises(ValueError, match="max_width=3 is for windows by token or segment"):
        window.discrete("joint", max_width=3)


def test_sampled_windows_have_the_gradient_of_the_exact_one_on_average():
    gates = torch.rand(3, dtype=torch.float64, requires_grad=True)
    left, right = pointers(1, 4)
    window = compose_window(left, right, gates=gates, expectation="exact")
    weights = torch.randn(4, dtype=torch.float64)
    (expected,) = torch.autograd.grad((window.values * weights).sum(), gates)
    many = compose_window(*(phi.expand(1_000, 1, 4).requires_grad_() for phi in (left, right)), gates=gates)
    drawn = many._replace(gates=gates.expand(1_000, 3)).sample().values
    assert set(drawn.detach().round(decimals=9).flatten().tolist()) <= {0.0, 1.0}
    (mean,) = torch.autograd.grad((drawn * weights).sum() / 1_000, gates)
    assert_close(mean, expected, atol=0.2, rtol=0)


def layer(**options):
    torch.manual_seed(0)
    return WindowAttention(16, 2, dtype=torch.float64, **{"phrases": "given", **options}).eval()


def inputs(batch=3, length=7):
    x = torch.randn(batch, length, 16, dtype=torch.float64)
    return x, torch.rand(batch, length - 1, dtype=torch.float64)


KINDS = [
    {"window": "additive"},
    {"window": "multiplicative"},
    {"window": "multiplicative", "normalize": True, "sinks": 1},
    {"window": "multiplicative", "gate": True},
    {"window": "additive", "expectation": "exact", "relative_size": 2},
]


@pytest.mark.parametrize("options", KINDS)
def test_gates_of_one_are_tokens_and_regular_ones_are_segments(options):
    x, _ = inputs()
    phrases = layer(**options)
    for size in (1, 3):
        plain = WindowAttention(16, 2, dtype=torch.float64, segment_size=size, **options).eval()
        plain.load_state_dict(phrases.state_dict())
        gates = torch.tensor([float(gap % size == 0) for gap in range(1, 7)], dtype=torch.float64)
        assert_close(phrases(x, x, x, gates=gates.expand(3, -1)), plain(x, x, x))


@pytest.mark.parametrize("options", KINDS[:-1])
def test_padding_changes_nothing_whatever_its_gates_are(options):
    x, gates = inputs()
    attention = layer(**options)
    alone, _ = attention(x, x, x, gates=gates, need_weights=False)
    for before, after in ((2, 0), (0, 3), (1, 2)):
        padded = F.pad(x, (0, 0, before, after), value=float("nan"))
        wide = F.pad(gates, (before, after), value=float("nan"))
        hidden = F.pad(torch.zeros(3, 7, dtype=torch.bool), (before, after), value=True)
        for need_weights in (False, True):
            output, _ = attention(
                x, padded, padded, key_padding_mask=hidden, need_weights=need_weights, gates=wide
            )
            assert_close(output, alone)


@pytest.mark.parametrize("options", KINDS)
def test_a_query_sees_no_gate_beyond_itself(options):
    x, gates = inputs()
    attention = layer(**options)
    whole, _ = attention(x, x, x, is_causal=True, need_weights=False, gates=gates)
    queries, keys = attention.project_self(x)
    for place in range(7):
        prefix = Visibility(gates=gates[:, :place])
        step = attention.attend(queries[:, place : place + 1], keys[:, : place + 1], prefix)
        assert_close(step[:, 0], whole[:, place])


def test_gradients_of_a_layer():
    x, gates = inputs(batch=1, length=3)
    attention = layer(expectation="exact")
    gates = gates.mul(0.8).add(0.1).requires_grad_()

    def attend(x, gates):
        return attention(x, x, x, is_causal=True, need_weights=False, gates=gates)[0]

    assert torch.autograd.gradcheck(attend, (x.requires_grad_(), gates), fast_mode=True)


def test_half_precision_and_autocast_sum_in_full():
    x, gates = inputs()
    exact, _ = layer()(x, x, x, gates=gates)
    output, _ = layer().bfloat16()(*[x.bfloat16()] * 3, gates=gates.bfloat16())
    assert_close(output.double(), exact, atol=0.05, rtol=0.02)
    left, right = (phi.float() for phi in pointers(7, 7))
    with torch.autocast("cpu", torch.bfloat16):
        window = compose_window(left, right, gates=gates[0].float())
    assert_close(window.values, compose_window(left, right, gates=gates[0].float()).values)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_hidden_keys_give_zeros(length):
    attention, query = layer().requires_grad_(False), inputs(batch=2)[0]
    key, gates = inputs(batch=2, length=max(length, 1))
    call = {"key_padding_mask": torch.ones(2, length, dtype=torch.bool), "gates": gates}
    output, _ = attention(query, key[:, :length], key[:, :length], **call)
    assert_close(output, attention.out_proj.bias.expand_as(output))
    window = attention.inspect(query, key[:, :length], **call).window
    assert not window.width.any()
    assert (window.discrete("half").end == -1).all()


SMALL = {"vocab_size": 20, "embed_dim": 16, "num_heads": 2, "ffn_dim": 16}


def translator(attention="Enc(AW,Phr)-Cr(MW,Phr)@all"):
    config = TranslatorConfig(**SMALL, encoder_layers=2, decoder_layers=2, attention=attention)
    return Translator(config).eval()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, g: layer()(x, x, x), "windows of given phrases need gates"),
        (lambda x, g: layer()(x, x, x, gates=g[:, 1:]), "give one gate for each gap"),
        (lambda x, g: layer()(x, x, x, gates=g[1:]), "not [batch, gaps]"),
        (lambda x, g: layer()(x, x, x, gates=g + 1), "between keys 0 and 1 in row 0 is 1."),
        (lambda x, g: WindowAttention(16, 2).double()(x, x, x, gates=g), 'phrases="given"'),
        (lambda x, g: layer(segment_size=5), "segment_size=5 and phrases exclude each other"),
        (lambda x, g: layer(impl="cpu").float()(*[x.float()] * 3, None, False, gates=g), "phrases"),
        (lambda x, g: ClassifierConfig(vocab_size=9, attention="Enc(AW,Seg,Phr)"), "exclude each other"),
        (lambda x, g: TranslatorConfig(vocab_size=9, attention="Dec(AW,Phr)"), "not for Dec"),
        (lambda x, g: ClassifierConfig(vocab_size=9, attention="Enc(AW,Phr,Tree)"), "exclude each other"),
        (lambda x, g: TranslatorConfig(vocab_size=9, attention="Cr(AW,Tree)"), "not for Cr"),
        (lambda x, g: export(translator()), "exported graphs do not take"),
        (lambda x, g: export(translator("Dec(AW,Tree)")), "exported graphs do not keep"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=r".") as caught:
        call(*inputs())
    assert message in str(caught.value)


def test_translator_decodes_step_by_step_as_at_once():
    model = translator()
    source, target = torch.randint(4, 20, (3, 7)), torch.randint(4, 20, (3, 5))
    source[1, 4:] = 0
    gates = torch.rand(3, 6)
    whole = model(source, target, gates=gates)
    assert not torch.allclose(whole, model(source, target, gates=1 - gates))
    check_steps(model, model.begin(source, gates=gates), target, whole)


def check_steps(model, state, target, whole):
    """Compare steps from a state, whose sentences are reordered first, with a forward over whole targets."""
    order = torch.tensor([1, 0, 2])
    state.select(order, torch.zeros(3, 1, dtype=torch.long))
    for place in range(target.shape[1]):
        logits = model.step(target[order, place : place + 1], state)
        assert_close(logits[:, 0], whole[order, place], atol=1e-5, rtol=1e-4)


def test_classifier_reads_a_row_alike_in_any_batch():
    config = ClassifierConfig(**SMALL, attention="Enc(AW,Phr)@all")
    model = Classifier(config).eval()
    tokens, gates = torch.randint(4, 20, (2, 8)), torch.rand(2, 7)
    tokens[1, 5:] = 0
    assert_close(model(tokens, gates=gates)[1:], model(tokens[1:, :5], gates=gates[1:, :4]))


def test_levels_of_gates_start_apart_and_nest():
    gates = PhraseGates(64, levels=4)
    with torch.no_grad():
        learned = gates(gates.distances(torch.randn(20, 30, 64)))
    # a phrase that ends at a higher level ends at every lower one
    assert (learned.diff(dim=1) < 0).all()
    share = (learned > 0.5).double().mean((0, 2))
    assert share[0] > 0.6
    assert share[-1] < 0.4


def test_a_layer_makes_gates_of_its_own_from_its_keys():
    x, _ = inputs()
    attention = layer(phrases="learned")
    alone, _ = attention(x, x, x)
    made = attention.phrase_gates(attention.phrase_gates.distances(x))
    assert_close(attention(x, x, x, gates=made)[0], alone)
    padded = F.pad(x, (0, 0, 2, 3), value=float("nan"))
    hidden = F.pad(torch.zeros(3, 7, dtype=torch.bool), (2, 3), value=True)
    output, _ = attention(x, padded, padded, key_padding_mask=hidden)
    assert_close(output, alone)
    output.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in attention.parameters())


def test_gradients_of_learned_phrases():
    x, _ = inputs(batch=1, length=3)
    attention = layer(phrases="learned", expectation="exact")
    names, weights = zip(*attention.phrase_gates.named_parameters(prefix="phrase_gates"), strict=True)

    def attend(x, *weights):
        call = {"is_causal": True, "need_weights": False}
        return torch.func.functional_call(attention, dict(zip(names, weights, strict=True)), (x, x, x), call)[
            0
        ]

    assert torch.autograd.gradcheck(attend, (x.requires_grad_(), *weights), fast_mode=True)


def test_models_that_learn_phrases_decode_step_by_step_as_at_once():
    target = torch.randint(4, 20, (3, 6))
    causal = LanguageModel(LanguageModelConfig(**SMALL, num_layers=3, attention="Dec(MW,Tree)@2-3")).eval()
    check_steps(causal, causal.begin(target[:, :2]), target[:, 2:], causal(target)[:, 2:])
    source = torch.randint(4, 20, (3, 7))
    source[1, 4:] = 0
    model = translator("Enc(AW,Tree)-Dec(AW,Tree)@all")
    check_steps(model, model.begin(source), target, model(source, target))


def test_learned_phrases_keep_words_whole():
    learned = Classifier(ClassifierConfig(**SMALL, attention="Enc(AW,Tree)")).eval()
    given = Classifier(ClassifierConfig(**SMALL, attention="Enc(AW,Phr)")).eval()
    given.load_state_dict(learned.state_dict(), strict=False)
    tokens = torch.randint(4, 20, (2, 8))
    assert not torch.allclose(learned(tokens), given(tokens, gates=torch.zeros(2, 7)))
    # the text is one word
    learned.embedding.word_starts.zero_()
    assert_close(learned(tokens), given(tokens, gates=torch.zeros(2, 7)))
