"""Work on many token sequences in batches by tokens, and return the results in their order."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from diffwindow.data.batching import TokenBatches
from diffwindow.processes import each, sharers
from diffwindow.special_tokens import PAD

R = TypeVar("R")
# (sequences done, sequences in all)
ReportDone = Callable[[int, int], None]


def report_nothing(done: int, total: int) -> None:
    """Show no progress."""


def map_in_batches(
    lengths: Sequence[NDArray[np.int64]],
    work: Callable[[list[int]], Sequence[R]],
    *,
    max_tokens: int,
    progress: ReportDone = report_nothing,
) -> list[R]:
    """Call `work` on the indices of similar lengths together; return a result per index, in order.

    Batches are those of `map_batches`.
    """
    results: dict[int, R] = {}
    for indices, of_batch in map_batches(
        lengths, lambda indices: work(indices.tolist()), max_tokens=max_tokens, progress=progress
    ):
        results |= dict(zip(indices.tolist(), of_batch, strict=True))
    return [results[index] for index in range(len(lengths[0]))]


def map_batches(
    lengths: Sequence[NDArray[Any]],
    work: Callable[[NDArray[np.int64]], R],
    *,
    max_tokens: int,
    progress: ReportDone = report_nothing,
) -> list[tuple[NDArray[np.int64], R]]:
    """Call `work` on the indices of each batch, shortest first; return the indices and the result of each.

    `lengths` has one array per field. A sequence longer than `max_tokens` is a batch of its own. Processes
    may share the batches (see `sharing`).
    """
    total, done = len(lengths[0]), 0
    batches = _make_batches(lengths, max_tokens)

    def run(indices: NDArray[np.int64]) -> R:
        nonlocal done
        result = work(indices)
        # the others that share the work are about as far
        done = min(done + len(indices) * sharers(), total)
        progress(done, total)
        return result

    return list(zip(batches, each(run, batches), strict=True))


def _make_batches(lengths: Sequence[NDArray[Any]], max_tokens: int) -> list[NDArray[np.int64]]:
    """Return the indices of batches within `max_tokens`, then each longer sequence alone."""
    fitting = TokenBatches(list(lengths), max_tokens=max_tokens, shuffle=False, too_long="drop")
    longest = np.max(np.stack(list(lengths)), axis=0)
    alone = np.setdiff1d(np.arange(len(longest)), fitting.kept)
    return [*fitting, *alone[longest[alone].argsort(kind="stable")][:, None]]


def pad_rows(rows: Sequence[Sequence[int]], device: str) -> Int[Tensor, "b n"]:
    """Pad token ids on the right to one tensor.

    >>> pad_rows([[5, 2], [7, 8, 2]], "cpu")
    tensor([[5, 2, 0],
            [7, 8, 2]])
    """
    tokens = torch.full((len(rows), max(map(len, rows))), PAD)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens.to(device)
