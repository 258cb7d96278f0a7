"""Work on many token sequences in batches by tokens, and return the results in their order."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from diffwindow.data.batching import TokenBatches
from diffwindow.sharing import each, sharers
from diffwindow.special_tokens import PAD

R = TypeVar("R")
# (sequences done, sequences in all)
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Show no progress."""


def in_batches(
    lengths: Sequence[NDArray[np.int64]],
    work: Callable[[list[int]], Sequence[R]],
    *,
    max_tokens: int,
    progress: Progress = no_progress,
) -> list[R]:
    """Call `work` on the indices of similar lengths together; return a result per index, in order.

    `lengths` has one array per field. A sequence longer than `max_tokens` is a batch of its own. Processes
    may share the batches (see `sharing`).
    """
    total, done = len(lengths[0]), 0
    longest = max(int(field.max(initial=1)) for field in lengths)
    batches = list(TokenBatches(list(lengths), max_tokens=max(max_tokens, longest), shuffle=False))

    def run(indices: NDArray[np.int64]) -> Sequence[R]:
        nonlocal done
        results = work(indices.tolist())
        # the others that share the work are about as far
        done = min(done + len(indices) * sharers(), total)
        progress(done, total)
        return results

    found: dict[int, R] = {}
    for indices, results in zip(batches, each(run, batches), strict=True):
        found |= dict(zip(indices.tolist(), results, strict=True))
    return [found[index] for index in range(total)]


def padded(rows: Sequence[Sequence[int]], device: str) -> Int[Tensor, "b n"]:
    """Pad token ids on the right to one tensor.

    >>> padded([[5, 2], [7, 8, 2]], "cpu")
    tensor([[5, 2, 0],
            [7, 8, 2]])
    """
    tokens = torch.full((len(rows), max(map(len, rows))), PAD)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens.to(device)
