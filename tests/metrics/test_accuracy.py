import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffwindow.metrics.accuracy import accuracy, accuracy_by, mcnemar


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
