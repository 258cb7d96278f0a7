"""BandAttention: self-attention in a fixed band around each query."""

from jaxtyping import Bool, Float
from torch import Tensor

from diffwindow.modules.global_attention import GlobalAttention
from diffwindow.modules.positions import relative_positions


class BandAttention(GlobalAttention):
    """See only the keys at most `size` tokens away, |i − j| ≤ size (Sperber et al. 2018, hard masking)."""

    def __init__(self, embed_dim: int, num_heads: int, *, size: int = 5, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.size = size

    def bias(
        self,
        queries: Float[Tensor, "b q queries"],
        num_keys: int,
        attn_mask: Bool[Tensor, "..."] | None,
    ) -> Bool[Tensor, "q k"]:
        """Mark the band."""
        return relative_positions(queries.shape[1], num_keys, queries.device).abs() <= self.size
