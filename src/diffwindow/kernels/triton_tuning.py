"""Try other blocks than the table's on the GPU at hand, and keep the fastest.

With `DIFFWINDOW_TUNE=1` the first call of its kind, by widths, types, options and rough lengths, times some
candidates, which takes a minute or two. Off by default: another choice adds up in another order, so that
results would differ in their last bits from run to run.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from diffwindow.kernels.operator import Call
from diffwindow.kernels.triton_blocks import Block, Blocks, choose

_fastest: dict[tuple[Any, ...], Blocks] = {}


def tuned(name: str, call: Call, run: Callable[[Blocks], None]) -> Blocks:
    """Return the blocks with which `run` is fastest, or those of the table if tuning is off."""
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
        *given,
    )


def candidates(name: str, default: Blocks) -> Iterator[Blocks]:
    """Vary the blocks of the table: theirs first, then larger tiles and other numbers of warps."""
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
