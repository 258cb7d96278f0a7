"""Precision, recall and F1 from counts made by hand."""

import numpy as np
import pytest

from diffwindow.evaluation.confusion import Confusion, LabelScore
from diffwindow.view.confusion import confusion_figure

GOLD = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 2, 1, 0, 2])


def test_scores_of_three_labels_by_hand():
    confusion = Confusion.of(GOLD, PREDICTED, 3)
    assert confusion.counts.tolist() == [[2, 1, 1], [1, 1, 0], [0, 0, 1]]
    assert confusion.scores() == [
        LabelScore(2 / 3, 1 / 2, 4 / 7),
        LabelScore(1 / 2, 1 / 2, 1 / 2),
        LabelScore(1 / 2, 1.0, 2 / 3),
    ]
    assert confusion.macro_f1() == pytest.approx((4 / 7 + 1 / 2 + 2 / 3) / 3)


def test_a_label_that_nothing_has_is_left_out_and_one_never_found_counts_as_zero():
    confusion = Confusion.of(np.array([0, 0, 1]), np.array([0, 0, 0]), 4)
    assert confusion.scores()[1:] == [LabelScore(0.0, 0.0, 0.0)] * 3
    assert confusion.macro_f1() == pytest.approx((2 * 2 / 5 + 0) / 2)


def test_a_picture_has_the_count_of_every_pair_and_names_as_they_are():
    labels = ["$cheap$", "fine", "dear"]
    axes = confusion_figure(labels, Confusion.of(GOLD, PREDICTED, 3).counts.tolist()).axes[0]
    assert [text.get_text() for text in axes.texts] == ["2", "1", "1", "1", "1", "0", "0", "0", "1"]
    assert [text.get_text() for text in axes.get_xticklabels()] == labels
