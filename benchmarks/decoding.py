"""Time window attention of single queries against plain attention, and decoding with whole models.

Repetitions are interleaved, so that a machine which changes pace does so for all, and medians are compared.
Keys lie head by head in memory, and as a decoder's cache holds them:

    python benchmarks/decoding.py             # attention, under a minute
    python benchmarks/decoding.py --models    # tokens per second of greedy search with base models
    python benchmarks/decoding.py --models --beam 5 --dtype int8 --kinds plain "Enc(AW)-Cr(AW,Seg)-Dec(MW)"
    python benchmarks/decoding.py --share 0.1 --tolerance 1e-4   # windows on a tenth of the keys
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import start_continuation, start_translation
from diffwindow.models.int8 import round_weights
from diffwindow.models.language_model import LanguageModel, LanguageModelConfig
from diffwindow.models.translator import Translator, TranslatorConfig
from diffwindow.ops import Boundaries, window_attention

HEADS, WIDTH = 8, 64
# sentences and keys
SHAPES = ((1, 64), (32, 64), (160, 30), (8, 1024), (1, 4096))
KINDS = ("multiplicative", "additive")
LAYOUTS = ("heads", "cache")
BOUNDARY_DIMS = (64, 8)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODEL_KINDS = ("plain", "MW", "AW", "AW,Dim=8")
VOCABULARY, LENGTH = 32768, 32


class Options(NamedTuple):
    """What all rows of a run share."""

    dtype: torch.dtype
    share: float | None
    tolerance: float
    normalize: bool
    seconds: float


def stack(sentences: int, length: int, widths: list[int], layout: str, dtype: torch.dtype) -> list[Tensor]:
    """Make one `[b h n e]` tensor per width: each dense, or views of one row per key with space for more."""
    if layout == "heads":
        return [torch.randn(sentences, HEADS, length, width, dtype=dtype) for width in widths]
    space = length * 3 // 2
    rows = torch.randn(sentences, space, HEADS * sum(widths), dtype=dtype)[:, :length]
    blocks = rows.split([HEADS * width for width in widths], dim=-1)
    return [block.unflatten(-1, (HEADS, -1)).transpose(1, 2) for block in blocks]


def point(queries: list[Tensor], keys: list[Tensor], share: float) -> None:
    """Make the two pointers point at keys so that the window covers about a share of them."""
    num_keys = keys[0].shape[2]
    for q, k, place in zip(queries, keys, (0.5 - share / 2, 0.5 + share / 2), strict=True):
        q.normal_()
        k.normal_(std=0.1)
        k[:, :, int(place * (num_keys - 1))] = 4 * q[:, :, 0]


def row(shape: tuple[int, int], kind: str, layout: str, boundary_dim: int, options: Options) -> dict:
    sentences, num_keys = shape
    widths = [WIDTH, boundary_dim, boundary_dim, *([WIDTH] if kind == "additive" else [])]
    torch.manual_seed(0)
    q, *q_pointers = stack(sentences, 1, widths, layout, options.dtype)
    k, *k_pointers, v = stack(sentences, num_keys, [*widths, WIDTH], layout, options.dtype)
    if options.share is not None:
        point(q_pointers[:2], k_pointers[:2], options.share)
    boundaries = Boundaries(q_pointers[0], k_pointers[0], q_pointers[1], k_pointers[1])
    plain = [torch.randn(sentences, HEADS, n, WIDTH, dtype=options.dtype) for n in (1, num_keys, num_keys)]

    def window() -> Tensor:
        additive = kind == "additive"
        return window_attention(
            q,
            k,
            v,
            boundaries,
            (q_pointers[2], k_pointers[2]) if additive else None,
            window_tolerance=options.tolerance,
            normalize=options.normalize and not additive,
            impl="cpu",
        )

    ours, sdpa = interleave([window, lambda: F.scaled_dot_product_attention(*plain)], options.seconds)
    return {
        "sentences": sentences,
        "keys": num_keys,
        "kind": kind,
        "layout": layout,
        "boundary_dim": boundary_dim,
        "vs_sdpa": ours / sdpa,
        "seconds": ours,
        "sdpa_seconds": sdpa,
    }


def interleave(runs: list[Callable[[], object]], seconds: float) -> list[float]:
    """Return the median time of each, over rounds of about so many seconds."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < end:
        for run, kept in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]


def show(rows: list[dict]) -> None:
    print("times plain attention of the same shape, 8 heads of 64, MW / AW")
    print(f"{'sentences x keys':<18}{'layout':<8}" + "".join(f"{f'dim {dim}':>14}" for dim in BOUNDARY_DIMS))
    for shape in SHAPES:
        for layout in LAYOUTS:
            cells = []
            for dim in BOUNDARY_DIMS:
                key = (*shape, layout, dim)
                found = [
                    r["vs_sdpa"]
                    for r in rows
                    if (r["sentences"], r["keys"], r["layout"], r["boundary_dim"]) == key
                ]
                cells.append(" / ".join(f"{ratio:.2f}" for ratio in found))
            print(f"{f'{shape[0]} x {shape[1]}':<18}{layout:<8}" + "".join(f"{cell:>14}" for cell in cells))


def translate(kind: str, sentences: int, beam: int, dtype: str) -> tuple[Callable[[], object], int]:
    """Return a search over sources, and how many tokens it makes."""
    torch.manual_seed(0)
    attention = f"Cr({kind})@all-Dec({kind})@all"
    if kind == "plain" or is_notation(kind):
        attention = "Global" if kind == "plain" else kind
    model = Translator(TranslatorConfig(vocab_size=VOCABULARY, attention=attention)).eval()
    never_end(model)
    if dtype == "int8":
        round_weights(model)
    source = torch.randint(4, VOCABULARY, (sentences, LENGTH))
    start = lambda: start_translation(model, source, ratio=0.0, extra=LENGTH)  # noqa: E731
    return lambda: beam_search(model, start(), Decoding(beam=beam)), sentences * LENGTH


def is_notation(kind: str) -> bool:
    """Tell whether a kind says by itself which layers have it."""
    return "(" in kind


def generate(kind: str, sentences: int, beam: int, dtype: str) -> tuple[Callable[[], object], int]:
    attention = "Global" if kind == "plain" else f"Dec({kind})@all"
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(vocab_size=VOCABULARY, attention=attention)).eval()
    never_end(model)
    if dtype == "int8":
        round_weights(model)
    prompt = torch.randint(4, VOCABULARY, (sentences, LENGTH))
    start = lambda: start_continuation(model, prompt, limit=LENGTH)  # noqa: E731
    return lambda: beam_search(model, start(), Decoding(beam=beam)), sentences * LENGTH


def never_end(model: Translator | LanguageModel) -> None:
    """Make every output as long as its limit: a model that was never trained ends anywhere."""
    step = model.step

    def without_end(tokens: Tensor, state: object) -> Tensor:
        logits = step(tokens, state)
        logits[..., 2] = -1e4
        return logits

    model.step = without_end


def model_rows(kinds: list[str], batches: list[int], rounds: int, beam: int, dtype: str) -> list[dict]:
    rows = []
    tasks = {"translate": translate}
    if not any(map(is_notation, kinds)):
        tasks["generate"] = generate
    for sentences in batches:
        for name, build in tasks.items():
            runs = [build(kind, sentences, beam, dtype) for kind in kinds]
            times: list[list[float]] = [[] for _ in runs]
            for run, _ in runs:
                run()
            for _ in range(rounds):
                for (run, _), kept in zip(runs, times, strict=True):
                    start = time.perf_counter()
                    run()
                    kept.append(time.perf_counter() - start)
            for kind, (_, tokens), kept in zip(kinds, runs, times, strict=True):
                speed = tokens / statistics.median(kept)
                rows.append({"task": name, "sentences": sentences, "kind": kind, "tokens_per_second": speed})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row of attention")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--dtype", choices=[*DTYPES, "int8"], default="fp32", help="bf16 without --models, int8 with it"
    )
    parser.add_argument("--share", type=float, help="of the keys that windows cover; random if not given")
    parser.add_argument("--tolerance", type=float, default=0.0, help="the window tolerance")
    parser.add_argument("--normalize", action="store_true", help="normalise multiplicative windows")
    parser.add_argument("--models", action="store_true", help="time searches with base models instead")
    parser.add_argument(
        "--kinds", nargs="+", default=list(MODEL_KINDS), help="in the decoders of --models, or notations"
    )
    parser.add_argument("--beam", type=int, default=1, help="of --models; 1 is greedy search")
    parser.add_argument("--sentences", nargs="+", type=int, default=[1, 32], help="together in --models")
    parser.add_argument("--rounds", type=int, default=3, help="of --models")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.models:
        rows = model_rows(chosen.kinds, chosen.sentences, chosen.rounds, chosen.beam, chosen.dtype)
        lines = [
            f"{r['task']:<10}{r['sentences']:>3} sentences  {r['kind']:<10}"
            f"{r['tokens_per_second']:>8.0f} tokens/s"
            for r in rows
        ]
    else:
        options = Options(
            DTYPES[chosen.dtype], chosen.share, chosen.tolerance, chosen.normalize, chosen.seconds
        )
        with torch.no_grad():
            rows = [
                row(shape, kind, layout, dim, options)
                for shape in SHAPES
                for layout in LAYOUTS
                for dim in BOUNDARY_DIMS
                for kind in KINDS
            ]
    if chosen.json:
        print(json.dumps(rows))
    elif chosen.models:
        print("\n".join(lines))
    else:
        show(rows)


if __name__ == "__main__":
    main()
