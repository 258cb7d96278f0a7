"""Intervals and verdicts, against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from diffwindow.evaluation.intervals import (
    accuracy,
    accuracy_by,
    agreeing_pairs,
    difference,
    gain_interval,
    interval_from_scores,
    mcnemar,
    student_quantile,
    summary,
    verdict,
)
from diffwindow.tasks.metrics import accuracy_of, bleu_of


def test_wilson_interval_by_hand():
    """Of 10 with 9 right and z = 1.959964: (0.9 + 0.19207 ± 1.959964 √(0.009 + 0.0096036)) / 1.38415."""
    found = accuracy(9, 10)
    assert (found.value, found.correct, found.total) == (0.9, 9, 10)
    assert found.low == pytest.approx(0.5958, abs=1e-4)
    assert found.high == pytest.approx(0.9821, abs=1e-4)


@given(total=st.integers(1, 10_000), share=st.floats(0, 1))
def test_the_interval_holds_the_share_and_solves_its_equation(total, share):
    """A bound is the share p from which the observed p̂ is z deviations away: (p̂ − p)² = z² p(1 − p)/n."""
    correct = round(share * total)
    found = accuracy(correct, total)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    for bound in (found.low, found.high):
        if 1e-9 < bound < 1 - 1e-9:
            away = (found.value - bound) ** 2 / (bound * (1 - bound) / total)
            assert away == pytest.approx(1.959963984540054**2, rel=1e-4)


def test_no_answers_have_no_accuracy():
    with pytest.raises(ValueError, match="0 right answers of 0"):
        accuracy(0, 0)


def test_groups_are_those_that_occur():
    right = np.array([True, False, True, True])
    found = accuracy_by(right, np.array([2, 0, 0, 2]))
    assert {group: (one.correct, one.total) for group, one in found.items()} == {0: (1, 2), 2: (2, 2)}


def test_mcnemar_by_hand():
    """Eight disagreements, one of them ours to lose: 2 (1 + 8) / 2⁸."""
    right = np.array([True] * 7 + [False] + [True] * 50)
    other = np.array([False] * 7 + [True] + [True] * 50)
    assert mcnemar(right, other) == mcnemar(other, right) == 18 / 256


def test_mcnemar_of_equal_models_is_one_and_of_thousands_does_not_overflow():
    right = np.arange(6000) % 2 == 0
    assert mcnemar(right, right) == mcnemar(right, ~right) == 1.0
    assert 0 <= mcnemar(np.ones(6000, bool), np.zeros(6000, bool)) < math.exp(-1000) + 1e-300


def test_one_seed_has_no_interval():
    found = summary([80.0])
    assert (found.mean, found.deviation, found.reach, found.count) == (80.0, None, None, 1)


def test_the_interval_is_student_s():
    # 0, 0, 2, 2: s = 2/√3, so t s / √4 = t / √3, with three degrees of freedom
    assert summary([0.0, 0.0, 2.0, 2.0]).reach == pytest.approx(3.1824 / 3**0.5, rel=1e-4)


def test_fewer_than_four_seeds_have_a_deviation_and_no_interval():
    found = summary([1.0, 2.0, 3.0])
    assert (found.deviation, found.reach) == (1.0, None)


def test_differences_pair_the_seeds_that_both_have():
    found = difference({1: 81.0, 2: 83.0, 4: 0.0}, {1: 80.0, 2: 81.0, 3: 99.0})
    assert (found.mean, found.count) == (1.5, 2)
    assert difference({1: 80.0}, {2: 80.0}) is None


@pytest.mark.parametrize(
    ("gain", "reach", "seeds", "paper", "expected"),
    [
        (1.0, 0.25, 3, 2.8, "agrees"),
        (-1.0, 0.25, 3, 2.8, "contradicts"),
        (0.3, 2.7, 3, 2.8, "not told apart"),
        (-1.0, 0.25, 3, -2.37, "agrees"),
        # one seed says nothing, however many examples there are
        (1.0, 0.25, 1, 2.8, "not told apart"),
        (1.0, None, 2, 2.8, "not told apart"),
    ],
)
def test_verdicts(gain, reach, seeds, paper, expected):
    assert verdict(gain, reach, seeds, paper) == expected


def test_pairs_that_the_paper_ties_are_left_out():
    assert agreeing_pairs({"a": {1: 1.0}, "b": {1: 2.0}}, {"a": 3.0, "b": 3.0}) == (0, 0)


def test_pairs_are_compared_over_the_seeds_that_both_have():
    ours = {"a": {1: 1.0, 2: 9.0}, "b": {1: 2.0}, "c": {3: 0.0}}
    # seed 1 alone: b is above a; c shares no seed with either
    assert agreeing_pairs(ours, {"a": 1.0, "b": 2.0, "c": 3.0}) == (1, 1)


def mean_of(totals):
    return totals[..., 0] / totals[..., 1]


def terms_of(values):
    """Give values [seeds, examples] the form that `mean_of` takes."""
    return np.stack([values, np.ones_like(values)], axis=-1)


def test_fewer_than_one_degree_of_freedom_is_an_error():
    with pytest.raises(ValueError, match="fewer than 1"):
        student_quantile(0.5)


def test_one_seed_has_the_error_of_scipy_s_paired_bootstrap():
    rng = np.random.default_rng(1)
    ours, base = rng.random((2, 300)) < np.array([[0.9], [0.7]])
    found = gain_interval(terms_of(ours[None]), terms_of(base[None]), accuracy_of, replicates=4000)
    scipy = stats.bootstrap(
        (ours, base),
        lambda x, y, axis: 100 * (x.mean(axis) - y.mean(axis)),
        paired=True,
        n_resamples=4000,
        rng=np.random.default_rng(2),
    )
    # each error is itself estimated, with a relative deviation of 1/√8000
    assert found.examples_error == pytest.approx(scipy.standard_error, rel=0.05)
    assert found.gain == pytest.approx(100 * (ours.mean() - base.mean()))
    assert (found.seeds_error, found.seeds, found.examples) == (None, 1, 300)
    assert found.reach == pytest.approx(1.968 * found.examples_error, rel=1e-3)


def test_examples_that_all_agree_leave_student_s_interval_over_seeds():
    gains = np.array([1.0, 2.0, 4.0])
    flat = np.repeat(gains[:, None], 50, axis=1)
    found = gain_interval(terms_of(flat), terms_of(np.zeros_like(flat)), mean_of, replicates=50)
    low, high = stats.t.interval(0.95, 2, gains.mean(), stats.sem(gains))
    assert found.examples_error == pytest.approx(0.0, abs=1e-12)
    assert (found.gain - found.reach, found.gain + found.reach) == pytest.approx((low, high))
    assert found.degrees == pytest.approx(2.0)


def test_the_interval_is_never_narrower_than_that_over_seeds_alone():
    rng = np.random.default_rng(8)
    gains = np.array([[0.9], [1.3]]) + rng.normal(size=100)
    found = gain_interval(terms_of(gains), terms_of(np.zeros_like(gains)), mean_of, replicates=200)
    assert found.seeds_error == pytest.approx(0.2)
    assert found.reach == pytest.approx(stats.t.ppf(0.975, 1) * 0.2, rel=1e-5)


def test_seeds_that_all_agree_leave_the_error_of_the_examples():
    values = np.random.default_rng(3).normal(size=400)
    same = np.repeat(values[None], 4, axis=0)
    found = gain_interval(terms_of(same), terms_of(np.zeros_like(same)), mean_of, replicates=4000)
    assert found.seeds_error == 0.0
    assert found.reach == pytest.approx(1.966 * values.std() / 20, rel=0.05)


def test_two_rows_that_err_on_the_same_examples_are_compared_by_the_rest():
    """Pairing: what both rows have in common is no error of their difference."""
    hard = np.random.default_rng(4).normal(size=(1, 500)).repeat(3, axis=0)
    found = gain_interval(terms_of(hard + 1.0), terms_of(hard), mean_of, replicates=50)
    assert (found.gain, found.reach) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))


def test_the_same_outcomes_give_the_same_interval():
    counts = np.random.default_rng(5).integers(1, 9, size=(2, 2, 40, 10))
    counts[..., 2:6] = np.minimum(counts[..., 2:6], counts[..., 6:])
    first, second = (gain_interval(*counts, bleu_of, replicates=30) for _ in range(2))
    assert first == second
    assert np.isfinite(first.reach)


def test_an_interval_without_outcomes_is_wider_than_one_with_them():
    """Rows that err on the same examples: pairing knows it, accuracies alone do not."""
    rng = np.random.default_rng(7)
    hard = rng.random(1000) < 0.3
    ours, base = (~hard & (rng.random((3, 1000)) < rate) for rate in (0.99, 0.95))
    paired = gain_interval(terms_of(ours), terms_of(base), accuracy_of)
    alone = interval_from_scores(100 * ours.mean(1), 100 * base.mean(1), 1000)
    assert alone.gain == pytest.approx(paired.gain)
    assert alone.reach > paired.reach
    # 50 % against 50 %, each ± 1.96 · √(0.25/n): together √2 of it
    assert interval_from_scores([50.0], [50.0], 10_000).reach == pytest.approx(1.96 * 0.5 * 2**0.5, rel=1e-3)


def test_accuracies_on_endless_examples_leave_student_s_interval():
    found = interval_from_scores([81.0, 82.0, 84.0], [80.0, 80.0, 80.0], 10**12)
    assert found.reach == pytest.approx(4.3027 * stats.sem([1.0, 2.0, 4.0]), rel=1e-4)


def test_outcomes_of_other_examples_cannot_be_paired():
    with pytest.raises(ValueError, match="cannot be paired"):
        gain_interval(np.ones((1, 4, 2)), np.ones((1, 5, 2)), mean_of)


@pytest.mark.parametrize(
    ("seeds", "between"),
    [
        (5, 0.05),
        *(
            pytest.param(seeds, between, marks=pytest.mark.slow)
            for seeds in (2, 3, 5, 10)
            for between in (0.0, 0.02, 0.1)
        ),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(seeds, between):
    """Simulate gains of zero: seeds, examples and both together vary; 95 % of intervals must hold zero.

    400 trials leave a standard error of 1.1 points. Few seeds that agree have too wide an interval rather
    than too narrow a one. An interval over examples alone would hold zero in 50 to 80 %.
    """
    rng = np.random.default_rng(6)
    trials, examples, held = 400, 200, 0
    for _ in range(trials):
        gains = between * rng.normal(size=(seeds, 1)) + 0.2 * rng.normal(size=examples)
        gains = gains + 0.5 * rng.normal(size=(seeds, examples))
        found = gain_interval(terms_of(gains), terms_of(np.zeros_like(gains)), mean_of, replicates=60)
        held += abs(found.gain) <= found.reach
    assert 0.92 <= held / trials <= (1.0 if seeds == 2 else 0.99)
