from collections import Counter

import pytest
import torch

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.sampling import draw, sample
from samples.toy_model import Toy


def test_the_same_seed_gives_the_same_paths_in_any_batch():
    toy = Toy(6)
    limits = [9, 0, 4, 7]
    first = sample(toy, toy.begin(range(4), limits), Decoding(seed=5, n_best=3, temperature=1.0))
    assert first == sample(toy, toy.begin(range(4), limits), Decoding(seed=5, n_best=3, temperature=1.0))
    assert first != sample(toy, toy.begin(range(4), limits), Decoding(seed=6, n_best=3, temperature=1.0))
    for sentence, limit in enumerate(limits):
        (alone,) = sample(
            toy, toy.begin([sentence], [limit]), Decoding(seed=5 + sentence, n_best=3, temperature=1.0)
        )
        assert alone == first[sentence]


def test_paths_are_drawn_as_often_as_they_are_probable():
    toy = Toy(2, spread=1.0)
    draws = 4000
    (found,) = sample(toy, toy.begin([3], [2]), Decoding(seed=0, n_best=draws, temperature=1.0))
    allowed = {}  # what forbids padding and opening renormalises
    for tokens in {h.tokens for h in found}:
        probability, prefix = 1.0, (1,)
        for position, token in enumerate((*tokens, 2)):
            logits = toy.logits(3, prefix)
            logits[:2] = -torch.inf
            probability *= 1.0 if position == 2 else logits.softmax(-1)[token].item()
            prefix = (*prefix, token)
        allowed[tokens] = probability
    assert len(allowed) == 7
    assert sum(allowed.values()) == pytest.approx(1.0)
    counts = Counter(h.tokens for h in found)
    for tokens, probability in allowed.items():
        five_sigma = 5 * (draws * probability * (1 - probability)) ** 0.5
        assert abs(counts[tokens] - draws * probability) < five_sigma


@pytest.mark.parametrize(
    "cut", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-4}, {"temperature": 1e-320}]
)
def test_the_narrowest_cut_is_greedy(cut):
    toy = Toy(6)
    found = sample(toy, toy.begin(range(5), [8] * 5), Decoding(seed=1, **{"temperature": 1.0, **cut}))
    assert [h.tokens for (h,) in found] == [
        h.tokens for (h,) in beam_search(toy, toy.begin(range(5), [8] * 5), Decoding(beam=1))
    ]


def test_cuts_keep_what_they_say():
    logits = torch.tensor([0.05, 0.4, 0.25, 0.3]).log()
    noise = torch.linspace(0, 0.9999, 200)
    drawn = lambda **cut: set(draw(logits.expand(200, 4), noise, **cut).tolist())  # noqa: E731
    assert drawn(top_k=None, top_p=1.0) == {0, 1, 2, 3}
    assert drawn(top_k=3, top_p=1.0) == {1, 2, 3}
    assert drawn(top_k=None, top_p=0.69) == {1, 3}
    assert drawn(top_k=None, top_p=0.71) == {1, 2, 3}
    # top_p is taken of what top_k leaves: 0.4 / 0.7 is more than half.
    assert drawn(top_k=2, top_p=0.5) == {1}
    assert drawn(top_k=None, top_p=0.5) == {1, 3}


def test_forbidden_tokens_are_never_drawn():
    toy = Toy(1, end_bias=-20.0)
    found = sample(toy, toy.begin(range(3), [5] * 3), Decoding(seed=0, n_best=4, temperature=50.0))
    assert {token for group in found for h in group for token in h.tokens} == {3}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"temperature": 0.0}, "temperature=0 is beam search"),
        ({"temperature": float("nan")}, "temperature=nan is not finite"),
        ({"temperature": float("inf")}, "temperature=inf is not finite"),
        ({"top_k": 0}, "top_k=0 is below 1"),
        ({"top_p": 0.0}, "top_p=0.0 is not above 0"),
        ({"n_best": 0}, "n_best=0 is not between 1 and 10,000"),
    ],
)
def test_bad_options_are_named(option, message):
    toy = Toy(3)
    with pytest.raises(ValueError, match=message):
        sample(toy, toy.begin([0], [3]), Decoding(**{"temperature": 1.0, **option}))


def test_a_model_that_is_not_finite_is_named():
    toy = Toy(3, spread=float("nan"))
    with pytest.raises(ValueError, match="every output has probability zero or NaN"):
        sample(toy, toy.begin([0], [3]), Decoding(seed=0, temperature=1.0))
