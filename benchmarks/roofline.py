"""Predict the time of window attention on a GPU from counts of products, exponentials, arithmetic and bytes.

Nothing here was measured on a GPU. The assumptions are the constants below;
`docs/explanation/gpu.md` discusses them.

    python benchmarks/roofline.py                                                  # the figures of
    python benchmarks/roofline.py --boundary-dim 8 --width 0.1 --tolerance 0.001   # docs/explanation/gpu.md
    python benchmarks/roofline.py --keys 8192 --head-dim 128
"""

import argparse
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffwindow.kernels.triton_blocks import DEFAULTS, Block, Blocks, default_blocks
from diffwindow.ops import Boundaries, window_attention


class Gpu(NamedTuple):
    name: str
    matrix_flops: float  # 16-bit products per second, dense
    exponentials: float  # per second
    operations: float  # fp32 instructions per second, an FMA being one
    bandwidth: float  # bytes per second from main memory
    cache: float  # bytes per second from the L2 cache


# Data sheets; exponentials are 16 per clock and multiprocessor; cache bandwidth as microbenchmarks report it.
GPUS = (
    Gpu("A100", 312e12, 108 * 16 * 1.41e9, 9.75e12, 2.0e12, 4.5e12),
    Gpu("H100", 989e12, 132 * 16 * 1.83e9, 33.5e12, 3.35e12, 6.5e12),
)
# Share of the peak that tiled kernels of this kind reach in their products, here and in FlashAttention-2.
EFFICIENCY = 0.6
# A product of 16-bit operands takes at least so many columns; narrower ones are padded.
LEAST_WIDTH = 16
KINDS = ("multiplicative", "additive", "normalised")
STEPS = {"forward": ("forward",), "backward": ("query", "key")}


class Work(NamedTuple):
    """What a kernel does per query and key, counted in its source; the instructions are estimates."""

    pointers: float  # products of the pointers' width
    heads: float  # products of the heads' width
    exponentials: float
    operations: float  # fp32 instructions
    pointer_rows: float  # rows of the pointers' width that are loaded, per key or, in "key", per query
    head_rows: float


# By kernel and kind, in tiles that a window reaches, and in those that it does not.
OURS = {
    ("forward", "multiplicative"): (Work(4, 2, 5, 47, 4, 2), Work(4, 1, 5, 29, 4, 1)),
    ("forward", "additive"): (Work(4, 3, 5, 49, 4, 3), Work(4, 2, 5, 30, 4, 2)),
    ("forward", "normalised"): (Work(4, 2, 6, 50, 4, 2), Work(4, 0, 4, 24, 4, 0)),
    ("query", "multiplicative"): (Work(6, 5, 6, 110, 4, 4), Work(6, 2, 5, 32, 4, 1)),
    ("query", "additive"): (Work(6, 8, 6, 122, 4, 6), Work(6, 5, 6, 41, 4, 4)),
    ("query", "normalised"): (Work(6, 5, 6, 118, 4, 4), Work(6, 0, 4, 26, 4, 0)),
    # It loads its queries before it knows whether they reach the tile.
    ("key", "multiplicative"): (Work(4, 4, 3, 60, 2, 2), Work(4, 2, 3, 19, 2, 2)),
    ("key", "additive"): (Work(4, 6, 3, 66, 2, 3), Work(4, 4, 3, 22, 2, 3)),
    ("key", "normalised"): (Work(4, 4, 3, 61, 2, 2), Work(4, 0, 2, 13, 2, 2)),
}
FLASH = {"forward": Work(0, 2, 1, 9, 0, 0), "backward": Work(0, 5, 1, 12, 0, 0)}
# Bytes per query and key that `torch.compile` moves if it fuses all but products, reductions and scans.
COMPILED = {
    ("multiplicative", "forward"): 84,
    ("multiplicative", "backward"): 190,
    ("additive", "forward"): 96,
    ("additive", "backward"): 220,
}


class Problem(NamedTuple):
    heads: int
    keys: int
    head_dim: int
    boundary_dim: int
    width: float = 1.0  # share of the keys that a window covers
    tolerance: float = 0.0

    @property
    def pairs(self) -> int:
        return self.heads * self.keys**2


def blocks_of(kind: str, p: Problem) -> Blocks:
    """Return the kernels' block sizes."""
    row_bytes = 2 * max(p.head_dim, p.boundary_dim)
    return default_blocks(row_bytes, threshold=p.tolerance > 0 or kind == "normalised")


def reached(block: Block, p: Problem) -> float:
    """Return the share of tiles that the windows of a block of queries reach.

    Windows move along by a key per query, so those of a block cover rows - 1 more keys than one of them, and
    they begin anywhere in a tile.
    """
    if p.tolerance == 0:
        return 1.0
    return min(1.0, p.width + (block.rows + block.keys - 2) / p.keys)


def work(kernel: str, kind: str, block: Block, p: Problem) -> Work:
    """Return what a kernel does per query and key, on average over all tiles."""
    share = reached(block, p)
    near, far = OURS[kernel, kind]
    return Work(*(share * x + (1 - share) * y for x, y in zip(near, far, strict=True)))


def traffic(kind: str, step: str, blocks: Blocks, p: Problem) -> tuple[float, float]:
    """Count the bytes from main memory and from the cache that the Triton kernels move."""
    rows = p.heads * p.keys
    inputs = 2 * rows * (4 * p.boundary_dim + (5 if kind == "additive" else 3) * p.head_dim)
    output = 2 * rows * p.head_dim
    loaded = 0.0
    for kernel in STEPS[step]:
        block = getattr(blocks, kernel)
        each = work(kernel, kind, block, p)
        row = 2 * (each.pointer_rows * p.boundary_dim + each.head_rows * p.head_dim)
        # A block of queries loads every key; a tile of keys every query, with eight numbers about it.
        loaded += p.pairs * (row / block.rows if kernel != "key" else (row + 32) / block.keys)
    if step == "forward":
        return inputs + output, loaded
    # Four fp32 numbers per query and tile are written and read.
    carries = 2 * 16 * p.pairs / blocks.key.keys
    return 2 * inputs + 3 * output + carries, loaded


class Counter(TorchDispatchMode):
    """Add up the bytes that operations read and write, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        before = {x.data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        written = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if any(x.data_ptr() not in before for x in written) or func._schema.is_mutable:
            read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            self.bytes += sum(x.numel() * x.element_size() for x in (*read, *written))
        return out


def eager_bytes(kind: str) -> dict[str, float]:
    """Count the bytes per query and key that the reference moves, forward and backward."""
    keys, width = 512, 16
    count = 9 if kind == "additive" else 7
    shape = (1, 1, keys, width)
    q, k, v, *rest = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(count))
    with Counter() as forward:
        local = tuple(rest[4:]) or None
        out = window_attention(
            q, k, v, Boundaries(*rest[:4]), local, normalize=kind == "normalised", impl="reference"
        )
    with Counter() as backward:
        torch.autograd.grad(out.sum(), [q, k, v, *rest])
    return {"forward": forward.bytes / keys**2, "backward": backward.bytes / keys**2}


def computing(counts: list[Work], p: Problem, gpu: Gpu) -> tuple[float, ...]:
    """Return the seconds that the matrix units, the exponentials and the other arithmetic take."""
    padded = max(p.boundary_dim, LEAST_WIDTH)
    multiply_adds = sum(each.pointers * padded + each.heads * p.head_dim for each in counts)
    return (
        2 * p.pairs * multiply_adds / (gpu.matrix_flops * EFFICIENCY),
        p.pairs * sum(each.exponentials for each in counts) / gpu.exponentials,
        p.pairs * sum(each.operations for each in counts) / gpu.operations,
    )


def span(units: tuple[float, ...], memory: tuple[float, ...] = (0.0,)) -> str:
    """Show the time with all units at work at once, and with one after the other."""
    return f"{1e3 * max(*units, *memory):.2f} - {1e3 * (sum(units) + max(memory)):.2f}"


def show(p: Problem) -> None:
    print(
        f"{p.heads} heads of {p.head_dim}, {p.keys} queries and keys, boundaries of {p.boundary_dim}, "
        f"windows on {p.width:.0%} of the keys, tolerance {p.tolerance:g}, bf16, ms; predicted by counting\n"
    )
    columns = (
        "GPU kind step eager compiled FlashAttention-2 Triton products exponentials arithmetic memory cache"
    )
    print("| " + " | ".join(columns.split()) + " |")
    print("|---" * len(columns.split()) + "|")
    eager = {kind: eager_bytes(kind) for kind in KINDS}
    for gpu in GPUS:
        for kind in KINDS:
            for step in STEPS:
                row(gpu, kind, step, p, eager[kind][step])
    for kind in KINDS:
        print(f"\nbytes per query and key, eager, {kind}:", *(f"{x:.0f}" for x in eager[kind].values()))


def row(gpu: Gpu, kind: str, step: str, p: Problem, eager: float) -> None:
    blocks = blocks_of(kind, p)
    counts = [work(kernel, kind, getattr(blocks, kernel), p) for kernel in STEPS[step]]
    units = computing(counts, p, gpu)
    in_memory, in_cache = traffic(kind, step, blocks, p)
    memory = (in_memory / gpu.bandwidth, in_cache / gpu.cache)
    flash = computing([FLASH[step]], p, gpu)
    # What compiled code moves for a normalised window was not counted.
    moved = [
        "-" if each is None else f"{1e3 * p.pairs * each / gpu.bandwidth:.1f}"
        for each in (eager, COMPILED.get((kind, step)))
    ]
    parts = [f"{1e3 * seconds:.2f}" for seconds in (*units, *memory)]
    print("| " + " | ".join([gpu.name, kind, step, *moved, span(flash), span(units, memory), *parts]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--heads", type=int, default=64, help="heads of all sentences together")
    parser.add_argument("--keys", type=int, default=2048)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--boundary-dim", type=int, help="width of the boundaries; the heads' unless given")
    parser.add_argument(
        "--width", type=float, default=1.0, metavar="SHARE", help="of the keys that a window covers"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="the window_tolerance; without one no tiles are skipped"
    )
    chosen = parser.parse_args()
    widest = max(DEFAULTS) // 2
    if not 0 < chosen.head_dim <= widest or not 0 <= (chosen.boundary_dim or 0) <= widest:
        parser.error(f"the kernels take heads and boundaries of 1 to {widest}")
    if not 0 < chosen.width <= 1:
        parser.error(f"--width {chosen.width:g} is not a share; give a number above 0 and at most 1")
    show(
        Problem(
            chosen.heads,
            chosen.keys,
            chosen.head_dim,
            chosen.boundary_dim or chosen.head_dim,
            chosen.width,
            chosen.tolerance,
        )
    )


if __name__ == "__main__":
    main()
