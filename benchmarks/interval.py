"""Time interval attention against plain attention, all in one run, as ratios of medians.

Repetitions are interleaved. Plain attention is the fastest of what torch has for grouped heads: with
enable_gqa, with keys and values repeated in the call, and repeated beforehand, which is then not counted:

    python benchmarks/interval.py            # about a minute
    python benchmarks/interval.py --json     # a list of rows for programs
"""

import argparse
import json
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention import Step, interleave
from diffwindow.functional import repeat_heads
from diffwindow.ops import interval_attention

SINKS = 4
TILE = 64
HEADS = ((9, 3), (8, 8))
WIDTH = 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Case(NamedTuple):
    """What one row of the table measures: of prefill, `share` is that of causal tiles which are read."""

    what: str  # "decode", "prefill" or "train"
    heads: int
    kv_heads: int
    keys: int
    share: float
    dtype: str = "fp32"


CASES = (
    *(Case("decode", *heads, 8192, share) for heads in HEADS for share in (0.34, 0.1, 1.0)),
    *(Case("decode", *heads, 8192, 0.34, "bf16") for heads in HEADS),
    *(
        Case(what, *heads, 2048, share)
        for what in ("prefill", "train")
        for heads in HEADS
        for share in (0.5, 1.0)
    ),
)


def spans(heads: int, mean: float) -> Tensor:
    """Give each head a span of its own, from half to one and a half times the mean."""
    return (mean * torch.linspace(0.5, 1.5, heads)).round().long().view(heads, 1)


def intervals(case: Case) -> tuple[Tensor, Tensor]:
    """Return the start and the end of windows with the share of the case."""
    if case.what == "decode":
        end = torch.tensor([case.keys - 1])
        return end + 1 - spans(case.heads, case.share * case.keys - SINKS * (case.share < 1)), end
    end = torch.arange(case.keys)
    low, high = 0.0, 4.0 * case.keys
    while high - low > 1:
        middle = (low + high) / 2
        reads = share_of_tiles(end - spans(case.heads, middle) + 1, end)
        low, high = (low, middle) if reads > case.share else (middle, high)
    return end - spans(case.heads, high if case.share == 1 else low) + 1, end


def share_of_tiles(start: Tensor, end: Tensor) -> float:
    """Return the share of the causal tiles that hold a key which a query of theirs looks at."""
    last = end.view(-1, TILE)[:, -1] // TILE
    first = start.clamp(min=0).view(start.shape[0], -1, TILE).amin(-1) // TILE
    # the first tile has the sinks
    read = last - first + 1 + (first > 0)
    return read.sum().item() / ((last + 1).sum().item() * start.shape[0])


def plain_variants(case: Case, q: Tensor, k: Tensor, v: Tensor) -> list[Callable[[], Tensor]]:
    causal = case.what != "decode"
    if case.heads == case.kv_heads:
        return [lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)]
    # repeated in the graph, so that training counts what it costs to add their gradients up
    before = [repeat_heads(x.detach(), case.heads).requires_grad_(x.requires_grad) for x in (k, v)]
    return [
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        lambda: F.scaled_dot_product_attention(
            q, repeat_heads(k, case.heads), repeat_heads(v, case.heads), is_causal=causal
        ),
        lambda: F.scaled_dot_product_attention(q, *before, is_causal=causal),
    ]


def step(case: Case, run: Callable[[], Tensor]) -> Step:
    """Give a step of forward, and for training of backward."""

    def forward() -> object:
        with torch.no_grad():
            return run()

    def both() -> object:
        run().sum().backward()
        return None

    return both if case.what == "train" else forward


def measure(case: Case, seconds: float) -> dict[str, object]:
    torch.manual_seed(0)
    queries = 1 if case.what == "decode" else case.keys
    shapes = ((case.heads, queries), (case.kv_heads, case.keys), (case.kv_heads, case.keys))
    q, k, v = (torch.randn(1, *shape, WIDTH).to(DTYPES[case.dtype]) for shape in shapes)
    for x in (q, k, v):
        x.requires_grad_(case.what == "train")
    start, end = intervals(case)
    causal = case.what != "decode"

    def ours() -> Tensor:
        return interval_attention(q, k, v, start, end, sinks=SINKS, is_causal=causal, impl="cpu")

    runs = [ours, *plain_variants(case, q, k, v)]
    mine, *plain = interleave([step(case, run) for run in runs], seconds, 7)
    best = min(plain)
    return {**case._asdict(), "vs_sdpa": mine / best, "seconds": mine, "sdpa_seconds": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--only", choices=("decode", "prefill", "train"), help="one kind of rows")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    if not options.json:
        print("what     heads  keys  share  dtype   / SDPA       ms  SDPA ms")
    for case in CASES:
        if options.only not in (None, case.what):
            continue
        rows.append(measure(case, options.seconds))
        row = rows[-1]
        if not options.json:
            print(
                f"{case.what:<9}{case.heads}/{case.kv_heads}{case.keys:>8}{case.share:>7.2f}  {case.dtype:<6}"
                f"{row['vs_sdpa']:>8.2f}{row['seconds'] * 1e3:>9.2f}{row['sdpa_seconds'] * 1e3:>9.2f}",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
