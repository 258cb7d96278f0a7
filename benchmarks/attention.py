"""Time window attention against plain attention and against the reference, all in one run.

Repetitions are interleaved, so that a machine which changes pace does so for all, and medians are compared:

    python benchmarks/attention.py            # the whole table, some minutes
    python benchmarks/attention.py --quick    # under 45 seconds
    python benchmarks/attention.py --json     # a list of rows for programs
    python benchmarks/attention.py --device cuda --dtype bf16   # on a GPU, against SDPA's own kernels there

Windows that leave something out (of each row, `width` is the mean of M over the visible keys, `reached` the
share of them with M above the tolerance). Also with --quick, which then keeps the multiplicative rows at
2,048 keys without a causal mask, or with --causal those with one, where windows lie before their query:

    python benchmarks/attention.py --boundary-dim 8 --width 0.1 --tolerance 1e-4
    python benchmarks/attention.py --boundary-dim 8 --width 0.1 --causal --sinks 4
"""

import argparse
import ctypes
import gc
import itertools
import json
import math
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from diffwindow.ops import Boundaries, window_attention, window_maps

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
    boundary_dim: int | None = None
    width: float | None = None
    tolerance: float = 0.0
    normalize: bool = False
    sinks: int = 0

    @property
    def is_local(self) -> bool:
        """Say whether the windows are made for what they leave out."""
        return self.boundary_dim is not None or self.width is not None or self.tolerance > 0

    @property
    def forward_only(self) -> bool:
        """Say whether plain attention's backward would take too long here."""
        return self.shape == LONGEST and self.device == "cpu" and not self.is_local

    @property
    def boundary_shape(self) -> tuple[int, int, int, int]:
        """The shape of the boundaries' queries and keys."""
        return (*self.shape[:3], self.boundary_dim or self.shape[3])


Step = Callable[[], object]


def cases(like: Case, *, quick: bool) -> list[Case]:
    """List the cases with the device, type and windows of `like`."""
    masks = (True,) if like.causal else (False, True)
    rows = itertools.product(KINDS, (1,) if like.is_local else SEGMENT_SIZES, masks, SHAPES)
    every = [Case(*row, *like[4:]) for row in rows]
    if like.is_local:
        every += [case._replace(normalize=True) for case in every if case.kind == "multiplicative"]
    every = [case._replace(sinks=0) if case.kind == "additive" else case for case in every]
    every.sort(key=lambda case: SHAPES.index(case.shape))
    return [case for case in every if not quick or is_quick(case, like)]


def is_quick(case: Case, like: Case) -> bool:
    """Keep a case of each length and kind, and segments with causal masks at two lengths."""
    if case.is_local:
        return (case.kind, case.causal, case.shape[2]) == ("multiplicative", like.causal, 2048)
    if case.forward_only:
        return case[:3] == ("additive", 1, False)
    plainest, fullest = (1, False), (5, True)
    return case[1:3] == plainest or (case[1:3] == fullest and case.shape[2] in (64, 512))


def inputs(case: Case) -> list[Tensor]:
    """Draw q, k, v, the boundaries' queries and keys and, for additive windows, the local ones."""
    torch.manual_seed(0)
    drawn = [random(case, case.shape) for _ in range(3)]
    if case.width is None:
        drawn += [random(case, case.boundary_shape) for _ in range(4)]
    else:
        drawn += boundaries_around(case, case.width)
    drawn += [random(case, case.shape) for _ in range(2 if case.kind == "additive" else 0)]
    return [x.requires_grad_(not case.forward_only) for x in drawn]


def random(case: Case, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, device=case.device, dtype=DTYPES[case.dtype])


def boundaries_around(case: Case, width: float) -> list[Tensor]:
    """Make queries and keys of boundaries whose windows cover a share `width` of the keys.

    Windows lie along the diagonal, each up to a tenth of its width off it; causal ones end up to a fifth of
    their width before their query. The first two dimensions point: keys lie on a half circle, in order, and a
    query points at its place on it, so that φ is about a normal distribution around it; its deviation is a
    twentieth of the width. The other dimensions are noise.
    """
    batch, heads, length, dim = case.boundary_shape
    options = {"device": case.device, "dtype": torch.float32}
    key_place = torch.arange(length, **options) / length
    off = torch.rand(batch, heads, length, **options) * width / 5
    if case.causal:
        centre = key_place - width / 2 - off
    else:
        centre = width / 2 + key_place * (1 - width) + off - width / 10
    sharpness = math.sqrt(dim) / (math.pi * width / 20) ** 2
    tensors = []
    for edge in (-width / 2, width / 2):
        for place, scale in ((centre + edge, sharpness), (key_place.expand_as(centre), 1.0)):
            x = torch.randn(case.boundary_shape, **options)
            x[..., :2] = scale * torch.stack([(math.pi * place).cos(), (math.pi * place).sin()], -1)
            tensors.append(x.to(DTYPES[case.dtype]))
    return tensors


def describe_window(case: Case, tensors: list[Tensor]) -> dict[str, float]:
    """Measure the mean of M and the share of it above the tolerance, over some queries of a head."""
    some = slice(None, None, max(1, case.shape[2] // 64))
    q, k, _, *pointers = (x[:1, :1].detach().float() for x in tensors)
    q, pointers[0], pointers[2] = q[:, :, some], pointers[0][:, :, some], pointers[2][:, :, some]
    visible = torch.ones(case.shape[2], case.shape[2], dtype=torch.bool, device=q.device)
    visible = (visible.tril() if case.causal else visible)[some]
    maps = window_maps(q, k, Boundaries(*pointers[:4]), attn_mask=visible, sinks=case.sinks)
    seen = maps.window.values[:, :, visible]
    return {
        "width": seen.mean().item(),
        "reached": (seen >= max(case.tolerance, 1e-6)).float().mean().item(),
    }


def window(case: Case, tensors: list[Tensor], impl: str) -> Tensor:
    q, k, v, *pointers = tensors
    boundaries = Boundaries(*pointers[:4])
    options = {
        "is_causal": case.causal,
        "segment_size": case.segment_size,
        "window_tolerance": case.tolerance,
        "normalize": case.normalize,
        "sinks": case.sinks,
        "impl": impl,
    }
    return window_attention(q, k, v, boundaries, tuple(pointers[4:]) or None, **options)


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
    grad = random(case, case.shape)
    impl = "triton" if case.device == "cuda" else "cpu"
    forward, both = steps(lambda: window(case, tensors, impl), tensors, grad)
    plain_forward, plain_both = steps(lambda: plain(case, tensors), tensors[:3], grad)
    memory, ours = (extra_bytes_on_gpu if case.device == "cuda" else extra_bytes)(both)
    budget, least = (0.1, 3) if quick else (2.0, 3 if case.shape == LONGEST else 7)
    if quick and case.is_local:
        budget, least = 6.0, 5
    if case.forward_only:
        if quick:
            (sdpa,) = interleave([plain_forward], 0, 1)
        else:
            ours, sdpa = interleave([forward, plain_forward], 0, 3)
        ours_forward, sdpa_forward = ours, sdpa
    else:
        ours, sdpa = interleave([both, plain_both], budget, least)
        ours_forward, sdpa_forward = interleave([forward, plain_forward], budget / 2, 1 if quick else least)
    reference = reference_time(case, tensors, grad, quick=quick)
    return {
        **case._asdict(),
        **(describe_window(case, tensors) if case.is_local else {}),
        "vs_sdpa": ours / sdpa,
        "vs_reference": None if reference is None else ours / reference,
        "forward_vs_sdpa": ours_forward / sdpa_forward,
        "extra_bytes": memory,
        "seconds": ours,
        "sdpa_seconds": sdpa,
    }


def reference_time(case: Case, tensors: list[Tensor], grad: Tensor, *, quick: bool) -> float | None:
    """Time the reference; at the longest shape by one head, as all need more memory than most have.

    Return None for its backward there, which needs too much memory even for one.
    """
    heads = 1
    if case.shape == LONGEST and case.device == "cpu" and not case.forward_only:
        return None
    if case.forward_only:
        heads = case.shape[1]
        tensors = [x[:, :1] for x in tensors]
    _, both = steps(lambda: window(case, tensors, "reference"), tensors, grad)
    (median,) = interleave([both], 0, 1 if quick else 3)
    return median * heads


def show(row: dict[str, object], *, header: bool) -> None:
    if header:
        print(
            "kind           seg causal  norm  shape             / SDPA forward       ms  / reference      MiB"
        )
    print(
        f"{row['kind']:<14}{row['segment_size']:>4}{row['causal']!s:>7}{row['normalize']!s:>6}"
        f"  {'x'.join(map(str, row['shape'])):<16}"
        f"{row['vs_sdpa']:>8.2f}{row['forward_vs_sdpa']:>8.2f}{row['seconds'] * 1e3:>9.2f}"
        f"{row['vs_reference'] or math.nan:>13.3f}{row['extra_bytes'] / 2**20:>9.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and cases, under 45 seconds")
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--boundary-dim", type=int, help="the head width of the boundaries")
    parser.add_argument("--width", type=float, metavar="SHARE", help="of the keys that a window covers")
    parser.add_argument("--tolerance", type=float, default=0.0, help="the window_tolerance")
    parser.add_argument("--causal", action="store_true", help="only causal rows, windows before their query")
    parser.add_argument("--sinks", type=int, default=0, help="the sinks of multiplicative windows")
    options = parser.parse_args()
    if options.width is not None and not 0 < options.width <= 1:
        parser.error(f"--width {options.width} is not a share above 0, up to 1")
    if options.boundary_dim is not None and options.boundary_dim < (1 if options.width is None else 2):
        parser.error(f"--boundary-dim {options.boundary_dim} is too narrow; windows of a --width need 2")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU")
    torch.set_num_threads(options.threads)
    rows = []
    like = Case(
        *("", 1, options.causal, LONGEST), options.device, options.dtype, options.boundary_dim, options.width,
        options.tolerance, sinks=options.sinks,
    )  # fmt: skip
    for case in cases(like, quick=options.quick):
        rows.append(measure(case, quick=options.quick))
        if not options.json:
            show(rows[-1], header=len(rows) == 1)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
