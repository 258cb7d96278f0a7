"""Watch the window attentions of a model while it runs, and measure their windows in linear memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import ops
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.attention.window_attention import WindowAttention

# Called with an attention, its projected queries and keys, and what they see.
Watcher = Callable[[WindowAttention, Tensor, Tensor, Visibility], None]


@contextmanager
def watched(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Call `watcher` before each window attention of a model attends."""
    modules = [module for module in model.modules() if isinstance(module, WindowAttention)]
    before = [module.watcher for module in modules]
    try:
        for module in modules:
            module.watcher = watcher
        yield
    finally:
        for module, earlier in zip(modules, before, strict=True):
            module.watcher = earlier


def mean_window(
    attention: WindowAttention,
    queries: Float[Tensor, "b q queries"],
    keys: Float[Tensor, "b k keys"],
    visibility: Visibility = EVERYTHING,
) -> Float[Tensor, ""]:
    """Return the mean of M over the keys that a query sees, averaged over queries, heads and the batch.

    Uniform attention to values of one gives it to each query, in memory linear in the length.
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
