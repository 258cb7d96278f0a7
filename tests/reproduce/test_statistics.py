"""Intervals and verdicts, against values worked out by hand."""

import pytest

from diffwindow.reproduce.statistics import agreeing_pairs, difference, summary, verdict


def test_one_seed_has_no_interval():
    found = summary([80.0])
    assert (found.mean, found.deviation, found.reach, found.count) == (80.0, None, None, 1)


def test_the_interval_is_student_s():
    # two values 1 apart: s = 1/√2, so t s / √2 = t / 2
    assert summary([1.0, 2.0]).reach == pytest.approx(12.706 / 2)


def test_more_seeds_than_the_table_of_quantiles_use_its_last():
    values = [0.0, 1.0] * 30
    found = summary(values)
    assert found.reach == pytest.approx(2.042 * found.deviation / 60**0.5)


def test_differences_pair_the_seeds_that_both_have():
    found = difference({1: 81.0, 2: 83.0, 4: 0.0}, {1: 80.0, 2: 81.0, 3: 99.0})
    assert (found.mean, found.count) == (1.5, 2)
    assert difference({1: 80.0}, {2: 80.0}) is None


@pytest.mark.parametrize(
    ("values", "paper", "expected"),
    [
        ([1.0, 1.1, 0.9], 2.8, "agrees"),
        ([-1.0, -1.1, -0.9], 2.8, "contradicts"),
        ([1.0, -1.1, 0.9], 2.8, "not told apart"),
        ([1.0], 2.8, "not told apart"),
        ([-1.0, -1.1, -0.9], -2.37, "agrees"),
    ],
)
def test_verdicts(values, paper, expected):
    assert verdict(summary(values), paper) == expected


def test_nothing_is_said_of_rows_that_share_no_seed():
    assert verdict(None, 1.0) == "not told apart"


def test_pairs_that_the_paper_ties_are_left_out():
    assert agreeing_pairs({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 3.0}) == (0, 0)
