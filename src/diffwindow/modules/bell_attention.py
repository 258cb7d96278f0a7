"""BellAttention: self-attention under a Gaussian around each query, whose width is trained."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffwindow.modules.global_attention import GlobalAttention
from diffwindow.modules.positions import relative_positions


class BellAttention(GlobalAttention):
    """Prefer near keys: softmax(q kᵀ/√e − (i − j)²/2σ²), one trained σ a head (Sperber et al. 2018).

    `size` is the σ that every head starts with.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, size: int = 5, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.deviation = nn.Parameter(torch.full((num_heads,), float(size)))

    def bias(
        self,
        queries: Float[Tensor, "b q queries"],
        num_keys: int,
        attn_mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "h q k"]:
        """Give the logarithm of each head's Gaussian."""
        distance = relative_positions(queries.shape[1], num_keys, queries.device)
        bias = -distance.square() / (2 * self.deviation.square()[:, None, None])
        return bias.to(queries.dtype)
