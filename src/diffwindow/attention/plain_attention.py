"""GlobalAttention: the plain Transformer's attention, and the ground for those that bias its scores."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from diffwindow import functional
from diffwindow.attention.stacked_attention import StackedAttention
from diffwindow.attention.visibility import EVERYTHING, View


class GlobalAttention(StackedAttention):
    """Attend to every key that the mask allows: softmax(q kᵀ/√e + bias) v, where the bias is none.

    A kind that prefers some keys by their place overrides `bias`; all run in PyTorch's fused attention.
    """

    def bias(
        self,
        queries: Float[Tensor, "b q queries"],
        num_keys: int,
        attn_mask: Bool[Tensor, "..."] | None,
    ) -> Tensor | None:
        """Give what to add to the scores, or a boolean mask to apply to them, broadcasting to `[b h q k]`."""
        return None

    def attend(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Float[Tensor, "b q d"]:
        """Attend with projected queries and keys; there are no segments, so their origin has no effect."""
        (q,) = self._query_heads(queries)
        k, v = self._key_heads(keys)
        bias = self.bias(queries, keys.shape[1], view.attn_mask)
        return self._merge_heads(plain_attention(q, k, v, view, bias, dropout_p=self._active_dropout()))

    def maps(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Float[Tensor, "b h q k"]:
        """Give the weights of `attend`, without dropout."""
        (q,) = self._query_heads(queries)
        k, _ = self._key_heads(keys)
        scores = functional.scores(q, k)
        joined = _join(self.bias(queries, keys.shape[1], view.attn_mask), view.visible(q, k))
        if joined is None or not joined.is_floating_point():
            return functional.masked_softmax(scores, joined)
        return functional.masked_softmax(scores + joined, joined.isfinite())


def plain_attention(
    q: Float[Tensor, "b h q e"],
    k: Float[Tensor, "b h k e"],
    v: Float[Tensor, "b h k e"],
    view: View,
    bias: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
) -> Float[Tensor, "b h q e"]:
    """Attend in PyTorch's fused attention to what `view` shows, with a bias (or one more mask) if given."""
    # PyTorch takes either its own causal mask, which is the faster, or ours.
    plain = view.attn_mask is None and bias is None
    mask = None if plain else _join(bias, view.visible(q, k))
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout_p, is_causal=plain and view.is_causal
    )


def _join(bias: Tensor | None, visible: Tensor | None) -> Tensor | None:
    """Join a bias (or a mask) and a mask to what `scaled_dot_product_attention` takes."""
    if bias is None or visible is None:
        return visible if bias is None else bias
    if not bias.is_floating_point():
        return bias & visible
    return bias.masked_fill(~visible, float("-inf"))
