"""Means over seeds with their intervals, and the significance of differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from diffwindow.reproduce.bootstrap import student_quantile

# an interval over seeds alone is shown from this many on: its t-factor is 12.7 for two and 3.2 for four
ENOUGH_SEEDS = 4
Verdict = Literal["agrees", "not told apart", "contradicts"]


@dataclass(frozen=True)
class Summary:
    """A mean over seeds, its standard deviation, and half of the width of its 95 % interval.

    With one seed there is neither, and with fewer than `ENOUGH_SEEDS` there is no interval.
    """

    mean: float
    deviation: float | None
    reach: float | None
    count: int


def summary(values: Sequence[float]) -> Summary:
    """Summarise one value per seed; the interval is Student's, mean ± t s / √n.

    >>> found = summary([79.0, 79.0, 81.0, 81.0])
    >>> found.mean, round(found.deviation, 2), round(found.reach, 2)
    (80.0, 1.15, 1.84)
    """
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Summary(mean, None, None, 1)
    deviation = statistics.stdev(values)
    if count < ENOUGH_SEEDS:
        return Summary(mean, deviation, None, count)
    return Summary(mean, deviation, student_quantile(count - 1) * deviation / math.sqrt(count), count)


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> Summary | None:
    """Summarise the differences of two rows by seed, over the seeds that both have.

    >>> difference({1: 80.0, 2: 82.0}, {1: 79.0, 2: 80.0, 3: 50.0}).mean
    1.5
    """
    seeds = sorted(values.keys() & base.keys())
    return summary([values[seed] - base[seed] for seed in seeds]) if seeds else None


def verdict(gain: float, reach: float | None, seeds: int, paper: float) -> Verdict:
    """Return whether a gain has the paper's sign, if two seeds and an interval without zero let it be said.

    >>> verdict(2.0, 1.5, seeds=3, paper=0.4), verdict(2.0, 0.1, seeds=1, paper=0.4)
    ('agrees', 'not told apart')
    """
    if seeds < 2 or reach is None or abs(gain) <= reach:
        return "not told apart"
    return "agrees" if gain * paper > 0 else "contradicts"


def agreeing_pairs(ours: Mapping[str, Mapping[int, float]], paper: Mapping[str, float]) -> tuple[int, int]:
    """Count the pairs of rows that are in the paper's order, and all pairs; ours are values by seed.

    Two rows are compared over the seeds that both have; pairs that share none, or that the paper ties, are
    left out.

    >>> agreeing_pairs({"a": {1: 1.0}, "b": {1: 2.0}, "c": {1: 0.0}}, {"a": 1.0, "b": 2.0, "c": 3.0})
    (1, 3)
    """
    rows = [row for row in ours if row in paper]
    agrees = [
        gain.mean * (paper[a] - paper[b]) > 0
        for a, b in combinations(rows, 2)
        if paper[a] != paper[b] and (gain := difference(ours[a], ours[b]))
    ]
    return sum(agrees), len(agrees)
