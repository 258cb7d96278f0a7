"""Time a linear layer of a decoding step in fp32 and in eight bits, ours and torch's, in turns, in one run.

Microseconds are medians. FBGEMM and oneDNN round the inputs of all rows with one scale; the time of oneDNN is
without that rounding.

    python benchmarks/linear.py [--inputs 512] [--outputs 1536] [--rows 1 32 160] [--threads 2]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffwindow.kernels import few_rows
from diffwindow.kernels.int8 import Int8Linear

LARGEST = 127.0
ROUNDS = 300


def fbgemm(layer: nn.Linear, x: Tensor) -> Callable[[], Tensor]:
    scale = layer.weight.abs().max().item() / LARGEST
    weight = torch.quantize_per_tensor(layer.weight, scale, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, layer.bias)
    return lambda: torch.ops.quantized.linear_dynamic(x, packed)


def onednn(layer: nn.Linear, x: Tensor) -> Callable[[], Tensor]:
    scales = layer.weight.abs().amax(-1) / LARGEST
    rounded = (layer.weight / scales[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded, list(x.shape))
    scale = x.abs().max().item() / LARGEST
    inputs = (x / scale).round().add(128).to(torch.uint8)
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    return lambda: torch.ops.onednn.qlinear_pointwise(
        inputs, scale, 128, packed, scales, zeros, layer.bias, 1.0, 0, torch.float32, "none", [], ""
    )


def measure(runs: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Return the median microseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(spent[ROUNDS // 10 :]) for name, spent in times.items()}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=512)
    parser.add_argument("--outputs", type=int, default=1536)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 160])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layer = nn.Linear(options.inputs, options.outputs)
    rounded = Int8Linear(layer.weight, layer.bias)
    for rows in options.rows:
        x = torch.randn(rows, options.inputs)
        runs = {
            "fp32": lambda x=x: few_rows.apply(layer, x),
            "ours, int8": lambda x=x: rounded(x),
            "FBGEMM": fbgemm(layer, x),
            "oneDNN": onednn(layer, x),
        }
        exact = runs["fp32"]()
        for name, run in runs.items():
            error = (run() - exact).abs().max() / exact.abs().max()
            assert error < 0.05, f"{name} differs by {error:.1%}"
        found = measure(runs)
        print(f"{rows:>4} rows  " + "  ".join(f"{name} {spent:.0f} µs" for name, spent in found.items()))


if __name__ == "__main__":
    main()
