"""The searches on real models: what they return is what the whole, uncached model says of it."""

import pytest
import torch

from diffwindow.decoding.beam import beam_search, greedy_search
from diffwindow.decoding.sampling import sample
from diffwindow.decoding.state import continuation_start, translation_start
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.models.translator import Translator, TranslatorConfig

SIZES = {"vocab_size": 30, "embed_dim": 16, "ffn_dim": 32, "num_heads": 2, "dropout": 0.0}
LENGTHS = [9, 2, 5, 7, 1, 4]


@pytest.fixture(params=["Global", "Enc(AW)-Cr(AW,Seg)-Dec(MW)", "Enc(Rel)-Cr(Gauss)-Dec(Rel)"])
def translator(request):
    torch.manual_seed(0)
    config = TranslatorConfig(**SIZES, encoder_layers=2, decoder_layers=2, attention=request.param)
    model = Translator(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # far from uniform
    return model


@pytest.fixture
def source():
    torch.manual_seed(1)
    tokens = torch.randint(4, 30, (len(LENGTHS), max(LENGTHS)))
    return tokens.masked_fill(torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None], 0)


def whole_log_prob(logits, hypothesis):
    log_probs = logits.double().log_softmax(-1)
    return sum(log_probs[i, token].item() for i, token in enumerate((*hypothesis.tokens, 2)))


@pytest.mark.parametrize(
    "search",
    [
        lambda model, start: beam_search(model, start, beam=4, n_best=3, length_penalty=1.0),
        lambda model, start: sample(model, start, seed=3, samples=3, top_p=0.9, length_penalty=1.0),
        lambda model, start: [[h] for h in greedy_search(model, start, length_penalty=1.0)],
    ],
    ids=["beam", "sample", "greedy"],
)
def test_scores_are_those_of_the_uncached_model(translator, source, search):
    found = search(translator, translation_start(translator, source, extra=3))
    for row, hypotheses in enumerate(found):
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            target = torch.tensor([[1, *hypothesis.tokens]])
            with torch.no_grad():
                logits = translator(source[row : row + 1, : LENGTHS[row]], target)[0]
            expected = whole_log_prob(logits, hypothesis)
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-3)
            assert hypothesis.score == pytest.approx(expected / (len(hypothesis.tokens) + 1), abs=1e-3)
            assert len(hypothesis.tokens) <= int(1.2 * LENGTHS[row]) + 3


def test_a_sentence_is_translated_alone_as_in_a_batch(translator, source):
    together = beam_search(translator, translation_start(translator, source), beam=4, n_best=2)
    for row, length in enumerate(LENGTHS):
        start = translation_start(translator, source[row : row + 1, :length])
        (alone,) = beam_search(translator, start, beam=4, n_best=2)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-4)


@pytest.mark.parametrize("attention", ["Global", "Dec(MW)", "Dec(Rel)"])
def test_a_language_model_continues_padded_prompts(attention):
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(**SIZES, num_layers=2, attention=attention)).eval()
    prompt = torch.randint(4, 30, (3, 6))
    mask = torch.arange(6) >= torch.tensor([[0], [3], [5]])
    found = beam_search(model, continuation_start(model, prompt, mask, limit=5), beam=3, n_best=2)
    for row, skipped in enumerate([0, 3, 5]):
        for hypothesis in found[row]:
            text = torch.cat([prompt[row, skipped:], torch.tensor(hypothesis.tokens, dtype=torch.long)])
            with torch.no_grad():
                logits = model(text[None])[0, 6 - skipped - 1 :]
            assert hypothesis.log_prob == pytest.approx(whole_log_prob(logits, hypothesis), abs=1e-3)


def test_prompts_that_cannot_be_continued_are_refused():
    model = LanguageModel(LanguageModelConfig(**SIZES))
    with pytest.raises(ValueError, match="the prompts are empty"):
        continuation_start(model, torch.empty(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="a prompt ends in padding"):
        continuation_start(model, torch.ones(1, 2, dtype=torch.long), torch.tensor([[True, False]]))
