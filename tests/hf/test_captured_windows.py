"""Windows that were added to a transformers model, captured while it runs."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

import diffwindow
from diffwindow.hf import add_windows

SIZES = {"vocab_size": 50, "pad_token_id": 0}


def random_windows(model):
    """Open the windows: an identity would show plain attention."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "added_window" in name:
            nn.init.normal_(parameter, std=0.7)
    return model.eval()


def bert(attention):
    torch.manual_seed(0)
    config = BertConfig(
        **SIZES, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return random_windows(add_windows(BertModel(config), attention))


def gpt2(attention):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    return random_windows(add_windows(GPT2LMHeadModel(config), attention))


@pytest.mark.parametrize("attention", ["Enc(AW)@2", "Enc(MW)@2", "Enc(AW,Seg=2)@2"])
def test_an_encoder_without_its_padding(attention):
    model, ids = bert(attention), torch.tensor([[5, 6, 7, 8]])
    with diffwindow.capture(model) as alone, torch.no_grad():
        model(ids, attention_mask=torch.ones(1, 4, dtype=torch.long))
    padded = torch.tensor([[5, 6, 7, 8, 0, 0]])
    with diffwindow.capture(model, tokens=list("abcd")) as trace, torch.no_grad():
        model(padded, attention_mask=(padded != 0).long())
    (maps,) = trace.layers
    assert (maps.role, maps.layer, maps.weights.shape) == ("Enc", 2, (2, 4, 4))
    assert trace.tokens == {"text": list("abcd")}
    np.testing.assert_allclose(maps.window, alone.layers[0].window, atol=1e-5)
    assert maps.segment_size == (2 if "Seg" in attention else 1)


@pytest.mark.parametrize("attention", ["Dec(AW)@1", "Dec(MW)@1"])
def test_the_weights_are_those_that_the_model_uses(attention):
    model = gpt2(attention)
    seen = {}
    window = model.transformer.h[0].attn.added_window
    window.register_forward_hook(lambda _, args, output: seen.update(v=args[2], output=output))
    with diffwindow.capture(model) as trace, torch.no_grad():
        model(torch.tensor([[5, 6, 7, 8, 9]]))
    maps = trace["Dec", 1]
    np.testing.assert_allclose(maps.weights @ seen["v"][0].numpy(), seen["output"][0], atol=1e-5)
    assert not np.triu(maps.window, 1).any()


def test_generating_gives_a_row_per_token():
    model = gpt2("Dec(MW)@all")
    with diffwindow.capture(model) as trace:
        found = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, min_new_tokens=4)
    with diffwindow.capture(model) as whole, torch.no_grad():
        model(found[:, :-1])
    assert trace["Dec", 2].window.shape == (2, 6, 6)
    np.testing.assert_allclose(trace["Dec", 2].window, whole["Dec", 2].window, atol=1e-5)


def test_an_encoder_and_decoder_have_three_roles():
    torch.manual_seed(0)
    config = MarianConfig(
        **SIZES, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_start_token_id=0,
        eos_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    model = random_windows(add_windows(MarianMTModel(config), "Enc(AW)-Cr(AW)-Dec(MW)"))
    with diffwindow.capture(model) as trace, torch.no_grad():
        model(torch.tensor([[5, 6, 7, 8]]), decoder_input_ids=torch.tensor([[1, 5, 6]]))
    shapes = {maps.role: maps.weights.shape for maps in trace.layers}
    assert shapes == {"Enc": (2, 4, 4), "Cr": (2, 3, 4), "Dec": (2, 3, 3)}
    assert trace.to_html().startswith("<!doctype html>")
