"""Time a layer with relative positions against the same layer without, in turns, in one run.

A step is forward and backward.

    python benchmarks/relative.py [--size 16] [--threads 1 2]
"""

import argparse
import statistics
import time

import torch

from diffwindow import WindowAttention

# batch, tokens, width, heads
SHAPES = ((1, 512, 512, 8), (8, 128, 512, 8), (64, 32, 128, 4))
ROUNDS = 12


def run(layer: WindowAttention, x: torch.Tensor) -> None:
    output, _ = layer(x, x, x, need_weights=False)
    output.sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=16, help="the distance at which positions are clipped")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    heads = f"{'threads':>7} {'batch':>5} {'tokens':>6} {'width':>5}  {'window':<14}"
    print(f"{heads} {'ms':>6} {'with / without':>14}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for batch, tokens, width, num_heads in SHAPES:
            x = torch.randn(batch, tokens, width)
            for window in ("additive", "multiplicative"):
                sizes = (None, options.size)
                layers = [
                    WindowAttention(width, num_heads, window=window, relative_size=size) for size in sizes
                ]
                times: list[list[float]] = [[], []]
                for _ in range(1 + ROUNDS):
                    for layer, spent in zip(layers, times, strict=True):
                        start = time.perf_counter()
                        run(layer, x)
                        spent.append(time.perf_counter() - start)
                plain, relative = (statistics.median(spent[1:]) for spent in times)
                row = f"{threads:>7} {batch:>5} {tokens:>6} {width:>5}  {window:<14}"
                print(f"{row} {1000 * plain:>6.1f} {relative / plain:>14.2f}", flush=True)


if __name__ == "__main__":
    main()
