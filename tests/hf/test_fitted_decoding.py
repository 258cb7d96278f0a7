"""Generation with fitted windows: caches, padding and batches change nothing."""

import pytest
import torch
from test_decoding import generate
from tiny import model_of, tokens
from torch.testing import assert_close

from diffwindow import capture
from diffwindow.hf import WindowCache
from diffwindow.hf.fit import span_adapters
from diffwindow.hf.windows import add_spans
from diffwindow.models.span_adapter import SpanSettings

KINDS = [("query", "head"), ("query-mlp", "kv_group"), ("head", "kv_group")]


def fitted(name, spans="query", per="head", *, sinks=2, seed=0):
    """A model with short windows of random spans."""
    settings = SpanSettings(spans=spans, per=per, sinks=sinks, choices=(1, 2, 3, 5), block=16)
    model = add_spans(model_of(name), settings)
    generator = torch.Generator().manual_seed(seed)
    for window in span_adapters(model):
        for parameter in window.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        # none that sees everything
        window.bias.data[:, -1] -= 100.0
    return model


def test_windows_matter():
    x = tokens(1, 20)
    plain, windowed = model_of("llama")(x).logits, fitted("llama")(x).logits
    assert_close(windowed[:, :2], plain[:, :2])
    assert not torch.allclose(windowed[:, 8:], plain[:, 8:], atol=1e-2)


@pytest.mark.parametrize(("spans", "per"), KINDS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_window_is_what_its_mask_says(name, spans, per):
    """Captured weights are those of the query, its last keys and the first ones."""
    model, x = fitted(name, spans, per), tokens(2, 12)
    with capture(model, row=1) as trace:
        model(x)
    for layer in (1, 2):
        seen = torch.as_tensor(trace["Dec", layer].weights) > 0
        assert seen[..., torch.arange(12), torch.arange(12)].all()
        assert seen[..., 2:, :2].all()
        assert not seen.triu(1).any()
        assert (seen.sum(-1) <= 5 + 2).all()


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize(
    ("name", "spans", "per"), [("llama", *KINDS[0]), ("gpt2", *KINDS[1]), ("qwen3", *KINDS[2])]
)
def test_caches_change_nothing(name, spans, per, search):
    model = fitted(name, spans, per)
    without = generate(model, search, use_cache=False)
    for implementation in ("dynamic", "static"):
        found = generate(model, search, use_cache=True, cache_implementation=implementation)
        assert torch.equal(found.sequences, without.sequences)
        assert_close(torch.stack(found.logits), torch.stack(without.logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_padding_changes_nothing(name, cache):
    """Prompts of different lengths are continued in a batch as they are alone."""
    model, x = fitted(name), tokens(2, 9)
    padded = x.clone()
    padded[1, :4] = 0
    mask = (torch.arange(9) >= torch.tensor([[0], [4]])).long()
    options = {
        "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0,
        "return_dict_in_generate": True, "output_logits": True, "cache_implementation": cache,
    }  # fmt: skip
    together = model.generate(padded, attention_mask=mask, **options)
    for row, start in ((0, 0), (1, 4)):
        prompt = x[row : row + 1, start:]
        alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        assert torch.equal(together.sequences[row, 9:], alone.sequences[0, 9 - start :])
        found, expected = (torch.stack(one.logits) for one in (together, alone))
        assert_close(found[:, row], expected[:, 0], rtol=1e-4, atol=1e-4)


def test_half_precision_runs():
    model = fitted("llama").to(torch.bfloat16)
    assert model.generate(tokens(1, 5), max_new_tokens=3, min_new_tokens=3, pad_token_id=0).shape == (1, 8)


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_cache_without_what_windows_left_behind_changes_nothing(name, search):
    model = fitted(name, "head", "kv_group")
    cache, plain = WindowCache(model), generate(model, search, use_cache=True)
    found = generate(model, search, past_key_values=cache)
    assert torch.equal(found.sequences, plain.sequences)
    assert torch.equal(torch.stack(found.logits), torch.stack(plain.logits))
    assert cache.nbytes < sum(
        layer.keys.nbytes + layer.values.nbytes for layer in plain.past_key_values.layers
    )


def test_a_cache_keeps_the_first_keys_and_what_a_span_reaches():
    """After n tokens a group keeps its first 2 keys, and of span w the last w - 1: the query is one of w."""
    model = fitted("llama", "head", "kv_group")
    cache = WindowCache(model)
    model(tokens(1, 12), past_key_values=cache)
    for layer, window in zip(cache.layers, span_adapters(model), strict=True):
        assert [keys.shape[1] for keys, _ in layer.kept] == [2 + span - 1 for span in window.static_spans()]
    assert cache.get_seq_length() == 12


def test_a_cache_keeps_the_first_keys_after_padding():
    model, x = fitted("llama", "head", "kv_group"), tokens(2, 9)
    x[1, :4] = 0
    mask = (torch.arange(9) >= torch.tensor([[0], [4]])).long()
    options = {
        "attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0,
        "return_dict_in_generate": True, "output_logits": True,
    }  # fmt: skip
    plain, found = (
        model.generate(x, **options),
        model.generate(x, **options, past_key_values=WindowCache(model)),
    )
    assert torch.equal(torch.stack(found.logits), torch.stack(plain.logits))


@pytest.mark.parametrize(("spans", "per"), [("query", "kv_group"), ("head", "head")])
def test_a_cache_is_refused_for_windows_that_may_reach_back(spans, per):
    with pytest.raises(ValueError, match="may still reach any key"):
        WindowCache(fitted("llama", spans, per))
    with pytest.raises(ValueError, match="has no fitted windows"):
        WindowCache(model_of("llama"))
