"""Windows that are discrete, or none at all, at test time: in single layers and in whole models."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow import WindowAttention, add_windows, ops, remove_windows, use_window_rule
from diffwindow.attention.kinds import Attention
from diffwindow.functional import discrete_window, normalized_weights
from diffwindow.models.window_adapter import WindowAdapter
from samples.small_models import classifier, language_model, tokens, translator

pytestmark = pytest.mark.filterwarnings("ignore:the paper has no segments")
RULES = ("argmax", "half", "joint", "none")
DISCRETE = RULES[:3]


def make_attention(**options):
    torch.manual_seed(0)
    attention = WindowAttention(16, 2, dtype=torch.float64, **options).eval()
    torch.nn.init.normal_(attention.in_proj.weight, std=0.5)
    return attention


def padded(batch=2, length=7):
    x = torch.randn(batch, length, 16, dtype=torch.float64)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, :2] = True
    return x, padding


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "options",
    [
        {"window": "additive"},
        {"window": "multiplicative", "segment_size": 3},
        {"window": "multiplicative", "normalize": True, "sinks": 1},
        {"window": "multiplicative", "gate": True},
    ],
)
def test_a_rule_replaces_m_in_the_equations(options, rule):
    attention, (x, padding) = make_attention(**options), padded()
    if attention.gate is not None:
        torch.nn.init.normal_(attention.gate)
    soft = attention.inspect(x, x, key_padding_mask=padding, is_causal=True)
    ruled = make_attention(**options, window_rule=rule)
    ruled.load_state_dict(attention.state_dict())
    maps = ruled.inspect(x, x, key_padding_mask=padding, is_causal=True)
    assert_close(maps.window.phi_left, soft.window.phi_left)
    seen = torch.ones(7, 7, dtype=torch.bool).tril() & ~padding[:, None, None]
    window = torch.ones_like(soft.window.values) * seen
    if rule != "none":
        window = discrete_window(*soft.window.discrete(rule), 7).double()
    if attention.options.sinks and rule != "none":
        # the first real key, where the query sees it
        window[0, :, 2:, 2] = window[1, :, :, 0] = 1.0
    assert_close(maps.window.values, window)
    queries, keys = attention.project_self(x)
    q, k, v, _, local = attention.split_heads(queries, keys)
    score = q @ k.mT / 8**0.5
    plain = score.masked_fill(~seen, -1e9).softmax(-1) * seen
    if local is not None:
        expected = (score + local[0] @ local[1].mT / 8**0.5 * window).masked_fill(~seen, -1e9).softmax(-1)
        expected = expected * seen
    elif attention.options.normalize:
        expected = normalized_weights(score, window, mask=seen)
    else:
        expected = plain * window
    if attention.gate is not None:
        expected = torch.lerp(plain, expected, attention.gate[:, None, None])
    assert_close(maps.weights, expected)
    with_weights, _ = ruled(x, x, x, key_padding_mask=padding, is_causal=True)
    without, _ = ruled(x, x, x, key_padding_mask=padding, is_causal=True, need_weights=False)
    assert_close(without, with_weights)
    assert_close(without, attention._merge_heads(expected @ v))


def test_none_makes_a_multiplicative_window_plain_attention():
    torch.manual_seed(0)
    plain = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 2).eval()
    model = add_windows(plain, "Enc(MW)@all", init="paper")
    x = torch.randn(2, 5, 16)
    with torch.no_grad(), use_window_rule(model, "none"):
        without = model(x)
    assert not torch.allclose(without, model(x), atol=1e-3)
    assert_close(without, remove_windows(model)(x))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("attention", ["Dec(MW)@all", "Dec(AW,Seg=3)@all", "Dec(MW,Norm,Sink=2)@all"])
def test_cached_decoding_equals_the_whole_under_a_rule(attention, rule):
    model, text = language_model(attention), tokens(3, 9)
    soft = model(text)
    with use_window_rule(model, rule):
        state = model.begin(text[:, :3])
        steps = [model.step(text[:, t : t + 1], state) for t in range(3, 9)]
        whole = model(text)
    assert_close(torch.cat(steps, dim=1), whole[:, 3:])
    assert not torch.allclose(whole, soft)
    assert torch.equal(model(text), soft)


@pytest.mark.parametrize("rule", RULES)
def test_cross_attention_decodes_under_a_rule(rule):
    model = translator("Enc(AW)-Cr(AW,Seg=3)-Dec(MW)")
    source, target = tokens(2, 8), tokens(2, 6)
    source[1, :3] = 0
    with use_window_rule(model, rule):
        state = model.begin(source)
        steps = [model.step(target[:, t : t + 1], state) for t in range(6)]
        assert_close(torch.cat(steps, dim=1), model(source, target))


@pytest.mark.parametrize("rule", RULES)
def test_padding_and_the_rest_of_a_batch_change_nothing(rule):
    model, text = classifier("Enc(AW,Seg=3)@all"), tokens(3, 9)
    text[1, 5:] = 0
    text[2, :4] = 0
    with use_window_rule(model, rule):
        together = model(text)
        alone = [model(text[:1]), model(text[1:2, :5]), model(text[2:, 4:])]
    assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("rule", RULES)
def test_windows_beside_foreign_attention_have_rules(rule):
    torch.manual_seed(0)
    window = WindowAdapter(Attention("MW", normalize=True), num_heads=2, head_dim=4, init="paper").eval()
    q, v = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    with use_window_rule(window, rule):
        maps = window.maps(q, q, is_causal=True)
        assert_close(window(q, q, v, is_causal=True), maps.weights @ v)
    assert not torch.allclose(window.maps(q, q, is_causal=True).weights, maps.weights)


@pytest.mark.parametrize("rule", DISCRETE)
def test_queries_that_see_nothing_are_zero_with_zero_gradients(rule):
    q, k, v = (torch.randn(1, 2, 4, 3, requires_grad=True) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    for normalize in (False, True):
        out = ops.window_attention(
            q, k, v, ops.Boundaries(q, k, k, q), attn_mask=mask, normalize=normalize, window_rule=rule
        )
        out.sum().backward()
        assert not out[:, :, 1].any()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_rules_nest_and_end_with_their_context():
    model = make_attention(window_rule="half")
    with use_window_rule(model, "argmax"), use_window_rule(model, "none"):
        assert model.options.window_rule == "none"
    assert model.options.window_rule == "half"


@pytest.mark.usefixtures("unchecked")
def test_mistakes_get_a_sentence():
    attention, (x, _) = make_attention(window_rule="argmax"), padded()
    attention.train()
    sentence = (
        r"window_rule='argmax' is for inference, and the model is in training mode; call model.eval\(\)"
    )
    for need_weights in (True, False):
        with pytest.raises(ValueError, match=sentence):
            attention(x, x, x, need_weights=need_weights)
    with pytest.raises(ValueError, match=r"window_rule='agmax' is not one of .* did you mean 'argmax'\?"):
        use_window_rule(attention, "agmax")
    with pytest.raises(
        ValueError, match="window_rule='joint' is for models with windows, and this one has none"
    ):
        use_window_rule(torch.nn.Linear(2, 2), "joint")
    use_window_rule(torch.nn.Linear(2, 2), "soft")
    q = torch.ones(1, 1, 2, 4)
    with pytest.raises(
        ValueError, match='impl="cpu" is not available: its kernels do not support window rules'
    ):
        ops.window_attention(q, q, q, ops.Boundaries(q, q, q, q), window_rule="half", impl="cpu")
