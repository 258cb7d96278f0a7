"""Intervals and verdicts, against values worked out by hand."""

import pytest

from diffwindow.reproduce.statistics import agreeing_pairs, difference, summary, verdict


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
