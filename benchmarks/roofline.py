"""Predict the time of window attention on a GPU from counts of products, exponentials, arithmetic and bytes.

Nothing here was measured on a GPU. The assumptions are the constants below;
`docs/explanation/gpu.md` discusses them.

    python benchmarks/roofline.py             # the tables of docs/explanation/gpu.md
    python benchmarks/roofline.py --keys 8192 --width 128 --boundary-dim 8
"""

import argparse
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffwindow.ops import Boundaries, additive_window_attention, multiplicative_window_attention


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
# Per query and key: exponentials, and about how many fp32 instructions, both counted in the source.
FLASH = {"forward": (1, 9), "backward": (1, 12)}
OURS = {
    ("multiplicative", "forward"): (5, 47),
    ("multiplicative", "backward"): (9, 170),
    ("additive", "forward"): (5, 49),
    ("additive", "backward"): (9, 185),
}
# Bytes per query and key that `torch.compile` moves if it fuses all but products, reductions and scans.
COMPILED = {"multiplicative": (84, 190), "additive": (96, 220)}
# The tile of the kernels' default entry for heads of 64: queries of a block, and keys of a tile in backward.
ROWS, TILE = {"forward": 64, "backward": 32}, 32


class Problem(NamedTuple):
    heads: int
    keys: int
    width: int
    boundary_dim: int

    @property
    def pairs(self) -> int:
        return self.heads * self.keys**2


def products(kind: str, step: str, p: Problem) -> float:
    """Count the multiply-adds per query and key; docs/explanation/gpu.md counts them by kernel."""
    additive = kind == "additive"
    pointer, other = {"forward": (4, 3 if additive else 2), "backward": (10, 14 if additive else 9)}[step]
    return pointer * p.boundary_dim + other * p.width


def tensors(kind: str, p: Problem) -> int:
    """Count the bytes of all 16-bit inputs."""
    other = 5 if kind == "additive" else 3
    return 2 * p.heads * p.keys * (4 * p.boundary_dim + other * p.width)


def traffic(kind: str, step: str, p: Problem) -> tuple[float, float]:
    """Count the bytes from main memory and from the cache that the Triton kernels move."""
    inputs, output = tensors(kind, p), 2 * p.heads * p.keys * p.width
    other = 3 if kind == "additive" else 2
    if step == "forward":
        reread = p.pairs / ROWS[step] * 2 * (4 * p.boundary_dim + other * p.width)
        return inputs + output, reread
    # Four fp32 numbers per query and tile are written and read; keys are read in both sweeps, queries once.
    carries = 2 * 16 * p.pairs / TILE
    swept = 2 * (2 * p.boundary_dim + other * p.width)
    reread = p.pairs / ROWS[step] * 2 * swept + p.pairs / TILE * (swept + 2 * p.width)
    return 2 * inputs + 3 * output + carries, reread


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


def eager_bytes(kind: str) -> tuple[float, float]:
    """Count the bytes per query and key that the reference moves, forward and backward."""
    keys, width = 512, 16
    count = 9 if kind == "additive" else 7
    shape = (1, 1, keys, width)
    q, k, v, *rest = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(count))
    with Counter() as forward:
        if kind == "additive":
            out = additive_window_attention(q, k, v, *rest[4:], Boundaries(*rest[:4]), impl="reference")
        else:
            out = multiplicative_window_attention(q, k, v, Boundaries(*rest), impl="reference")
    with Counter() as backward:
        torch.autograd.grad(out.sum(), [q, k, v, *rest])
    return forward.bytes / keys**2, backward.bytes / keys**2


def computing(multiply_adds: float, counts: tuple[int, int], p: Problem, gpu: Gpu) -> tuple[float, ...]:
    """Return the seconds that the matrix units, the exponentials and the other arithmetic take."""
    exponentials, operations = counts
    return (
        2 * p.pairs * multiply_adds / (gpu.matrix_flops * EFFICIENCY),
        p.pairs * exponentials / gpu.exponentials,
        p.pairs * operations / gpu.operations,
    )


def span(units: tuple[float, ...], memory: tuple[float, ...] = (0.0,)) -> str:
    """Show the time with all units at work at once, and with one after the other."""
    return f"{1e3 * max(*units, *memory):.2f} - {1e3 * (sum(units) + max(memory)):.2f}"


def show(p: Problem) -> None:
    print(
        f"{p.heads} heads, {p.keys} queries and keys, width {p.width}, pointers {p.boundary_dim}, bf16, ms\n"
    )
    columns = (
        "GPU kind step eager compiled FlashAttention-2 Triton products exponentials arithmetic memory cache"
    )
    print("| " + " | ".join(columns.split()) + " |")
    print("|---" * len(columns.split()) + "|")
    for gpu in GPUS:
        for kind in ("multiplicative", "additive"):
            eager = dict(zip(("forward", "backward"), eager_bytes(kind), strict=True))
            compiled = dict(zip(("forward", "backward"), COMPILED[kind], strict=True))
            for step in ("forward", "backward"):
                row(gpu, kind, step, p, eager[step], compiled[step])


def row(gpu: Gpu, kind: str, step: str, p: Problem, eager: float, compiled: float) -> None:
    units = computing(products(kind, step, p), OURS[kind, step], p, gpu)
    in_memory, in_cache = traffic(kind, step, p)
    memory = (in_memory / gpu.bandwidth, in_cache / gpu.cache)
    flash = computing((2 if step == "forward" else 5) * p.width, FLASH[step], p, gpu)
    moved = [f"{1e3 * p.pairs * each / gpu.bandwidth:.1f}" for each in (eager, compiled)]
    parts = [f"{1e3 * seconds:.2f}" for seconds in (*units, *memory)]
    print("| " + " | ".join([gpu.name, kind, step, *moved, span(flash), span(units, memory), *parts]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--heads", type=int, default=64, help="heads of all sentences together")
    parser.add_argument("--keys", type=int, default=2048)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--boundary-dim", type=int, help="width of the pointers; the heads' unless given")
    chosen = parser.parse_args()
    show(Problem(chosen.heads, chosen.keys, chosen.width, chosen.boundary_dim or chosen.width))
    for kind in ("multiplicative", "additive"):
        print(f"\nbytes per query and key, eager, {kind}:", *(f"{x:.0f}" for x in eager_bytes(kind)))


if __name__ == "__main__":
    main()
