"""Which rows go together in a batch: by tokens and length, shuffled, resumable at any batch.

A sampler's state is three integers. The batches of an epoch are a function of (lengths, settings, seed,
epoch), so a resumed run sees exactly the batches that an uninterrupted one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.store import Split
from diffwindow.special_tokens import BOS, PAD

if TYPE_CHECKING:
    import torch

Lengths = NDArray[np.integer]
TooLong = Literal["error", "drop"]
# rows are handled in pieces of this many, so that planning needs little more than the order itself
_PIECE = 1 << 20


class TokenBatches:
    """Index arrays of batches whose padded size, rows x longest field, stays within `max_tokens`.

    `lengths` is one array, or one per field (source and target). Iterating yields the rest of the current
    epoch and then moves on to the next.

    >>> batches = TokenBatches(np.array([3, 9, 4, 8]), max_tokens=18, seed=0, shuffle=False)
    >>> [batch.tolist() for batch in batches]
    [[0, 2], [3, 1]]
    """

    def __init__(
        self,
        lengths: Lengths | Sequence[Lengths],
        *,
        max_tokens: int,
        seed: int = 0,
        max_rows: int | None = None,
        shuffle: bool = True,
        too_long: TooLong = "error",
    ) -> None:
        self._fields = [lengths] if isinstance(lengths, np.ndarray) else list(lengths)
        if len({len(field) for field in self._fields}) != 1:
            raise ValueError(f"fields of different lengths: {[len(field) for field in self._fields]}")
        self._max_tokens = max_tokens
        self._max_rows = max_rows or max_tokens
        self._shuffle = shuffle
        # the cursor counts the batches of the epoch that were yielded
        self._state = {"seed": seed, "epoch": 0, "cursor": 0}
        self.kept = self._fitting(too_long)
        self._plan: tuple[int, int, NDArray[np.uint32], NDArray[np.int64]] | None = None

    def _fitting(self, too_long: TooLong) -> NDArray[np.uint32]:
        fits = np.ones(len(self._fields[0]), bool)
        for field in self._fields:
            fits &= field <= self._max_tokens
        if too_long == "error" and not fits.all():
            row = int(np.argmin(fits))
            size = max(int(field[row]) for field in self._fields)
            raise ValueError(
                f"row {row} has {size} tokens, more than max_tokens={self._max_tokens} "
                f"({int((~fits).sum())} such rows); raise max_tokens or pass too_long='drop'"
            )
        return np.flatnonzero(fits).astype(np.uint32)

    @property
    def dropped(self) -> int:
        """Rows left out because they are longer than `max_tokens`."""
        return len(self._fields[0]) - len(self.kept)

    def state(self) -> dict[str, int]:
        """Return the state after the last batch."""
        return dict(self._state)

    def load_state(self, state: dict[str, int]) -> None:
        """Continue from a state, with the batch after it."""
        if set(state) != set(self._state):
            raise ValueError(f"a batch state has seed, epoch and cursor, not {', '.join(sorted(state))}")
        self._state |= state

    def __len__(self) -> int:
        return len(self._plan_epoch()[1]) - 1

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        order, edges = self._plan_epoch()
        batches = len(edges) - 1
        sequence = self._generator().permutation(batches) if self._shuffle else np.arange(batches)
        for number in range(self._state["cursor"], batches):
            # advanced before the batch is yielded: a state taken during its update counts it as seen
            self._state["cursor"] = number + 1
            batch = sequence[number]
            yield order[edges[batch] : edges[batch + 1]].astype(np.int64)
        self._state |= {"epoch": self._state["epoch"] + 1, "cursor": 0}

    def _generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._state["seed"], self._state["epoch"]]))

    def padding_waste(self) -> float:
        """Return the share of padding in this epoch's batches, over all fields."""
        order, edges = self._plan_epoch()
        rows = np.diff(edges)
        real = padded = 0
        for field in self._fields:
            ordered = field[order].astype(np.int64)
            real += int(ordered.sum())
            padded += int((np.maximum.reduceat(ordered, edges[:-1]) * rows).sum()) if len(rows) else 0
        return 1 - real / padded if padded else 0.0

    def _plan_epoch(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        now = (self._state["seed"], self._state["epoch"])
        if self._plan is None or self._plan[:2] != now:
            self._plan = None
            order = self._sort_rows()
            self._plan = (*now, order, self._edges(order))
        return self._plan[2], self._plan[3]

    def _sort_rows(self) -> NDArray[np.uint32]:
        """Sort rows by length, last field first, equal ones in the epoch's random order."""
        order = self.kept.copy()
        if self._shuffle:
            self._generator().shuffle(order)
        # the last two fields, the last one first: one key of 64 bits holds two lengths and the shuffled order
        fields = self._fields[:-3:-1]
        bits = np.uint64(32 // len(fields))
        longest = np.uint64((1 << int(bits)) - 1)
        keys = np.empty(len(order), np.uint64)
        for start in range(0, len(order), _PIECE):
            rows = order[start : start + _PIECE]
            key = np.zeros(len(rows), np.uint64)
            for field in fields:
                key = (key << bits) | np.minimum(field[rows].astype(np.uint64), longest)
            places = np.arange(start, start + len(rows), dtype=np.uint64)
            keys[start : start + len(rows)] = (key << np.uint64(32)) | places
        # key and place in one integer, sorted in place: an argsort would need as much memory again
        keys.sort()
        for start in range(0, len(order), _PIECE):
            places = (keys[start : start + _PIECE] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            keys[start : start + _PIECE] = order[places]
        return keys.astype(np.uint32)

    def _edges(self, order: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Cut the sorted rows into batches, each as large as fits."""
        widest = np.empty(len(order), np.int32)
        for start in range(0, len(order), _PIECE):
            rows = order[start : start + _PIECE]
            widest[start : start + _PIECE] = np.maximum.reduce([field[rows] for field in self._fields])
        counts = np.arange(1, self._max_rows + 1)
        edges = [0]
        while edges[-1] < len(order):
            start = edges[-1]
            limit = min(self._max_rows, self._max_tokens // max(1, int(widest[start])))
            widths = np.maximum.accumulate(widest[start : start + limit])
            fits = widths * counts[: len(widths)] <= self._max_tokens
            edges.append(start + (len(widths) if fits[-1] else int(np.argmin(fits))))
        return np.array(edges, np.int64)


def collate(split: Split, indices: NDArray[np.integer]) -> dict[str, torch.Tensor]:
    """Return a batch's fields as int64 tensors: sequences [b t] padded on the right, columns [b]."""
    import torch

    batch = {name: torch.from_numpy(field.padded(indices)) for name, field in split.sequences.items()}
    columns = {
        name: torch.from_numpy(values[indices].astype(np.int64)) for name, values in split.columns.items()
    }
    return batch | columns


def shift_right(tokens: torch.Tensor) -> torch.Tensor:
    """Return the decoder input for a padded target: BOS first, then all but the last token.

    >>> import torch
    >>> shift_right(torch.tensor([[7, 8, 2], [9, 2, 0]])).tolist()
    [[1, 7, 8], [1, 9, 2]]
    """
    shifted = tokens.roll(1, dims=1)
    shifted[:, 0] = BOS
    return shifted


def collate_blocks(
    stream: NDArray[Any], starts: NDArray[np.integer], block_size: int
) -> dict[str, torch.Tensor]:
    """Return `target`, stream[start : start + block_size], and `input`, the token before each, as [b t].

    Over all blocks every token of the stream is predicted exactly once; the first from BOS.
    """
    import torch

    places = np.asarray(starts, np.int64)[:, None] + np.arange(block_size)
    inside = places < len(stream)
    target = np.where(inside, stream[np.where(inside, places, 0)], PAD).astype(np.int64)
    before = np.where(places > 0, stream[np.clip(places - 1, 0, len(stream) - 1)], BOS)
    return {
        "input": torch.from_numpy(np.where(inside, before, PAD).astype(np.int64)),
        "target": torch.from_numpy(target),
    }
