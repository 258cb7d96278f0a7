import numpy as np
import pytest

from diffwindow.metrics.window_overlap import gold_windows, inside, soft_overlap

GOLD = gold_windows(np.array([2]), np.array([4]), 8)


def test_gold_windows_hold_both_ends():
    assert GOLD.nonzero()[1].tolist() == [2, 3, 4]


def test_overlap_of_the_gold_window_is_one_and_of_a_disjoint_one_zero():
    assert soft_overlap(GOLD.astype(float), GOLD) == [1.0]
    assert soft_overlap((~GOLD).astype(float), GOLD) == [0.0]
    # everything: 3 of 8; the paper's double count does not raise it
    assert soft_overlap(np.full((1, 8), 2.0), GOLD) == [3 / 8]


def test_a_soft_window_scores_by_its_mass():
    """Half inside and none outside: Σ min = 1.5, Σ max = 3."""
    assert soft_overlap(0.5 * GOLD, GOLD) == [0.5]
    assert soft_overlap(np.full((1, 8), 0.5), GOLD) == pytest.approx(1.5 / (3 + 2.5))


def test_attention_inside_needs_no_normalisation():
    weights = np.array([[0.0, 0.1, 0.1, 0.0, 0.1, 0.1, 0.0, 0.0]])
    assert inside(weights, GOLD) == pytest.approx(0.5)
    assert inside(np.zeros((1, 8)), GOLD) == [0.0]
