"""The confusion matrix of a classifier, and precision, recall and F1 of each label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelScore:
    """How well one label is found; a share of nothing counts as 0."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Confusion:
    """Examples by their right label (row) and the predicted one (column)."""

    counts: NDArray[np.int64]

    @classmethod
    def of(cls, gold: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Confusion:
        """Count the pairs of right and predicted classes.

        >>> Confusion.of(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).counts.tolist()
        [[1, 1], [0, 1]]
        """
        pairs = np.bincount(gold * classes + predicted, minlength=classes * classes)
        return cls(pairs.reshape(classes, classes))

    def scores(self) -> list[LabelScore]:
        """Return the scores of each label: F1 = 2 · right / (examples + predictions)."""
        right, examples, predictions = np.diag(self.counts), self.counts.sum(1), self.counts.sum(0)
        shares = (right / np.maximum(whole, 1) for whole in (predictions, examples))
        f1 = 2 * right / np.maximum(examples + predictions, 1)
        return [LabelScore(*map(float, values)) for values in zip(*shares, f1, strict=True)]

    def macro_f1(self) -> float:
        """Return the mean F1 of the labels that occur, in the examples or the predictions."""
        occurs = (self.counts.sum(0) + self.counts.sum(1)) > 0
        return float(np.mean([score.f1 for score in self.scores()], where=occurs))
