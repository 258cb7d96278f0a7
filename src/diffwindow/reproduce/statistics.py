"""Means over seeds with their intervals, and whether a difference is one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# the 97.5 % quantile of Student's t for 1, 2, … 30 degrees of freedom
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
Verdict = Literal["agrees", "not told apart", "contradicts"]


@dataclass(frozen=True)
class Summary:
    """A mean over seeds, its standard deviation, and half of the width of its 95 % interval.

    With one seed there is neither.
    """

    mean: float
    deviation: float | None
    reach: float | None
    count: int


def summary(values: Sequence[float]) -> Summary:
    """Summarise what the seeds gave; the interval is Student's, mean ± t s / √n.

    >>> found = summary([79.0, 80.0, 81.0])
    >>> found.mean, found.deviation, round(found.reach, 2)
    (80.0, 1.0, 2.48)
    """
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Summary(mean, None, None, 1)
    deviation = statistics.stdev(values)
    quantile = T_975[min(count - 1, len(T_975)) - 1]
    return Summary(mean, deviation, quantile * deviation / math.sqrt(count), count)


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> Summary | None:
    """Summarise the differences of two rows by seed, over the seeds that both have.

    >>> difference({1: 80.0, 2: 82.0}, {1: 79.0, 2: 80.0, 3: 50.0}).mean
    1.5
    """
    seeds = sorted(values.keys() & base.keys())
    return summary([values[seed] - base[seed] for seed in seeds]) if seeds else None


def verdict(ours: Summary | None, paper: float) -> Verdict:
    """Say whether a difference has the paper's sign; its interval must leave zero out to say anything.

    >>> verdict(Summary(2.0, 1.0, 1.5, 3), paper=0.4)
    'agrees'
    >>> verdict(Summary(2.0, None, None, 1), paper=0.4)
    'not told apart'
    """
    if ours is None or ours.reach is None or abs(ours.mean) <= ours.reach:
        return "not told apart"
    return "agrees" if ours.mean * paper > 0 else "contradicts"


def agreeing_pairs(ours: Mapping[str, float], paper: Mapping[str, float]) -> tuple[int, int]:
    """Count the pairs of rows that are in the paper's order, and all pairs that both have.

    >>> agreeing_pairs({"a": 1.0, "b": 2.0, "c": 0.0}, {"a": 1.0, "b": 2.0, "c": 3.0})
    (1, 3)
    """
    rows = [row for row in ours if row in paper]
    pairs = [(a, b) for place, a in enumerate(rows) for b in rows[place + 1 :] if paper[a] != paper[b]]
    return sum((ours[a] - ours[b]) * (paper[a] - paper[b]) > 0 for a, b in pairs), len(pairs)
