"""The 95 % interval of a gain, from the seeds and the test examples that both rows share.

Seeds and examples are crossed: the model of every seed answers the same examples. So the variance of the
mean gain is σ²_seeds/S + σ²_examples/n + σ²_both/(S n). A replicate draws the examples anew, the same ones
for both rows and all seeds. The replicates' variance holds the last two parts and the seeds' variance the
first and the last; the last is counted once. With few seeds the first part is uncertain, so the interval is
Student's, with Satterthwaite's degrees of freedom; and because those are an approximation, which would hold
the truth in 88 % of the cases where two seeds differ much, it is never narrower than that over seeds alone.

Assumptions: seeds are draws from one population, and so are examples; both are independent; the mean is
about normal. The training set is one: another sample of it is not counted. One seed says nothing of other
seeds: its interval is of the examples alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    figure: Callable[[Array], Array],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval:
    """Return the interval of figure(terms) − figure(base), where both are [seeds, examples, terms].

    `figure` maps totals over examples, [..., terms], to values. Row s of both has the same seed, and column i
    the same example.
    """
    if terms.shape != base.shape or terms.ndim != 3:
        raise ValueError(f"outcomes of shapes {terms.shape} and {base.shape} cannot be paired")
    seeds, examples, _ = terms.shape
    gains = figure(terms.sum(1, dtype=np.float64)) - figure(base.sum(1, dtype=np.float64))
    drawn = _resampled(terms, base, figure, replicates, np.random.default_rng(seed))
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


def interval_from_figures(values: Sequence[float], base: Sequence[float], examples: int) -> Interval:
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


def _resampled(
    terms: NDArray[np.number],
    base: NDArray[np.number],
    figure: Callable[[Array], Array],
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
        values = figure(totals)
        parts.append(values[:, 0] - values[:, 1])
    return np.concatenate(parts)


def student_quantile(degrees: float, probability: float = 0.975, *, points: int = 20_001) -> float:
    """Return a quantile above the median of Student's t, for any positive degrees of freedom.

    With t = √ν tan θ the density is proportional to cosᵛ⁻¹ θ, which is added up on a grid.

    >>> round(student_quantile(1.0), 2), round(student_quantile(4.0), 3), round(student_quantile(1e5), 2)
    (12.71, 2.776, 1.96)
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom are fewer than 1")
    # beyond ten standard deviations the density adds nothing, and a wide grid would miss a narrow peak
    end = min(np.pi / 2, 10.0 / degrees**0.5) if degrees > 100 else np.pi / 2
    # denser towards the end, where the density of few degrees falls steeply
    theta = end * (1.0 - np.linspace(1.0, 0.0, points) ** 2)
    density = np.cos(theta) ** (degrees - 1.0)
    mass = np.concatenate([[0.0], np.cumsum(np.diff(theta) * (density[1:] + density[:-1]) / 2)])
    angle = np.interp(2 * probability - 1, mass / mass[-1], theta)
    return float(np.sqrt(degrees) * np.tan(angle))
