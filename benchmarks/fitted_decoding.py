"""Time decoding with a model and with windows fitted to it, and tell which part of it attention takes.

    python benchmarks/fitted_decoding.py MODEL --windows DIR --text FILE [--contexts 1024 4096 8192]

The first run also reads the contexts and keeps their keys and values in OUT, which takes minutes. One JSON
line per cell: tokens per second, and the milliseconds of a token inside and outside of attention.
"""

import argparse
import json
import lzma
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, StaticCache

from diffwindow.hf import attention as hf_attention
from diffwindow.hf import load_windows, remove_windows

# tokens of a round that are timed and that are not; plain and fitted take turns
STEPS, WARM, ROUNDS = 12, 3, 2


def read_context(
    model, tokenizer, text: Path, length: int, keep: Path
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the keys and values of a context by layer, from disk if it was read before."""
    path = keep / f"context-{length}.pt"
    if not path.is_file():
        raw = text.read_bytes()
        words = (lzma.decompress(raw) if text.suffix == ".xz" else raw)[: 8 * length].decode(errors="ignore")
        ids = torch.tensor([tokenizer(words)["input_ids"][:length]])
        cache = DynamicCache()
        with torch.no_grad():
            for part in ids.split(1024, dim=1):
                model(part, past_key_values=cache, logits_to_keep=1)
        torch.save([(layer.keys, layer.values) for layer in cache.layers], path)
    return torch.load(path)


def fill(model, states, kind: str):
    """Return a cache that holds a context."""
    dtype = model.dtype
    length = states[0][0].shape[2]
    cache = (
        DynamicCache()
        if kind == "dynamic"
        else StaticCache(model.config, max_cache_len=length + STEPS + WARM)
    )
    for number, (keys, values) in enumerate(states):
        cache.update(keys.to(dtype), values.to(dtype), number)
    return cache


@torch.no_grad()
def time_steps(model, states, kind: str) -> list[tuple[float, float]]:
    """Decode some tokens after a context; return the milliseconds of each, and those of them in attention."""
    length, times, spent = states[0][0].shape[2], [], [0.0]
    plain = hf_attention.window_attention_forward

    def timed(*args, **options):
        begun = time.perf_counter()
        found = plain(*args, **options)
        spent[0] += time.perf_counter() - begun
        return found

    hf_attention.AttentionInterface.register(hf_attention.IMPLEMENTATION, timed)
    cache = fill(model, states, kind)
    token = torch.tensor([[50]])
    for step in range(STEPS + WARM):
        spent[0], begun = 0.0, time.perf_counter()
        position = torch.tensor([[length + step]])
        token = model(token, past_key_values=cache, position_ids=position).logits[:, -1:].argmax(-1)
        if step >= WARM:
            times.append((1000 * (time.perf_counter() - begun), 1000 * spent[0]))
    hf_attention.register()
    return times


def describe(times: list[tuple[float, float]]) -> dict[str, float]:
    """Return the medians of tokens."""
    token_ms, attention_ms = (statistics.median(x) for x in zip(*times, strict=True))
    return {
        "tokens per second": round(1000 / token_ms, 2),
        "ms per token": round(token_ms, 2),
        "ms of attention": round(attention_ms, 2),
        "share of attention": round(attention_ms / token_ms, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--windows", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--caches", nargs="+", default=["dynamic", "static"])
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    for dtype in options.dtypes:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, dtype)).eval()
        for context in options.contexts:
            states = read_context(model, tokenizer, options.text, context, options.out)
            for kind in options.caches:
                times = {False: [], True: []}
                for fitted in (False, True) * ROUNDS:
                    if fitted:
                        load_windows(model, options.windows, check_base=False)
                    else:
                        # plain attention is timed at the same place
                        hf_attention.register()
                        model.set_attn_implementation(hf_attention.IMPLEMENTATION)
                    times[fitted] += time_steps(model, states, kind)
                    if fitted:
                        remove_windows(model)
                for fitted, found in times.items():
                    row = {"context": context, "dtype": dtype, "cache": kind, "fitted": fitted}
                    print(json.dumps(row | describe(found)), flush=True)


if __name__ == "__main__":
    main()
