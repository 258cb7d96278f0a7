"""Batches by tokens: results come back in order."""

import numpy as np

from diffwindow.decoding.batches import in_batches


def test_results_are_in_order_and_batches_within_the_limit():
    lengths, seen, shown = np.array([5, 1, 9, 2, 2, 30, 1], np.int64), [], []

    def work(indices):
        seen.append(indices)
        return [index * 10 for index in indices]

    found = in_batches([lengths], work, max_tokens=12, progress=lambda *done: shown.append(done))
    assert found == [0, 10, 20, 30, 40, 50, 60]
    assert sorted(index for batch in seen for index in batch) == list(range(7))
    # one sequence is longer than a batch, so batches hold up to its 30 tokens
    assert all(lengths[batch].max() * len(batch) <= 30 for batch in seen)
    assert shown[-1] == (7, 7)
