"""Two causal attentions of today that prefer recent keys: forgetting and stick-breaking attention."""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from diffwindow import functional
from diffwindow.attention.plain_attention import plain_attention, plain_weights
from diffwindow.attention.positions import relative_positions
from diffwindow.attention.stacked_attention import Kind, StackedAttention
from diffwindow.attention.visibility import EVERYTHING, Visibility


class ForgettingAttention(StackedAttention):
    """Attend with softmax(q_i·k_j/√e + Σ_{l=j+1}^{i} log f_l), where f = sigmoid(w·x + b) (Lin et al. 2025).

    Each head has its gates. The gate of a token is projected beside its key and cached with it. Biases start
    at zero, so that a gate starts near one half, as in the authors' code.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, key_extra=(1,), dropout=dropout)

    def _attend(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        visibility: Visibility,
    ) -> Float[Tensor, "b q d"]:
        (q,) = self.query_heads(queries)
        k, gate, v = self.key_heads(keys)
        bias = forgetting_bias(gate, q.shape[2], visibility.visible(q, k)).to(q.dtype)
        return self._merge_heads(plain_attention(q, k, v, visibility, bias, dropout_p=self._active_dropout()))

    def maps(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        visibility: Visibility = EVERYTHING,
    ) -> Float[Tensor, "b h q k"]:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, gate, _ = self.key_heads(keys)
        return plain_weights(q, k, visibility, forgetting_bias(gate, q.shape[2], visibility.visible(q, k)))


def forgetting_bias(
    gate: Float[Tensor, "b h k 1"], num_queries: int, visible: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "b h q k"]:
    """Return Σ_{l=j+1}^{i} log sigmoid(gate_l) for the last `num_queries` keys i; 0 for keys after i.

    The gate of a key that a query does not see is left out of its sums.

    >>> import torch
    >>> forgetting_bias(torch.zeros(1, 1, 3, 1), 2)[0, 0]
    tensor([[-0.6931,  0.0000,  0.0000],
            [-1.3863, -0.6931,  0.0000]])
    """
    log_gate = F.logsigmoid(functional.at_least_fp32(gate)).mT
    if visible is not None:
        log_gate = log_gate.masked_fill(~visible, 0.0)
    # one row for all queries, or one per query where they see different keys
    total = log_gate.cumsum(-1)
    first = total.shape[-1] - num_queries
    own = total[..., first:].mT if total.shape[-2] == 1 else total.diagonal(first, -2, -1)[..., None]
    # keys after the query are hidden by the causal mask; a positive bias there could only overflow
    return (own - total).clamp(max=0.0)


class StickBreakingAttention(StackedAttention):
    """Break a stick from the newest key back: A_ij = β_ij Π_{j<l<i} (1 − β_il), β = sigmoid(q·k/√e).

    A query sees the keys before it and not itself, and its weights need not sum to one (Tan et al. 2025). The
    first token sees nothing.
    """

    def maps(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        visibility: Visibility = EVERYTHING,
    ) -> Float[Tensor, "b h q k"]:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, _ = self.key_heads(keys)
        before = relative_positions(q.shape[2], k.shape[2], q.device) < 0
        visible = visibility.visible(q, k)
        return stick_weights(
            visibility.biased(functional.scores(q, k)), before if visible is None else before & visible
        )


def stick_weights(scores: Float[Tensor, "*lead q k"], mask: Tensor) -> Float[Tensor, "*lead q k"]:
    """Return sigmoid(s_j) Π_{l>j} (1 − sigmoid(s_l)) over the keys that `mask` allows.

    >>> import torch
    >>> stick_weights(torch.zeros(1, 3), torch.tensor([[True, True, True]]))
    tensor([[0.1250, 0.2500, 0.5000]])
    """
    left = F.logsigmoid(-scores).masked_fill(~mask, 0.0)
    # the sum over later keys: all of them but those up to this one
    later = left.flip(-1).cumsum(-1).flip(-1) - left
    return (F.logsigmoid(scores) + later).exp().masked_fill(~mask, 0.0)


CAUSAL_BASELINES = {
    "Fox": Kind("forgetting attention, causal only (Lin et al. 2025)", ForgettingAttention, ("Dec",)),
    "Stick": Kind(
        "stick-breaking attention, causal only (Tan et al. 2025)", StickBreakingAttention, ("Dec",)
    ),
}
