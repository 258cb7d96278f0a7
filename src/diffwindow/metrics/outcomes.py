"""Outcomes: what each test example adds to a figure, so that it can be computed again and resampled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.files import replacing

Array = NDArray[np.float64]
# the terms of each example; figures are functions of their totals
Terms = NDArray[np.integer | np.floating]


def accuracy_of(totals: Array) -> Array:
    """Return 100 · right / examples, from totals of (right, 1).

    >>> float(accuracy_of(np.array([3.0, 4.0])))
    75.0
    """
    return np.asarray(100.0 * totals[..., 0] / totals[..., 1])


def perplexity_of(totals: Array) -> Array:
    """Return exp(−log p / words), from totals of (−log p, words)."""
    return np.exp(np.minimum(totals[..., 0] / totals[..., 1], 700.0))


def bleu_of(totals: Array) -> Array:
    """Return corpus BLEU, from totals of (length, reference's length, 4 matches, 4 n-grams).

    Orders without a match are smoothed as in sacreBLEU ("exp"): the first counts 1/2, the next 1/4, …
    """
    length, reference, matches, ngrams = totals[..., 0], totals[..., 1], totals[..., 2:6], totals[..., 6:]
    smoothed = np.where(matches == 0, 0.5 ** np.cumsum(matches == 0, axis=-1), matches)
    # a text too short for an order has none of its n-grams, and scores 0 below
    precision = np.exp(np.log(smoothed / np.maximum(ngrams, 1)).mean(-1))
    brevity = np.exp(np.minimum(1.0 - reference / np.maximum(length, 1), 0.0))
    scored = (ngrams > 0).all(-1) & (matches > 0).any(-1)
    return np.where(scored, 100.0 * brevity * precision, 0.0)


FIGURES: dict[str, Callable[[Array], Array]] = {
    "accuracy": accuracy_of,
    "perplexity": perplexity_of,
    "bleu": bleu_of,
}


def accuracy_terms(right: NDArray[np.bool_]) -> Terms:
    """Return the terms of `accuracy_of`, one row per example."""
    return np.stack([right, np.ones_like(right)], axis=-1).astype(np.int8)


def save_outcomes(path: Path, outcomes: Mapping[str, Terms]) -> None:
    """Write the terms of evaluations by name, whole or not at all."""
    arrays: dict[str, Any] = dict(outcomes)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_outcomes(path: Path) -> dict[str, Terms]:
    """Read the terms of evaluations by name."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it and the result.json beside it, and evaluate again"
        ) from None
