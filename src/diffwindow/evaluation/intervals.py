"""How sure a score is: intervals over examples and seeds, and tests of a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from scipy.stats import binomtest


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers and its confidence interval."""

    value: float
    low: float
    high: float
    correct: int
    total: int


def accuracy(correct: int, total: int) -> Accuracy:
    """Return the share of right answers with its 95 % Wilson score interval, which also holds near 0 and 1.

    >>> found = accuracy(50, 100)
    >>> found.value, round(found.low, 4), round(found.high, 4)
    (0.5, 0.4038, 0.5962)
    """
    if not 0 <= correct <= total or total == 0:
        raise ValueError(f"{correct} right answers of {total} have no accuracy")
    interval = binomtest(correct, total).proportion_ci(0.95, method="wilson")
    return Accuracy(correct / total, float(interval.low), float(interval.high), correct, total)


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
    different = alone + other_alone
    return float(binomtest(alone, different).pvalue) if different else 1.0


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
    """Compare the sign of a gain with the paper's; it takes two seeds, and an interval without zero, to tell.

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


Array = NDArray[np.float64]
REPLICATES = 2000
# replicates drawn at once: keeps the counts of 25,000 examples at 20 MB
CHUNK = 100


@dataclass(frozen=True)
class Interval:
    """A mean gain and half the width of its 95 % interval.

    `seeds_error` and `examples_error` are the standard errors that each source alone would leave.
    """

    gain: float
    reach: float
    seeds_error: float | None
    examples_error: float
    degrees: float
    seeds: int
    examples: int


def gain_interval(
    terms: NDArray[np.number],
    base: NDArray[np.number],
    compute: Callable[[Array], Array],
    *,
    replicates: int = REPLICATES,
) -> Interval:
    """Return the interval of compute(terms) − compute(base), where both are [seeds, examples, terms].

    `compute` maps totals over examples, [..., terms], to values. Row s of both has the same seed,
    and column i the same example.
    """
    if terms.shape != base.shape or terms.ndim != 3:
        raise ValueError(f"outcomes of shapes {terms.shape} and {base.shape} cannot be paired")
    seeds, examples, _ = terms.shape
    gains = compute(terms.sum(1, dtype=np.float64)) - compute(base.sum(1, dtype=np.float64))
    drawn = _resample(terms, base, compute, replicates, np.random.default_rng(0))
    from_examples = float(drawn.mean(1).var(ddof=1))
    if seeds == 1:
        degrees = float(max(examples - 1, 1))
        error = from_examples**0.5
        reach = student_quantile(degrees) * error
        return Interval(float(gains[0]), reach, None, error, degrees, 1, examples)
    from_seeds = float(gains.var(ddof=1)) / seeds
    # the mean of S single variances is σ²_examples/n + σ²_both/n, that of their mean has σ²_both/(S n)
    shared = max((float(drawn.var(0, ddof=1).mean()) - from_examples) / (seeds - 1), 0.0)
    alone = max(from_examples - shared, 0.0)
    # σ²_seeds must not come out negative
    total = max(from_seeds + alone, from_examples)
    spread = from_seeds**2 / (seeds - 1) + alone**2 / max(examples - 1, 1)
    degrees = max(total**2 / spread, 1.0) if spread > 0 else float(seeds - 1)
    reach = max(student_quantile(degrees) * total**0.5, student_quantile(seeds - 1) * from_seeds**0.5)
    return Interval(float(gains.mean()), reach, from_seeds**0.5, from_examples**0.5, degrees, seeds, examples)


def interval_from_scores(values: Sequence[float], base: Sequence[float], examples: int) -> Interval:
    """Return an interval of a gain in points from each seed's accuracy, in per cent, where outcomes are lost.

    The reaches of seeds and examples are added in squares, the seeds' with Student's factor. The examples of
    the two rows are taken as independent, with variance p(1 − p)/n each, though rows mostly err on the same
    ones: so the interval is too wide rather than too narrow.
    """
    gains = np.asarray(values, float) - np.asarray(base, float)
    seeds = len(gains)
    rates = np.array([np.mean(values), np.mean(base)]) / 100.0
    examples_error = float(np.sqrt((100.0**2 * rates * (1.0 - rates) / examples).sum()))
    reach = student_quantile(max(examples - 1, 1)) * examples_error
    if seeds == 1:
        return Interval(float(gains[0]), reach, None, examples_error, float(examples - 1), 1, examples)
    seeds_error = float(gains.std(ddof=1)) / seeds**0.5
    reach = float(np.hypot(reach, student_quantile(seeds - 1) * seeds_error))
    return Interval(
        float(gains.mean()), reach, seeds_error, examples_error, float(seeds - 1), seeds, examples
    )


def _resample(
    terms: NDArray[np.number],
    base: NDArray[np.number],
    compute: Callable[[Array], Array],
    replicates: int,
    rng: np.random.Generator,
) -> Array:
    """Return the gain of each seed in each replicate: [replicates, seeds]."""
    seeds, examples, width = terms.shape
    # [examples, rows · seeds · terms], so that one product adds up all totals
    flat = np.stack([terms, base]).transpose(2, 0, 1, 3).reshape(examples, -1).astype(np.float64)
    parts = []
    for start in range(0, replicates, CHUNK):
        count = min(CHUNK, replicates - start)
        drawn = rng.multinomial(examples, np.full(examples, 1.0 / examples), size=count)
        totals = (drawn.astype(np.float64) @ flat).reshape(count, 2, seeds, width)
        values = compute(totals)
        parts.append(values[:, 0] - values[:, 1])
    return np.concatenate(parts)


def student_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t, for any degrees of freedom from 1 on.

    >>> round(student_quantile(1.0), 2), round(student_quantile(4.0), 3), round(student_quantile(1e5), 2)
    (12.71, 2.776, 1.96)
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom are fewer than 1")
    return float(stdtrit(degrees, 0.975))
