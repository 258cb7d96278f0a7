import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffwindow.data.batching import TokenBatches

LENGTHS = np.random.default_rng(0).integers(1, 60, 500)


def listed(batches):
    return [batch.tolist() for batch in batches]


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60),
    max_tokens=st.integers(20, 80),
    seed=st.integers(0, 5),
)
def test_every_row_once_within_the_limit(lengths, max_tokens, seed):
    lengths = np.array(lengths)
    batches = listed(TokenBatches(lengths, max_tokens=max_tokens, seed=seed))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(len(batch) * lengths[batch].max() <= max_tokens for batch in batches)


def test_pairs_are_limited_by_the_longer_side():
    target = LENGTHS[::-1].copy()
    for batch in TokenBatches([LENGTHS, target], max_tokens=300, seed=1):
        assert len(batch) * max(LENGTHS[batch].max(), target[batch].max()) <= 300


def test_shuffle_depends_on_seed_and_epoch_alone():
    one = TokenBatches(LENGTHS, max_tokens=300, seed=1)
    first, second = listed(one), listed(one)
    assert first != second
    again = TokenBatches(LENGTHS, max_tokens=300, seed=1)
    assert [listed(again), listed(again)] == [first, second]
    assert listed(TokenBatches(LENGTHS, max_tokens=300, seed=2)) != first


@pytest.mark.parametrize("seen", [0, 1, 5, 13])
def test_resumes_exactly_at_any_batch(seen):
    whole, stopped, resumed = (TokenBatches(LENGTHS, max_tokens=300, seed=3) for _ in range(3))
    expected = [*listed(whole), *listed(whole)]
    iterator = iter(stopped)
    got = [next(iterator).tolist() for _ in range(seen)]
    state = json.loads(json.dumps(stopped.state()))
    assert set(state) == {"seed", "epoch", "cursor"}
    resumed.load_state(state)
    assert got + listed(resumed) + listed(resumed) == expected


def test_state_at_the_end_of_an_epoch_starts_the_next():
    batches = TokenBatches(LENGTHS, max_tokens=300)
    count = len(listed(batches))
    assert batches.state() == {"seed": 0, "epoch": 1, "cursor": 0}
    # a state taken after the last batch, before the loop ends, gives an empty rest and moves on
    batches.load_state({"seed": 0, "epoch": 0, "cursor": count})
    assert listed(batches) == []
    assert batches.state()["epoch"] == 1


def test_too_long_rows_are_an_error_or_counted():
    lengths = np.array([3, 50, 4])
    with pytest.raises(ValueError, match=r"row 1 has 50 tokens, more than max_tokens=20 \(1 such rows\)"):
        TokenBatches(lengths, max_tokens=20)
    batches = TokenBatches(lengths, max_tokens=20, too_long="drop")
    assert batches.dropped == 1
    assert sorted(row for batch in batches for row in batch) == [0, 2]


def test_limits_rows():
    assert all(len(batch) <= 4 for batch in TokenBatches(LENGTHS, max_tokens=300, max_rows=4))


def test_padding_waste_counts_padding():
    # one batch of 2 x 4 cells, 6 of them filled
    assert TokenBatches(np.array([2, 4]), max_tokens=8).padding_waste() == pytest.approx(0.25)
    assert TokenBatches(np.array([4, 4]), max_tokens=8).padding_waste() == 0


def test_lengths_beyond_the_sort_key_still_fit():
    lengths = np.array([70_000, 66_000, 5])
    batches = listed(TokenBatches([lengths, lengths], max_tokens=140_000))
    assert all(len(batch) * lengths[batch].max() <= 140_000 for batch in batches)


def test_refuses_nonsense():
    with pytest.raises(ValueError, match="different lengths"):
        TokenBatches([LENGTHS, LENGTHS[:-1]], max_tokens=100)
    with pytest.raises(ValueError, match="seed, epoch and cursor"):
        TokenBatches(LENGTHS, max_tokens=100).load_state({"step": 3})
