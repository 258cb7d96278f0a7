"""How much of a call a program of the Triton kernels takes, per target and head width."""

import functools
from typing import NamedTuple

import torch

from diffwindow.kernels.operator import Call
from diffwindow.kernels.triton import interpreted

# The widest head that the kernels take: wider tiles do not fit the memory of a multiprocessor.
WIDEST = 256


class Block(NamedTuple):
    """Queries and keys of a tile, and the warps and pipeline stages that work on it."""

    rows: int
    keys: int
    warps: int
    stages: int


class Blocks(NamedTuple):
    """The blocks of the three kernels; those of backward share their tiles of keys."""

    forward: Block
    query: Block
    key: Block


# By target and by the widest head; the first width that is wide enough counts.
TABLE: dict[str, dict[int, Blocks]] = {
    "sm_80": {256: Blocks(Block(64, 32, 4, 2), Block(32, 32, 8, 2), Block(32, 32, 4, 2))},
}
# Small, so that short inputs cross from tile to tile.
INTERPRETED = Blocks(Block(32, 16, 4, 1), Block(32, 16, 4, 1), Block(32, 16, 4, 1))


def choose(call: Call) -> Blocks:
    """Choose the blocks for a call."""
    if interpreted():
        return INTERPRETED
    widest = max(x.shape[-1] for x in call.differentiable.values())
    table = TABLE[target(call.q.device)]
    return next(blocks for width, blocks in table.items() if widest <= width)


@functools.cache
def target(device: torch.device) -> str:
    """Name the entry of the table for a GPU."""
    return "sm_80"
