import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import Start, bound_score, normalize_score
from samples.toy_model import FIRST_WORD, Toy

PENALTIES = [0.0, 0.6, 1.0, 2.0, -0.5]


def log_prob(toy, sentence, tokens):
    """Walk one complete hypothesis, its end included."""
    total, prefix = 0.0, (1,)
    for token in (*tokens, 2):
        total += toy.logits(sentence, prefix).log_softmax(-1)[token].item()
        prefix = (*prefix, token)
    return total


def enumerate_all(toy, sentence, limit, penalty):
    """Score every hypothesis of at most `limit` words, best first."""
    words = range(FIRST_WORD, toy.vocabulary)
    every = [t for n in range(limit + 1) for t in itertools.product(words, repeat=n)]
    scored = [(log_prob(toy, sentence, t) / (len(t) + 1) ** penalty, t) for t in every]
    return sorted(scored, reverse=True)


def plain_beam(toy, sentence, limit, beam, penalty):
    """The same search on one sentence in plain Python, to the end: no batch, no early stop."""
    live, done = [(0.0, (1,))], []
    while live:
        candidates = []
        for total, prefix in live:
            log_probs = toy.logits(sentence, prefix).log_softmax(-1).tolist()
            allowed = [2] if len(prefix) > limit else range(2, toy.vocabulary)
            candidates += [(total + log_probs[token], (*prefix, token)) for token in allowed]
        candidates.sort(reverse=True)
        chosen = candidates[: beam - len(done)]
        done += [(total / (len(p) - 1) ** penalty, p[1:-1]) for total, p in chosen if p[-1] == 2]
        live = [(total, p) for total, p in chosen if p[-1] != 2]
    return sorted(done, reverse=True)


def check_equal(found, expected):
    assert [h.tokens for h in found] == [tokens for _, tokens in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-5)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("words", "limit"), [(2, 4), (3, 3), (1, 6)])
def test_a_beam_that_holds_every_prefix_is_exhaustive(words, limit, penalty):
    toy = Toy(words)
    everything = enumerate_all(toy, 7, limit, penalty)
    beam = len(everything)
    (found,) = beam_search(
        toy, toy.begin([7], [limit]), Decoding(beam=beam, length_penalty=penalty, n_best=beam)
    )
    check_equal(found, everything)
    assert [h.log_prob for h in found] == pytest.approx([log_prob(toy, 7, h.tokens) for h in found], abs=1e-5)
    (best,) = beam_search(toy, toy.begin([7], [limit]), Decoding(beam=beam, length_penalty=penalty))
    check_equal(best, everything[:1])


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_stopping_early_and_batching_change_nothing(beam, penalty):
    toy = Toy(4, end_bias=1.0)
    sentences, limits = list(range(12)), [3, 9, 0, 1, 7, 9, 5, 2, 9, 8, 6, 4]
    for n_best in {1, beam}:
        found = beam_search(
            toy, toy.begin(sentences, limits), Decoding(beam=beam, length_penalty=penalty, n_best=n_best)
        )
        for sentence, limit, hypotheses in zip(sentences, limits, found, strict=True):
            check_equal(hypotheses, plain_beam(toy, sentence, limit, beam, penalty)[:n_best])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 6),
    penalty=st.floats(-2, 3),
    end_bias=st.floats(-3, 3),
    limits=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
def test_any_batch_matches_the_plain_search(seed, beam, penalty, end_bias, limits):
    toy = Toy(3, seed=seed, end_bias=end_bias)
    start = toy.begin(range(len(limits)), limits)
    found = beam_search(toy, start, Decoding(beam=beam, length_penalty=penalty))
    for sentence, (limit, hypotheses) in enumerate(zip(limits, found, strict=True)):
        check_equal(hypotheses, plain_beam(toy, sentence, limit, beam, penalty)[:1])


def test_greedy_takes_the_best_token_at_each_step():
    toy = Toy(5, end_bias=1.0)
    found = beam_search(toy, toy.begin(range(8), [6] * 8), Decoding(beam=1))
    for sentence, (hypothesis,) in enumerate(found):
        prefix, tokens = (1,), []
        while len(tokens) < 6:
            token = toy.logits(sentence, prefix)[2:].argmax().item() + 2
            if token == 2:
                break
            tokens.append(token)
            prefix = (*prefix, token)
        assert hypothesis.tokens == tuple(tokens)
        assert hypothesis.ended == (len(tokens) < 6)
        assert hypothesis.log_prob == pytest.approx(log_prob(toy, sentence, tokens), abs=1e-5)


def test_no_beam_beats_the_exhaustive_one():
    toy = Toy(2)
    for penalty in PENALTIES:
        (full,) = beam_search(toy, toy.begin([0], [5]), Decoding(beam=63, length_penalty=penalty))
        for beam in range(1, 10):
            (found,) = beam_search(toy, toy.begin([0], [5]), Decoding(beam=beam, length_penalty=penalty))
            assert found[0].score <= full[0].score + 1e-6


def test_finished_sentences_leave_the_batch():
    toy = Toy(3)
    beam_search(toy, toy.begin(range(10), [0] * 9 + [6]), Decoding(beam=2))
    # Nine sentences may only end at once; the tenth, alone from then on, opens two hypotheses at most.
    assert toy.rows <= 10 + 2 * (toy.steps - 1)


def test_a_certain_end_stops_the_search_at_once():
    toy = Toy(3, end_bias=50.0)
    found = beam_search(toy, toy.begin(range(4), [30] * 4), Decoding(beam=4))
    assert [h.tokens for (h,) in found] == [()] * 4
    assert toy.steps == 1


@given(
    log_probability=st.floats(-50, 0),
    cost=st.floats(0, 20),
    shortest=st.integers(1, 20),
    more=st.integers(0, 20),
    spare=st.integers(0, 20),
    penalty=st.floats(-3, 3),
)
def test_the_bound_holds_for_every_completion(log_probability, cost, shortest, more, spare, penalty):
    score = normalize_score(log_probability - cost, shortest + more, penalty)
    limit = bound_score(log_probability, shortest, shortest + more + spare, penalty)
    assert score <= limit + 1e-9 * abs(limit)


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments_are_named():
    toy = Toy(3)
    with pytest.raises(ValueError, match="n_best=3 is not between 1 and beam=2"):
        beam_search(toy, toy.begin([0], [4]), Decoding(beam=2, n_best=3))
    with pytest.raises(ValueError, match="1 limits for 2 sentences"):
        Start(toy.begin([], []).state, torch.ones(2, dtype=torch.long), torch.tensor([3]))
    with pytest.raises(ValueError, match="limit -1 is below 0"):
        toy.begin([0], [-1])


def test_an_empty_batch_gives_nothing():
    toy = Toy(3)
    assert beam_search(toy, toy.begin([], [])) == []


def test_a_model_that_is_not_finite_is_one_sentence():
    toy = Toy(3, spread=float("nan"))
    with pytest.raises(ValueError, match="every output has probability zero or NaN"):
        beam_search(toy, toy.begin([0, 1], [4, 4]), Decoding(beam=1))
