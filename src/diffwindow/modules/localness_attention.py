"""LocalnessAttention: encoder self-attention with a predicted Gaussian bias (Yang et al. 2018)."""

from jaxtyping import Bool, Float
from torch import Tensor

from diffwindow.modules.global_attention import GlobalAttention
from diffwindow.modules.pointer import Pointer, real_positions


class LocalnessAttention(GlobalAttention):
    """Prefer keys around a predicted centre: softmax(q kᵀ/√e − (j − P)²/2σ²), σ = D/2 (Yang et al. 2018).

    Centre and window are query-specific, P = n sigmoid(u tanh(W q)) and D = n sigmoid(u′ tanh(W q)) in a
    sequence of n real tokens, with one W for both and a u and a u′ a head.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.pointer = Pointer(embed_dim, num_heads, num_pointers=2)

    def bias(
        self,
        queries: Float[Tensor, "b q queries"],
        num_keys: int,
        attn_mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "b h q k"]:
        """Give the logarithm of each query's Gaussian."""
        count, position = real_positions(queries, num_keys, attn_mask)
        centre, window = self.pointer(queries)
        # a sequence of padding alone, whose weights are zero anyway, must not divide zero by zero
        deviation = count.clamp(min=1) * window / 2
        bias: Tensor = -(position - count * centre).square() / (2 * deviation.square())
        return bias.to(queries.dtype)
