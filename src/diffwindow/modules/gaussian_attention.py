"""GaussianAttention: Luong's local-p, cross-attention around a predicted source position."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from diffwindow import functional
from diffwindow.modules.pointer import Pointer, real_positions
from diffwindow.modules.stacked_attention import StackedAttention
from diffwindow.modules.view import EVERYTHING, View


class GaussianAttention(StackedAttention):
    """Align within a window and favour its middle: softmax(s) exp(−(j − p)²/2σ²) (Luong et al. 2015).

    The middle is p = n sigmoid(v tanh(W q)) in a source of n real tokens, one v a head; the softmax is over
    the keys with |j − p| ≤ D, where D is `size`, and σ = D/2. As there, the weights are not renormalised.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, size: int = 10, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.size = size
        self.pointer = Pointer(embed_dim, num_heads)

    def attend(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Float[Tensor, "b q d"]:
        """Attend with projected queries and keys; the view's mask tells how long each source is."""
        # the Gaussian multiplies each weight, so it is the same before it or after
        weights = F.dropout(self.maps(queries, keys, view), self._active_dropout())
        _, v = self._key_heads(keys)
        return self._merge_heads(functional.attend(weights, v))

    def maps(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Float[Tensor, "b h q k"]:
        """Give the weights of `attend`, without dropout."""
        (q,) = self._query_heads(queries)
        k, _ = self._key_heads(keys)
        count, position = real_positions(queries, keys.shape[1], view.attn_mask)
        (centre,) = self.pointer(queries)
        distance = position - count * centre
        near = distance.abs() <= self.size
        visible = view.visible(q, k)
        return functional.multiplicative_weights(
            functional.scores(q, k),
            (-distance.square() / (2 * (self.size / 2) ** 2)).exp(),
            mask=near if visible is None else near & visible,
        )
