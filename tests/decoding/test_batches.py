"""Batches by tokens: results come back in order."""

import numpy as np

from diffwindow.decoding.batches import map_batches, map_in_batches


def test_results_are_in_order_and_batches_within_the_limit():
    lengths, seen, shown = np.array([5, 1, 9, 2, 2, 30, 1], np.int64), [], []

    def work(indices):
        seen.append(indices)
        return [index * 10 for index in indices]

    found = map_in_batches([lengths], work, max_tokens=12, progress=lambda *done: shown.append(done))
    assert found == [0, 10, 20, 30, 40, 50, 60]
    assert sorted(index for batch in seen for index in batch) == list(range(7))
    # one sequence is longer than a batch
    assert all(lengths[batch].max() * len(batch) <= 12 for batch in seen if batch != [5])
    assert [5] in seen
    assert shown[-1] == (7, 7)


def test_sequences_that_are_all_too_long_are_each_a_batch_shortest_first():
    lengths = [np.array([9, 5, 1], np.int64), np.array([1, 1, 7], np.int64)]
    batches = map_batches(lengths, lambda indices: len(indices), max_tokens=3)
    assert [(indices.tolist(), size) for indices, size in batches] == [([1], 1), ([2], 1), ([0], 1)]
