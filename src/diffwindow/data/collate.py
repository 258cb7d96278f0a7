"""Batches of a store as tensors: rows padded with 0, and contiguous blocks of running text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diffwindow.data.store import Split
from diffwindow.data.tokenizer import BOS, PAD

if TYPE_CHECKING:
    import torch


def collate(split: Split, indices: NDArray[np.integer]) -> dict[str, torch.Tensor]:
    """Give a batch's fields as int64 tensors: sequences [b t] padded on the right, columns [b]."""
    import torch

    batch = {name: torch.from_numpy(field.padded(indices)) for name, field in split.sequences.items()}
    columns = {
        name: torch.from_numpy(values[indices].astype(np.int64)) for name, values in split.columns.items()
    }
    return batch | columns


def shift_right(tokens: torch.Tensor) -> torch.Tensor:
    """Give the decoder input for a padded target: BOS first, then all but the last token.

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
    """Give `target`, stream[start : start + block_size], and `input`, the token before each, as [b t].

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
