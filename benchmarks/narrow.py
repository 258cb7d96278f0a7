"""Time updates of a language model of bytes whose attention is narrow, against the plain model, in turns.

Each query of the band reads the last WIDTH keys, with the kernels of intervals: the most that any local
attention could save. The windows (normalised, narrow pointers, four sinks) are WIDTH keys wide on average;
a bias that grows with the place of the key holds their pointers near the query.

    python benchmarks/narrow.py [--length 2048] [--width 32] [--tolerance 0.01] [--seconds 60] [--threads 1]
"""

import argparse
import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from training_step import PLAIN, Step, make_step, measure

from diffwindow import Boundaries, LanguageModel, LanguageModelConfig, ops
from diffwindow.attention.plain import GlobalAttention
from diffwindow.attention.window import WindowAttention

WINDOWS, SINKS = "Dec(MW,Norm,Dim=8,Sink=4)@all", 4
SIZE = {"vocab_size": 260, "embed_dim": 256, "num_heads": 4, "ffn_dim": 1024, "num_layers": 4, "dropout": 0.0}


def make_model(attention: str) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**SIZE, attention=attention, positions="rotary"))


def band_model(width: int) -> LanguageModel:
    model = make_model(PLAIN)
    for attention in model.modules():
        if isinstance(attention, GlobalAttention):
            attention._attend = keep_near(attention, width)
    return model


def keep_near(attention: GlobalAttention, width: int) -> Callable[..., Tensor]:
    def attend(queries: Tensor, keys: Tensor, _: object) -> Tensor:
        (q,), (k, v) = attention.query_heads(queries), attention.key_heads(keys)
        last = torch.arange(k.shape[2])
        near = ops.interval_attention(q, k, v, last - width + 1, last, sinks=SINKS, is_causal=True)
        return attention._merge_heads(near)

    return attend


def window_model(width: int, tolerance: float) -> LanguageModel:
    model = make_model(WINDOWS)
    for attention in model.modules():
        if isinstance(attention, WindowAttention):
            attention.options = attention.options._replace(window_tolerance=tolerance)
            attention.split_heads = hold_pointers(attention.split_heads, width)
    return model


def hold_pointers(split_heads: Callable[..., tuple], width: int) -> Callable[..., tuple]:
    """Add the key's place, divided by the width, to the scores of the left pointer, and more to the right."""

    def split(queries: Tensor, keys: Tensor) -> tuple:
        q, k, v, pointers, local = split_heads(queries, keys)
        place = torch.arange(k.shape[2], dtype=k.dtype)[:, None].expand(*k.shape[:3], 1)

        def held(q: Tensor, k: Tensor, slope: float) -> tuple[Tensor, Tensor]:
            # scores are divided by the root of the width
            constant = q.new_full((*q.shape[:3], 1), slope * math.sqrt(q.shape[-1] + 1))
            return torch.cat([q, constant], dim=-1), torch.cat([k, place], dim=-1)

        left = held(pointers.q_left, pointers.k_left, 1 / width)
        right = held(pointers.q_right, pointers.k_right, 8 / width)
        return q, k, v, Boundaries(*left, *right), local

    return split


def make_update(model: LanguageModel, length: int) -> Step:
    torch.manual_seed(0)
    text = torch.randint(4, SIZE["vocab_size"], (2, length + 1))

    def loss() -> Tensor:
        found = model.loss(text[:, :-1], text[:, 1:])
        return found.total / found.num_tokens

    return make_step(model, loss, "cpu", "fp32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--length", type=int, default=2048, help="bytes a text; two texts a batch")
    parser.add_argument("--width", type=int, default=32, help="keys of the band; mean width of the windows")
    parser.add_argument("--tolerance", type=float, default=0.01, help="the windows' tolerance")
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to measure")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models = {
        PLAIN: make_model(PLAIN),
        "band": band_model(options.width),
        "windows": window_model(options.width, options.tolerance),
    }
    steps = {name: make_update(model, options.length) for name, model in models.items()}
    median = {name: statistics.median(times) for name, times in measure(steps, options.seconds).items()}
    for name, seconds in median.items():
        print(
            f"{name:<8}{seconds * 1e3:>8.0f} ms an update, {median[PLAIN] / seconds:.2f} of the plain speed"
        )


if __name__ == "__main__":
    main()
