"""Time window attention against plain attention and against the reference, all in one run.

Repetitions are interleaved, so that a machine which changes pace does so for all, and medians are compared:

    python benchmarks/attention.py            # the whole table, some minutes
    python benchmarks/attention.py --quick    # under 45 seconds
    python benchmarks/attention.py --json     # a list of rows for programs
    python benchmarks/attention.py --device cuda --dtype bf16   # on a GPU, against SDPA's own kernels there
"""

import argparse
import ctypes
import gc
import itertools
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from diffwindow.ops import Boundaries, additive_window_attention, multiplicative_window_attention

LONGEST = (1, 8, 8192, 64)
SHAPES = ((64, 8, 32, 64), (32, 8, 64, 64), (8, 4, 512, 32), (1, 8, 2048, 64), LONGEST)
KINDS = ("multiplicative", "additive")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SEGMENT_SIZES = (1, 5)


class Case(NamedTuple):
    """What one row of the table measures."""

    kind: str
    segment_size: int
    causal: bool
    shape: tuple[int, int, int, int]
    device: str = "cpu"
    dtype: str = "fp32"

    @property
    def forward_only(self) -> bool:
        """Say whether plain attention's backward would take too long here."""
        return self.shape == LONGEST and self.device == "cpu"


Step = Callable[[], object]


def cases(device: str, dtype: str, *, quick: bool) -> list[Case]:
    rows = itertools.product(KINDS, SEGMENT_SIZES, (False, True), SHAPES)
    every = [Case(*row, device, dtype) for row in rows]
    every.sort(key=lambda case: SHAPES.index(case.shape))
    return [case for case in every if not quick or is_quick(case)]


def is_quick(case: Case) -> bool:
    """Keep a case of each length and kind, and segments with causal masks at two lengths."""
    if case.forward_only:
        return case[:3] == ("additive", 1, False)
    plainest, fullest = (1, False), (5, True)
    return case[1:3] == plainest or (case[1:3] == fullest and case.shape[2] in (64, 512))


def inputs(case: Case) -> list[Tensor]:
    count = 9 if case.kind == "additive" else 7
    torch.manual_seed(0)
    return [random(case).requires_grad_(not case.forward_only) for _ in range(count)]


def random(case: Case) -> Tensor:
    return torch.randn(case.shape, device=case.device, dtype=DTYPES[case.dtype])


def window(case: Case, tensors: list[Tensor], impl: str) -> Tensor:
    q, k, v, *pointers = tensors
    boundaries = Boundaries(*pointers[:4])
    options = {"is_causal": case.causal, "segment_size": case.segment_size, "impl": impl}
    if case.kind == "additive":
        return additive_window_attention(q, k, v, *pointers[4:], boundaries, **options)
    return multiplicative_window_attention(q, k, v, boundaries, **options)


def plain(case: Case, tensors: list[Tensor]) -> Tensor:
    return F.scaled_dot_product_attention(*tensors[:3], is_causal=case.causal)


def steps(run: Callable[[], Tensor], tensors: list[Tensor], grad: Tensor) -> tuple[Step, Step]:
    """Give a forward step without gradients, and a step of forward and backward (or forward alone again)."""

    def forward() -> Tensor:
        with torch.no_grad():
            return run()

    def both() -> object:
        return torch.autograd.grad(run(), tensors, grad)

    return forward, both if tensors[0].requires_grad else forward


def interleave(runs: list[Step], seconds: float, least: int) -> list[float]:
    """Give each run's median time over rounds of about so many seconds; a single round has no warm-up."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs if least > 1 else ():
        run()
    wait()
    end = time.perf_counter() + seconds
    while len(times[0]) < least or time.perf_counter() < end:
        for run, kept in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            wait()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def wait() -> None:
    """Wait for the GPU, if there is one at work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def extra_bytes_on_gpu(run: Step) -> tuple[int, float]:
    """Measure how far a run raises the GPU's memory above what it was before, and its time."""
    run()
    wait()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    run()
    wait()
    return torch.cuda.max_memory_allocated() - before, time.perf_counter() - start


def extra_bytes(run: Step) -> tuple[int, float]:
    """Measure how far a run raises the resident memory above what it was before (Linux), and its time."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    start = time.perf_counter()
    kept = run()
    seconds = time.perf_counter() - start
    peak = status("VmHWM")
    del kept
    return max(0, peak - before), seconds


def status(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


def measure(case: Case, *, quick: bool) -> dict[str, object]:
    tensors = inputs(case)
    grad = random(case)
    impl = "triton" if case.device == "cuda" else "cpu"
    forward, both = steps(lambda: window(case, tensors, impl), tensors, grad)
    plain_forward, plain_both = steps(lambda: plain(case, tensors), tensors[:3], grad)
    memory, ours = (extra_bytes_on_gpu if case.device == "cuda" else extra_bytes)(both)
    budget, least = (0.1, 3) if quick else (2.0, 7)
    if case.forward_only:
        if quick:
            (sdpa,) = interleave([plain_forward], 0, 1)
        else:
            ours, sdpa = interleave([forward, plain_forward], 0, 3)
        ours_forward, sdpa_forward = ours, sdpa
    else:
        ours, sdpa = interleave([both, plain_both], budget, least)
        ours_forward, sdpa_forward = interleave([forward, plain_forward], budget / 2, 1 if quick else least)
    return {
        **case._asdict(),
        "vs_sdpa": ours / sdpa,
        "vs_reference": ours / reference_time(case, tensors, grad, quick=quick),
        "forward_vs_sdpa": ours_forward / sdpa_forward,
        "extra_bytes": memory,
        "seconds": ours,
        "sdpa_seconds": sdpa,
    }


def reference_time(case: Case, tensors: list[Tensor], grad: Tensor, *, quick: bool) -> float:
    """Time the reference; at the longest shape by one head, as all need more memory than most have."""
    heads = 1
    if case.forward_only:
        heads = case.shape[1]
        tensors = [x[:, :1] for x in tensors]
    _, both = steps(lambda: window(case, tensors, "reference"), tensors, grad)
    (median,) = interleave([both], 0, 1 if quick else 3)
    return median * heads


def show(row: dict[str, object], *, header: bool) -> None:
    if header:
        print("kind            seg causal  shape             / SDPA forward       ms  / reference      MiB")
    print(
        f"{row['kind']:<15}{row['segment_size']:>4}{row['causal']!s:>7}"
        f"  {'x'.join(map(str, row['shape'])):<16}"
        f"{row['vs_sdpa']:>8.2f}{row['forward_vs_sdpa']:>8.2f}{row['seconds'] * 1e3:>9.2f}"
        f"{row['vs_reference']:>13.3f}{row['extra_bytes'] / 2**20:>9.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and cases, under 45 seconds")
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    torch.set_num_threads(options.threads)
    rows = []
    for case in cases(options.device, options.dtype, quick=options.quick):
        rows.append(measure(case, quick=options.quick))
        if not options.json:
            show(rows[-1], header=len(rows) == 1)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
