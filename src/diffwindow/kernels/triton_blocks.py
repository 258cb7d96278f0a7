"""How much of a call a program of the Triton kernels takes, per target and head width."""

import functools
from typing import NamedTuple

import torch

from diffwindow.kernels.operator import Call
from diffwindow.kernels.triton import interpreted


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


# NVIDIA's matrix units do not take fp32; AMD's do. None of these has been tuned.
_NVIDIA = {
    "fp16": {
        64: Blocks(Block(64, 32, 4, 2), Block(32, 32, 8, 1), Block(32, 32, 8, 2)),
        128: Blocks(Block(32, 32, 8, 2), Block(16, 32, 8, 1), Block(16, 32, 8, 1)),
        256: Blocks(Block(16, 32, 8, 1), Block(16, 16, 8, 1), Block(16, 16, 8, 1)),
    },
    "fp32": {
        64: Blocks(Block(32, 32, 8, 1), Block(16, 32, 8, 1), Block(16, 32, 8, 1)),
        128: Blocks(Block(16, 16, 8, 1), Block(16, 16, 8, 1), Block(16, 16, 8, 1)),
    },
}
_AMD = {
    "fp16": {
        64: Blocks(Block(64, 32, 4, 2), Block(32, 32, 4, 1), Block(32, 32, 4, 1)),
        128: Blocks(Block(32, 32, 4, 1), Block(16, 32, 4, 1), Block(16, 32, 4, 1)),
        256: Blocks(Block(16, 32, 4, 1), Block(16, 16, 4, 1), Block(16, 16, 4, 1)),
    },
    "fp32": {
        64: Blocks(Block(32, 32, 4, 1), Block(16, 32, 4, 1), Block(16, 32, 4, 1)),
        128: Blocks(Block(16, 16, 4, 1), Block(16, 16, 4, 1), Block(16, 16, 4, 1)),
    },
}
# By target, type and widest head; the first width that is wide enough counts. What limits the tiles is
# registers: `triton_report` shows them.
TABLE: dict[str, dict[str, dict[int, Blocks]]] = {"sm_80": _NVIDIA, "sm_90": _NVIDIA, "gfx942": _AMD}
# The widest heads for which 16-bit kernels are known to keep all they work on in registers.
NO_SPILLS_UP_TO = {"sm_80": 128, "sm_90": 128, "gfx942": 256}
# Small, so that short inputs cross from tile to tile.
INTERPRETED = Blocks(Block(32, 16, 4, 1), Block(32, 16, 4, 1), Block(32, 16, 4, 1))


def choose(call: Call) -> Blocks:
    """Choose the blocks for a call."""
    if interpreted():
        return INTERPRETED
    table = TABLE[target(call.q.device)]["fp32" if call.q.dtype == torch.float32 else "fp16"]
    widest = max(x.shape[-1] for x in call.differentiable.values())
    blocks = next(blocks for width, blocks in table.items() if widest <= width)
    blocks = for_threshold(blocks) if call.threshold > 0 else blocks
    if call.q.shape[2] > 16:
        return blocks
    # for few queries, the smallest block that a matrix instruction takes
    return blocks._replace(forward=blocks.forward._replace(rows=16))


def for_threshold(blocks: Blocks) -> Blocks:
    """Return blocks for windows with a threshold: both branches, skipping or not, must fit the registers."""
    return blocks._replace(key=blocks.key._replace(rows=16, stages=1))


@functools.cache
def target(device: torch.device) -> str:
    """Name the entry of the table for a GPU: the newest that it can do all of."""
    if torch.version.hip:
        return "gfx942"
    return "sm_90" if torch.cuda.get_device_capability(device)[0] >= 9 else "sm_80"
