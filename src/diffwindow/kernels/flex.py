"""Interval attention on a GPU: torch's flex_attention, which skips the blocks that no query reaches."""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from diffwindow.kernels.interval import Call


def attend(call: Call) -> Tensor:
    """Compute a call whose arguments were checked, without dropout; on a GPU compiled, elsewhere eagerly.

    Unlike in the other implementations, a NaN among the values of hidden keys may reach the output.
    """
    # its import takes as long as torch itself
    from torch.nn.attention.flex_attention import create_block_mask

    q, k, v = call.q, call.k, call.v
    batch, heads, queries, keys = (*q.shape[:3], k.shape[2])
    rows, full = (batch, heads, queries), (batch, heads, queries, keys)
    start = q.new_zeros(rows, dtype=torch.long) if call.start is None else call.start.expand(rows)
    end = q.new_full(rows, keys, dtype=torch.long) if call.end is None else call.end.expand(rows)
    origin = q.new_zeros(rows[0], dtype=torch.long) if call.origin is None else call.origin
    mask, bias = (None if x is None else x.expand(full) for x in (call.attn_mask, call.attn_bias))

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (start[b, h, i] <= j) & (j <= end[b, h, i])
        inside = inside | ((origin[b] <= j) & (j < origin[b] + call.sinks))
        if mask is not None:
            inside = inside & mask[b, h, i, j]
        if bias is not None:
            inside = inside & (bias[b, h, i, j] != float("-inf"))
        return inside & (j <= i) if call.is_causal else inside

    def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score if bias is None else score + bias[b, h, i, j]

    compiled = q.device.type == "cuda"
    blocks = create_block_mask(sees, batch, heads, queries, keys, device=q.device, _compile=compiled)
    options = {"block_mask": blocks, "scale": call.scale, "enable_gqa": k.shape[1] != q.shape[1]}
    with warnings.catch_warnings():
        # uncompiled it says that it materialises the scores, as the reference does
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out: Tensor = _flex(compiled=compiled)(q, k, v, score_mod=add_bias, **options)
    return out


@cache
def _flex(*, compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
