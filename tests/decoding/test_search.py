"""The searches on real models: what they return is what the whole, uncached model says of it."""

import itertools

import pytest
import torch

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.sampling import sample
from diffwindow.decoding.search import start_continuation, start_translation
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.models.translator import Translator, TranslatorConfig
from samples.toy_model import FIRST_WORD, Toy

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
        lambda model, start: beam_search(model, start, Decoding(beam=4, n_best=3, length_penalty=1.0)),
        lambda model, start: sample(
            model, start, Decoding(seed=3, n_best=3, top_p=0.9, length_penalty=1.0, temperature=1.0)
        ),
        lambda model, start: beam_search(model, start, Decoding(beam=1, length_penalty=1.0)),
    ],
    ids=["beam", "sample", "greedy"],
)
def test_scores_are_those_of_the_uncached_model(translator, source, search):
    found = search(translator, start_translation(translator, source, extra=3))
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
    together = beam_search(translator, start_translation(translator, source), Decoding(beam=4, n_best=2))
    for row, length in enumerate(LENGTHS):
        start = start_translation(translator, source[row : row + 1, :length])
        (alone,) = beam_search(translator, start, Decoding(beam=4, n_best=2))
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-4)


@pytest.mark.parametrize("attention", ["Global", "Dec(MW)", "Dec(Rel)"])
def test_a_language_model_continues_padded_prompts(attention):
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(**SIZES, num_layers=2, attention=attention)).eval()
    prompt = torch.randint(4, 30, (3, 6))
    mask = torch.arange(6) >= torch.tensor([[0], [3], [5]])
    found = beam_search(model, start_continuation(model, prompt, mask, limit=5), Decoding(beam=3, n_best=2))
    for row, skipped in enumerate([0, 3, 5]):
        for hypothesis in found[row]:
            text = torch.cat([prompt[row, skipped:], torch.tensor(hypothesis.tokens, dtype=torch.long)])
            with torch.no_grad():
                logits = model(text[None])[0, 6 - skipped - 1 :]
            assert hypothesis.log_prob == pytest.approx(whole_log_prob(logits, hypothesis), abs=1e-3)


def test_prompts_that_cannot_be_continued_are_refused():
    model = LanguageModel(LanguageModelConfig(**SIZES))
    with pytest.raises(ValueError, match="the prompts are empty"):
        start_continuation(model, torch.empty(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="a prompt ends in padding"):
        start_continuation(model, torch.ones(1, 2, dtype=torch.long), torch.tensor([[True, False]]))


def repeats(tokens, size):
    grams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
    return len(grams) != len(set(grams))


@pytest.mark.parametrize(("min_length", "ngram"), [(0, 1), (0, 2), (3, 0), (2, 2), (1, 3)])
def test_an_exhaustive_search_finds_all_that_the_constraints_allow_and_nothing_else(min_length, ngram):
    toy, limit, words = Toy(3), 4, range(FIRST_WORD, FIRST_WORD + 3)
    every = [t for n in range(limit + 1) for t in itertools.product(words, repeat=n)]
    allowed = {t for t in every if len(t) >= min_length and not (ngram and repeats(t, ngram))}
    constraints = {"min_new_tokens": min_length, "no_repeat_ngram": ngram}
    beam = len(every)
    (found,) = beam_search(toy, toy.begin([7], [limit]), Decoding(beam=beam, n_best=beam, **constraints))
    assert {hypothesis.tokens for hypothesis in found} == allowed
    for hypotheses in sample(
        toy, toy.begin([7, 8], [limit] * 2), Decoding(n_best=50, temperature=1.0, **constraints)
    ):
        assert {hypothesis.tokens for hypothesis in hypotheses} <= allowed


def test_the_limit_comes_before_the_least_length():
    toy = Toy(2)
    ((hypothesis,),) = beam_search(toy, toy.begin([3], [2]), Decoding(beam=1, min_new_tokens=9))
    assert len(hypothesis.tokens) == 2


def test_an_output_may_end_early_when_no_token_is_left():
    toy = Toy(2)
    ((hypothesis,),) = beam_search(
        toy, toy.begin([3], [9]), Decoding(beam=1, min_new_tokens=5, no_repeat_ngram=1)
    )
    assert sorted(hypothesis.tokens) == [FIRST_WORD, FIRST_WORD + 1]


def test_constraints_below_zero_are_refused():
    with pytest.raises(ValueError, match="no_repeat_ngram=-1 is below 0"):
        Decoding(no_repeat_ngram=-1)
