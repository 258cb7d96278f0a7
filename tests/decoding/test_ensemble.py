"""Ensembles average probabilities, in every step of every search."""

import pytest
import torch
from torch.testing import assert_close

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.ensemble import Ensemble
from diffwindow.decoding.search import start_translation
from diffwindow.models.translator import Translator, TranslatorConfig

SIZES = {"vocab_size": 12, "embed_dim": 8, "ffn_dim": 16, "num_heads": 2, "dropout": 0.0}
DEPTH = {"encoder_layers": 1, "decoder_layers": 1}


def translator(seed, **options):
    torch.manual_seed(seed)
    model = Translator(TranslatorConfig(**SIZES | DEPTH | options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # far from uniform
    return model


def test_a_hypothesis_has_the_mean_probability_of_its_tokens():
    # the members differ in depth and attention
    members = [translator(0), translator(1, attention="Enc(AW)-Cr(AW,Seg)-Dec(MW)", decoder_layers=2)]
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    found = beam_search(
        Ensemble(members), start_translation(Ensemble(members), source), Decoding(beam=3, n_best=2)
    )
    for row, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            given, labels = torch.tensor([[1, *hypothesis.tokens]]), [*hypothesis.tokens, 2]
            with torch.no_grad():
                probs = [model(source[row : row + 1], given)[0].double().softmax(-1) for model in members]
            mean = (probs[0] + probs[1]) / 2
            expected = sum(mean[i, token].log().item() for i, token in enumerate(labels))
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)


def test_an_ensemble_of_one_model_twice_is_that_model():
    model, source = translator(0), torch.tensor([[5, 6, 7, 2]])
    ((alone,),) = beam_search(model, start_translation(model, source))
    twice = Ensemble([model, model])
    ((both,),) = beam_search(twice, start_translation(twice, source))
    assert both.tokens == alone.tokens
    assert_close(both.log_prob, alone.log_prob, atol=1e-5, rtol=0)


def test_members_share_a_vocabulary():
    with pytest.raises(ValueError, match=r"vocabularies of \[12, 13\] tokens; an ensemble shares one"):
        Ensemble([translator(0), translator(0, vocab_size=13)])
