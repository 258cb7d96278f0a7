"""Watch attentions while a model runs, and measure windows in linear memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import ops
from diffwindow.attention.stacked_attention import StackedAttention
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.attention.window_attention import WindowAttention

A = TypeVar("A", bound=StackedAttention)


@contextmanager
def watched(
    attentions: Sequence[A], watcher: Callable[[A, Tensor, Tensor, Visibility], None]
) -> Iterator[None]:
    """Call `watcher` before each of the attentions attends, with its projected queries and keys."""
    try:
        for attention in attentions:
            attention.watchers = (*attention.watchers, watcher)
        yield
    finally:
        # others may have come or gone in the meantime
        for attention in attentions:
            attention.watchers = tuple(one for one in attention.watchers if one is not watcher)


def window_attentions(model: nn.Module) -> list[WindowAttention]:
    """List the window attentions of a model."""
    return [module for module in model.modules() if isinstance(module, WindowAttention)]


def mean_window(
    attention: WindowAttention,
    queries: Float[Tensor, "b q queries"],
    keys: Float[Tensor, "b k keys"],
    visibility: Visibility = EVERYTHING,
) -> Float[Tensor, ""]:
    """Return the mean of M over the keys that a query sees, averaged over queries, heads and the batch.

    Queries that are padding count as well. Uniform attention to values of one gives it to each query, in
    memory linear in the length.
    """
    q, q_left, q_right, *_ = attention.query_heads(queries)
    k, k_left, k_right, *_, v = attention.key_heads(keys)
    means = ops.multiplicative_window_attention(
        q.new_zeros(*q.shape[:3], 1),
        k.new_zeros(*k.shape[:3], 1),
        v.new_ones(*v.shape[:3], 1),
        ops.Boundaries(q_left, k_left, q_right, k_right),
        attn_mask=visibility.visible(q, k) if visibility.attn_bias is not None else visibility.attn_mask,
        is_causal=visibility.is_causal,
        segment_size=attention.segment_size,
        segment_origin=visibility.segment_origin,
        expectation=attention.expectation,
        window_tolerance=attention.window_tolerance,
        impl=attention.impl,
    )
    return means.float().mean()
