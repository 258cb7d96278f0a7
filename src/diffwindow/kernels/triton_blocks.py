"""How much of a call a program of the Triton kernels takes, and how to tune that."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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


# By the bytes of a row of the widest head. Chosen so that programs fit the registers and the shared memory of
# the GPUs in `benchmarks/triton_report.py`; none has been timed on a GPU.
DEFAULTS = {
    128: Blocks(Block(64, 32, 4, 2), Block(32, 32, 8, 1), Block(32, 32, 8, 2)),
    256: Blocks(Block(32, 32, 8, 2), Block(16, 32, 8, 1), Block(16, 32, 8, 1)),
    512: Blocks(Block(16, 16, 8, 1), Block(16, 16, 8, 1), Block(16, 16, 8, 1)),
}
# Small, so that short inputs cross from tile to tile.
INTERPRETED = Blocks(Block(32, 16, 4, 1), Block(32, 16, 4, 1), Block(32, 16, 4, 1))


def default_blocks(row_bytes: int, *, threshold: bool, amd: bool = False) -> Blocks:
    """Return the blocks for heads of so many bytes per row, and for windows with or without a threshold."""
    blocks = next(blocks for most, blocks in DEFAULTS.items() if row_bytes <= most)
    if amd:
        # its warps have 64 lanes: more than four, or loads ahead of their use, would spill registers
        blocks = Blocks(*(block._replace(warps=4, stages=1) for block in blocks))
    # skipping tiles or not: both branches must fit the registers
    return blocks._replace(key=blocks.key._replace(rows=16, stages=1)) if threshold else blocks


def choose(call: Call) -> Blocks:
    """Choose the blocks for a call."""
    if interpreted():
        return INTERPRETED
    widest = max(x.shape[-1] * x.element_size() for x in call.differentiable.values())
    blocks = default_blocks(widest, threshold=call.threshold > 0, amd=bool(torch.version.hip))
    if call.q.shape[2] > 16:
        return blocks
    # for few queries, the smallest block that a matrix instruction takes
    return blocks._replace(forward=blocks.forward._replace(rows=16))


_fastest: dict[tuple[Any, ...], Blocks] = {}


def tuned(name: str, call: Call, run: Callable[[Blocks], None]) -> Blocks:
    """Return the blocks with which `run` is fastest, or the default if tuning is off."""
    default = choose(call)
    if os.environ.get("DIFFWINDOW_TUNE", "0") != "1":
        return default
    key = (name, *kind_of(call))
    if key not in _fastest:
        # a graph that is captured must not wait for the GPU, as timing does
        if call.q.is_cuda and torch.cuda.is_current_stream_capturing():
            return default
        with torch.cuda.device_of(call.q):
            times = {blocks: milliseconds(run, blocks) for blocks in candidates(name, default)}
        _fastest[key] = min(times, key=lambda blocks: times[blocks])
    return _fastest[key]


def kind_of(call: Call) -> tuple[Any, ...]:
    """Return what the best blocks depend on; lengths count by their power of two."""
    widths = tuple(x.shape[-1] for x in call.differentiable.values())
    lengths = (call.q.shape[2].bit_length(), call.k.shape[2].bit_length())
    given = (call.attn_mask is not None, call.attn_bias is not None, call.seed is not None)
    return (
        call.q.device,
        call.q.dtype,
        widths,
        lengths,
        call.is_causal,
        call.segment_size,
        call.exact,
        call.threshold > 0,
        call.normalize,
        call.sinks > 0,
        *given,
    )


def candidates(name: str, default: Blocks) -> Iterator[Blocks]:
    """Vary the default: first as it is, then with larger tiles and other numbers of warps."""
    yield default
    for rows in (1, 2):
        for keys in (1, 2):
            for warps in (4, 8):
                changed = Blocks(*(_scaled(block, rows, keys, warps) for block in default))
                yield default._replace(forward=changed.forward) if name == "forward" else changed


def _scaled(block: Block, rows: int, keys: int, warps: int) -> Block:
    return Block(rows * block.rows, keys * block.keys, warps, block.stages)


def milliseconds(run: Callable[[Blocks], None], blocks: Blocks) -> float:
    """Time a call; blocks that do not fit the GPU take forever."""
    from triton.runtime.errors import OutOfResources, PTXASError
    from triton.testing import do_bench

    try:
        return float(do_bench(lambda: run(blocks)))
    except (OutOfResources, PTXASError):
        return float("inf")
