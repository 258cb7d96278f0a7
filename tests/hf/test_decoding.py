"""Generation with random windows: every cache gives what no cache gives; padding changes nothing."""

import pytest
import torch
from tiny import MODELS, inputs_of, mistral, model_of, open_windows, outputs_of, tokens
from torch.testing import assert_close

from diffwindow.hf import add_windows

DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
SEARCHES = {
    "greedy": {"do_sample": False},
    "beam": {"do_sample": False, "num_beams": 4},
    "sampling": {"do_sample": True, "top_k": 0},
}
FAST = [("llama", "beam"), ("gpt2", "sampling"), ("t5", "greedy")]
ALL = [(name, search) for name in (*DECODERS, "bart", "marian", "m2m100", "t5") for search in SEARCHES]


def windowed(name):
    roles = MODELS[name][1]
    terms = {"Enc": "Enc(AW,Seg=2)", "Cr": "Cr(MW,Seg=2)@1-Cr(AW)@2", "Dec": "Dec(MW)@1-Dec(AW)@2"}
    return open_windows(add_windows(model_of(name), "-".join(terms[role] for role in roles)))


def generate(model, search, **options):
    torch.manual_seed(0)
    prompts = tokens(batch=2, length=5)
    return model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8, min_new_tokens=8, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True, **SEARCHES[search], **options,
    )  # fmt: skip


def check_caches(name, search, implementations):
    model = windowed(name)
    without = generate(model, search, use_cache=False)
    for implementation in implementations:
        found = generate(model, search, use_cache=True, cache_implementation=implementation)
        assert torch.equal(found.sequences, without.sequences)
        assert_close(torch.stack(found.logits), torch.stack(without.logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "search"), FAST)
def test_caches_change_nothing(name, search):
    check_caches(name, search, ["dynamic", "static"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "search"), [case for case in ALL if case not in FAST])
def test_caches_change_nothing_in_all_families(name, search):
    check_caches(name, search, ["dynamic", "static"])


def test_a_sliding_window_of_keys_is_kept():
    """Mistral's own sliding window and ours: what falls out of the cache was not seen anyway."""
    torch.manual_seed(0)
    model = open_windows(add_windows(mistral(4).eval(), "Dec(AW)@1-Dec(MW)@2"))
    without, cached = (generate(model, "greedy", use_cache=use) for use in (False, True))
    assert torch.equal(cached.sequences, without.sequences)
    assert_close(torch.stack(cached.logits), torch.stack(without.logits), rtol=1e-4, atol=1e-4)


# T5 and Marian take no position_ids: their own positions count padding on the left
PADDED = [(name, left) for name in ("bert", "llama", "gpt2") for left in (True, False)]


@pytest.mark.parametrize(("name", "left"), [*PADDED, ("t5", False), ("marian", False)])
@pytest.mark.filterwarnings("ignore:the paper has no segments in decoder")
def test_padding_changes_nothing(name, left):
    """Rotary and absolute positions need position_ids where padding is on the left."""
    model = model_of(name)
    encoder = name in ("bert", "t5", "marian")
    kind = "MW,Seg=2,Norm,Sink=3" if name == "llama" else "AW,Seg=2"
    open_windows(add_windows(model, f"{'Enc' if encoder else 'Dec'}({kind})@1", boundary_dim=3))
    x = inputs_of(name)["input_ids"]
    padding = torch.full((3, 4), 7)
    padded = torch.cat([padding, x] if left else [x, padding], dim=1)
    mask = torch.cat([torch.zeros_like(padding), torch.ones_like(x)], dim=1)
    mask = mask if left else mask.flip(1)
    options = {"input_ids": padded, "attention_mask": mask}
    if left:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    found, expected = outputs_of(name, model, **options), outputs_of(name, model)
    if name not in ("t5", "marian"):
        found = found[:, 4:] if left else found[:, :9]
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
