"""Accuracy with a confidence interval, and the exact test between two models on the same examples."""

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers and its confidence interval."""

    value: float
    low: float
    high: float
    correct: int
    total: int


def accuracy(correct: int, total: int, *, confidence: float = 0.95) -> Accuracy:
    """Return the share of right answers with its Wilson score interval.

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n), which also holds near 0 and 1.

    >>> found = accuracy(50, 100)
    >>> found.value, round(found.low, 4), round(found.high, 4)
    (0.5, 0.4038, 0.5962)
    """
    if not 0 <= correct <= total or total == 0:
        raise ValueError(f"{correct} right answers of {total} have no accuracy")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = correct / total
    centre = p + z * z / (2 * total)
    reach = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return Accuracy(p, max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale), correct, total)


def accuracy_by(right: NDArray[np.bool_], group: NDArray[np.integer]) -> dict[int, Accuracy]:
    """Return the accuracy of each group, in order."""
    return {
        int(value): accuracy(int(right[group == value].sum()), int((group == value).sum()))
        for value in np.unique(group)
    }


def mcnemar(right: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Return the exact two-sided p of McNemar's test, that two models err equally often on the same examples.

    Only the examples count that one of them gets right alone: b and c of them, binomial with p = 1/2.

    >>> mcnemar(np.array([True] * 6 + [False]), np.array([False] * 6 + [True]))
    0.125
    """
    if right.shape != other.shape:
        raise ValueError(f"{len(right)} and {len(other)} answers cannot be paired")
    alone, other_alone = int((right & ~other).sum()), int((other & ~right).sum())
    total, fewer = alone + other_alone, min(alone, other_alone)
    tail = sum(math.comb(total, count) for count in range(fewer + 1))
    # a fraction: 2**total overflows a float from 1024 on
    return min(1.0, float(Fraction(2 * tail, 2**total)))
