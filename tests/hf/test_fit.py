"""Windows fitted to models: costs against direct enumeration, what a fit keeps and gives, wrong input."""

import pytest
import torch
import transformers as t
from tiny import SIZES, llama, mistral, model_of, tokens
from torch.testing import assert_close

from diffwindow.hf import (
    add_windows,
    fit_windows,
    freeze_base,
    load_windows,
    remove_windows,
    save_windows,
    windows_of,
)
from diffwindow.hf.fit import cut_blocks, span_adapters
from diffwindow.hf.span_costs import record_costs, span_costs, span_shares
from diffwindow.hf.span_fit import fit_spans, static_choices, unit_costs
from diffwindow.hf.windows import causal_places
from diffwindow.models.weights import ModelFileError

CHOICES = (1, 2, 4, 8)


def text(length=160, seed=0):
    return tokens(1, length, seed)[0]


def fit(model, share=0.5, **options):
    return fit_windows(model, text(), share, **({"tokens": 160, "block": 32, "sinks": 2} | options))


def direct_cost(weights, values, gradient, query, span, sinks):
    """½ (g · Δo)² of one query, from the outputs themselves."""
    kept = [j for j in range(query + 1) if j > query - span or j < sinks]
    inside = weights[kept] / weights[kept].sum()
    change = inside @ values[kept] - weights @ values
    return 0.5 * (gradient @ change) ** 2


@pytest.mark.parametrize("sinks", [0, 1, 3])
def test_costs_are_those_of_each_window_alone(sinks):
    generator = torch.Generator().manual_seed(0)
    position = torch.tensor([0, 1, 5, 9])
    scores = torch.randn(4, 10, generator=generator, dtype=torch.float64)
    scores.masked_fill_(torch.arange(10) > position[:, None], float("-inf"))
    weights = scores.softmax(-1)
    values, gradients = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (10, 4))
    costs = span_costs(weights, gradients @ values.mT, position, CHOICES, sinks)
    for row, query in enumerate(position.tolist()):
        expected = [
            direct_cost(weights[row, : query + 1], values[: query + 1], gradients[row], query, span, sinks)
            for span in CHOICES
        ]
        assert_close(costs[row, :-1], torch.stack(expected))
    assert not costs[:, -1].any()


@pytest.mark.parametrize("peak", [10.0, 25.0, 40.0])
def test_costs_of_windows_that_hide_nearly_all_weight_are_right(peak):
    """What is left is renormalised from what it holds, not from what the rest leaves of one."""
    scores = torch.tensor([[0.0, 0.0, 0.0, 0.0, peak, 0.0, 1.0, 2.0]])
    gains = torch.tensor([[1.0, 2.0, 3.0, 1.0, 2.0, -1.0, 0.5, 1.0]])
    weights = scores.softmax(-1)
    costs = span_costs(weights, gains, torch.tensor([7]), (1, 2), sinks=2)
    # gains are g · v, so they are the values of a gradient of one
    row, values, one = weights[0].double(), gains[0, :, None].double(), torch.ones(1).double()
    expected = [direct_cost(row, values, one, 7, span, sinks=2) for span in (1, 2)]
    assert_close(costs[0, :-1].double(), torch.stack(expected), rtol=1e-5, atol=1e-7)


def test_costs_of_a_model_come_from_its_gradients():
    """The recorded costs of a layer are those of its own queries, keys, values and gradients."""
    model, block = model_of("llama"), text(24)
    attention = model.model.layers[1].self_attn
    kept = {}
    attention.q_proj.register_forward_hook(lambda _, __, out: kept.update(q=out))
    attention.v_proj.register_forward_hook(lambda _, __, out: kept.update(v=out))

    def keep_heads(_, args):
        args[0].retain_grad()
        kept.update(heads=args[0])

    attention.o_proj.register_forward_pre_hook(keep_heads)
    model.set_attn_implementation("eager")
    found = model(block[None], output_attentions=True)
    torch.nn.functional.cross_entropy(found.logits[0, :-1], block[1:], reduction="sum").backward()
    weights = found.attentions[1][0].detach()
    gradient = kept["heads"].grad[0].view(24, 4, 4).transpose(0, 1)
    values = kept["v"][0].view(24, 2, 4).transpose(0, 1).repeat_interleave(2, dim=0).detach()
    model.set_attn_implementation("sdpa")
    recorded = record_costs(model, causal_places(model), block[None], sinks=2)
    rows = recorded.position
    expected = span_costs(weights[:, rows], (gradient @ values.mT)[:, rows], rows, recorded.choices, 2)
    assert_close(recorded.layers[1].costs, expected, rtol=1e-3, atol=1e-7)
    q = kept["q"][0].view(24, 4, 4).transpose(0, 1)[:, rows]
    assert_close(recorded.layers[1].q.float(), q, rtol=1e-2, atol=1e-2)


def test_costs_are_the_same_however_many_queries_are_tabulated_at_once(monkeypatch):
    model, block = model_of("llama"), text(40)
    whole = record_costs(model, causal_places(model), block[None], sinks=2)
    monkeypatch.setattr("diffwindow.hf.span_costs.ROWS", 7)
    in_parts = record_costs(model, causal_places(model), block[None], sinks=2)
    assert len(in_parts.position) == 40
    for expected, layer in zip(whole.layers, in_parts.layers, strict=True):
        assert_close(layer.costs, expected.costs, rtol=1e-3, atol=1e-7)
        assert torch.equal(layer.q, expected.q)


def test_static_choices_spend_the_share_where_it_gains_most():
    """A window without costs gets the shortest span; what prices leave over is spent."""
    shares = torch.tensor([0.1, 0.5, 1.0])
    means = torch.tensor([[[0.0, 0.0, 0.0], [9.0, 8.9, 0.0], [5.0, 1.0, 0.0]]])
    chosen, _ = static_choices(means, shares, 0.7)
    assert chosen.tolist() == [[0, 2, 2]]
    chosen, _ = static_choices(means, shares, 0.55)
    assert chosen.tolist() == [[0, 2, 1]]
    # a price alone would leave the second window short: its next span but one gains most
    chosen, _ = static_choices(means, shares, 0.4)
    assert chosen.tolist() == [[0, 2, 0]]


@pytest.mark.parametrize("per", ["head", "kv_group"])
@pytest.mark.parametrize("spans", ["head", "query", "query-mlp"])
def test_fits_predict_what_their_windows_cost_and_take(spans, per):
    """The parameters choose, for the recorded queries, spans of the share and the cost that the fit tells."""
    model = model_of("llama")
    recorded = record_costs(model, causal_places(model), text().view(5, 32), sinks=2)
    allocation = fit_spans(recorded, 0.5, spans=spans, per=per, num_groups=2)
    assert allocation.share <= 0.5
    fit(model, spans=spans, per=per)
    shares, costs, taken = recorded.shares(), 0.0, []
    for layer, window, state in zip(recorded.layers, span_adapters(model), allocation.states, strict=True):
        window.load_state_dict(state)
        of_units = unit_costs(layer, window.units).costs
        if spans == "head":
            chosen = window.bias.argmax(-1)[:, None].expand(of_units.shape[:2])
        else:
            chosen = window.logits(layer.q[None].float(), recorded.position[None])[0].argmax(-1)
        costs += float(of_units.gather(-1, chosen[..., None]).mean((1, 2)).sum())
        taken.append(float(shares.expand(window.units, -1, -1).gather(-1, chosen[..., None]).mean()))
    assert sum(taken) / len(taken) == pytest.approx(allocation.share, abs=1e-3)
    assert costs == pytest.approx(allocation.predicted, rel=1e-2)


def test_spans_of_queries_cost_less_than_spans_of_heads():
    model = model_of("llama")
    recorded = record_costs(model, causal_places(model), text(640).view(20, 32), sinks=2)
    of_heads, of_queries = (
        fit_spans(recorded, 0.5, spans=spans, per="head", num_groups=2) for spans in ("head", "query")
    )
    assert of_queries.predicted < of_heads.predicted


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_a_fit_measures_and_is_removed_without_a_trace(name):
    model = model_of(name)
    state = {key: x.clone() for key, x in model.state_dict().items()}
    before = model(tokens()).logits
    fitted = fit(model)
    assert 0.3 < fitted.share < 0.7
    assert fitted.after.loss != fitted.before.loss
    assert len(fitted.after.shares) == 2
    assert fitted.static.share == pytest.approx(0.5, abs=0.2)
    assert str(fitted).endswith(f"at {fitted.static.loss - fitted.before.loss:+.4f}")
    assert all(parameter.requires_grad for key, parameter in model.named_parameters() if key in state)
    rows = windows_of(model).rows
    assert len(rows) == 2
    assert "spans=query" in rows[0].attention
    remove_windows(model)
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.equal(model(tokens()).logits, before)
    assert {key: x.tolist() for key, x in model.state_dict().items()} == {
        key: x.tolist() for key, x in state.items()
    }


@pytest.mark.parametrize("phase", ["record", "choose", "fit 1"])
def test_an_interrupted_fit_leaves_the_model_as_it_was(phase):
    model = model_of("llama")
    before = model(tokens()).logits

    def interrupt(reached, _):
        if reached == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, progress=interrupt)
    assert not windows_of(model).rows
    assert torch.equal(model(tokens()).logits, before)


@pytest.mark.parametrize("switched_off", [torch.no_grad, torch.inference_mode])
def test_a_fit_has_gradients_where_they_are_switched_off(switched_off):
    expected, model = fit(model_of("llama")), model_of("llama")
    with switched_off():
        assert fit(model) == expected


def test_a_share_of_one_changes_nothing():
    model = model_of("llama")
    before = model(tokens()).logits
    fit(model, share=1.0)
    assert_close(model(tokens()).logits, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spans", ["head", "query", "query-mlp"])
def test_fitted_windows_are_saved_and_loaded(spans, tmp_path):
    model, x = model_of("llama"), tokens(1, 40)
    fit(model, spans=spans, per="kv_group")
    expected = model(x).logits
    save_windows(model, tmp_path / "windows")
    model.save_pretrained(tmp_path / "model")
    assert_close(load_windows(model_of("llama"), tmp_path / "windows")(x).logits, expected)
    stock = t.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert spans in str(windows_of(stock))
    assert_close(load_windows(stock, tmp_path / "model")(x).logits, expected)
    with pytest.raises(ModelFileError, match="another base"):
        load_windows(model_of("llama", seed=1), tmp_path / "windows")


def test_a_picture_is_drawn(tmp_path):
    fit(model_of("llama"), spans="head").draw(tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 1000


class Letters:
    """A tokenizer of letters."""

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [3 + ord(letter) % 30 for letter in text]}


def test_texts_may_be_strings_or_ids():
    ids = cut_blocks(["ab", "cd"], Letters(), tokens=4, block=2)
    assert torch.equal(ids, cut_blocks("abcd", Letters(), tokens=4, block=2))
    assert torch.equal(ids, cut_blocks(ids.flatten().tolist(), None, tokens=4, block=2))
    assert torch.equal(ids, cut_blocks(ids.flatten(), None, tokens=4, block=2))
    assert torch.equal(ids, cut_blocks(ids.flatten().numpy(), None, tokens=4, block=2))
    with pytest.raises(TypeError, match="texts=None are neither strings nor token ids"):
        cut_blocks(None, None, tokens=4, block=2)


@pytest.mark.parametrize("texts", [b"words", {"input_ids": [1, 2]}, [True, False]])
def test_texts_of_other_types_are_named(texts):
    with pytest.raises(TypeError, match=r"texts=.* (a bytes|a dict|neither strings)"):
        cut_blocks(texts, Letters(), tokens=4, block=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "share=0 is not above 0"),
        ({"share": 1.5}, "share=1.5 is not above 0 and at most 1"),
        ({"texts": text(40)}, "the texts have 40 tokens, and two blocks of 32 are needed"),
        ({"texts": "words"}, "pass tokenizer="),
        ({"texts": torch.zeros(2, 3)}, "pass a row of token ids"),
        ({"texts": torch.ones(160, dtype=torch.bool)}, "torch.bool tensor"),
        ({"texts": torch.ones(160, dtype=torch.int64).to_sparse()}, "pass a row of token ids"),
        ({"texts": [10**30] * 160}, f"token {10**30}, which no model knows"),
        ({"block": 10**12}, "tokens=160 do not hold two blocks of 1,000,000,000,000"),
        ({"spans": "querys"}, "did you mean 'query'"),
        ({"per": "layer"}, "per='layer'"),
        ({"sinks": -1}, "sinks=-1"),
        ({"block": 0}, "block=0"),
        ({"texts": [99] * 160}, "token 99, and LlamaForCausalLM knows tokens 0 to"),
        ({"texts": [1] * 160, "block": 80}, "block=80 is longer than the 64 positions"),
        ({"block": 5, "sinks": 4}, "block=5 leaves no key to hide beside sinks=4"),
        ({"share": 0.1}, "share=0.1 is out of reach: the query itself and sinks=2 are 0.3"),
        ({"seed": 2**64}, "does not fit into 64 bits"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    options = {"texts": text(), "tokens": 160, "block": 32, "sinks": 2} | options
    with pytest.raises(ValueError, match=message):
        fit_windows(model_of("llama"), options.pop("texts"), **options)


def no_positions():
    return t.BloomForCausalLM(t.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: model_of("bert"), "not a causal language model"),
        (lambda: model_of("t5"), "not a causal language model"),
        (lambda: mistral(4), "sliding window of 4 keys, along which the first keys would move"),
        (lambda: t.LlamaModel(t.LlamaConfig(**SIZES)), "not a causal language model"),
        (lambda: add_windows(llama(), "Dec(AW)"), "has windows already"),
        (no_positions, "attention interface"),
    ],
)
def test_models_that_cannot_be_fitted_are_named(model, message):
    with pytest.raises(ValueError, match=message):
        fit(model())


def smollm3(*rotary):
    """A SmolLM3 whose layers rotate their queries, or not."""
    return t.SmolLM3ForCausalLM(t.SmolLM3Config(**SIZES, num_key_value_heads=2, no_rope_layers=list(rotary)))


def without_rotary():
    model = llama()
    del model.model.rotary_emb
    return model


@pytest.mark.parametrize("model", [without_rotary, lambda: smollm3(0, 0)])
def test_positions_are_needed(model):
    with pytest.raises(ValueError, match="neither rotary nor absolute positions"):
        fit(model())


def test_queries_that_were_not_rotated_are_taken_as_they_are():
    """A layer without rotary positions: what is recorded is what the projection gave."""
    model, block, kept = smollm3(1, 0).eval(), text(24), {}
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.q_proj.register_forward_hook(lambda _, __, out, at=number: kept.update({at: out}))
    recorded = record_costs(model, causal_places(model), block[None], sinks=2)
    for number, layer in enumerate(recorded.layers):
        q = kept[number][0].view(24, 4, 4).transpose(0, 1)
        assert_close(layer.q.float(), q.detach(), rtol=1e-2, atol=1e-2)


def test_queries_beyond_half_precision_are_fitted():
    model, other = model_of("llama"), model_of("llama")
    for layer in other.model.layers:
        layer.self_attn.q_proj.weight.data *= 1e6
        layer.self_attn.k_proj.weight.data *= 1e-6
    expected, fitted = fit(model), fit(other)
    assert all(bool(x.isfinite().all()) for window in span_adapters(other) for x in window.parameters())
    assert fitted.after.loss == pytest.approx(expected.after.loss, rel=1e-3)


def test_a_model_that_is_not_finite_is_named():
    model = model_of("llama")
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(ValueError, match=r"block 1 of the text, in torch\.float32; look for NaN"):
        fit(model)
    assert not windows_of(model).rows
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_model_without_gradients_is_named():
    with torch.inference_mode():
        model = model_of("llama")
    with pytest.raises(ValueError, match=r"loaded under torch\.inference_mode"):
        fit(model)


def test_the_state_of_the_caller_changes_nothing():
    """Neither autocast nor the default type; modes of modules come back one by one."""
    model, other = model_of("llama"), model_of("llama").train()
    other.model.layers[0].mlp.eval()
    expected = fit(model)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            fitted = fit(other)
    finally:
        torch.set_default_dtype(torch.float32)
    assert fitted.after.loss == expected.after.loss
    assert fitted.share == pytest.approx(expected.share)
    assert other.training
    assert not other.model.layers[0].mlp.training


def test_fitted_windows_have_nothing_to_train():
    model = model_of("llama")
    fit(model)
    with pytest.raises(ValueError, match="nothing that gradients could train"):
        freeze_base(model)


def test_shares_count_the_first_keys_once():
    assert_close(span_shares(torch.tensor([3]), (1, 3), 2), torch.tensor([[0.75, 1.0, 1.0]]))
