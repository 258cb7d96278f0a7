"""The predicted centres that Yang's and Luong's attentions place their Gaussians at."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffwindow import functional
from diffwindow.attention.plain_attention import GlobalAttention
from diffwindow.attention.positions import relative_positions
from diffwindow.attention.stacked_attention import StackedAttention
from diffwindow.attention.visibility import EVERYTHING, View


class Pointer(nn.Module):
    """Predict fractions of a sequence from each query, several a head: sigmoid(U tanh(W q))."""

    def __init__(self, embed_dim: int, num_heads: int, *, num_pointers: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.hidden = nn.Linear(embed_dim, embed_dim, bias=False)
        self.output = nn.Linear(embed_dim, num_pointers * num_heads, bias=False)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, queries: Float[Tensor, "b q d"]) -> tuple[Float[Tensor, "b h q 1"], ...]:
        """Give each pointer as `[b h q 1]`."""
        fractions = self.output(self.hidden(queries).tanh()).sigmoid()
        heads = fractions.unflatten(-1, (-1, self.num_heads))
        pointers: tuple[Tensor, ...] = heads.permute(2, 0, 3, 1).unsqueeze(-1).unbind()
        return pointers


def real_positions(
    queries: Float[Tensor, "b q d"], num_keys: int, attn_mask: Bool[Tensor, "..."] | None
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Count the visible keys, n, and give the place of each among them, from 0: where a pointer points."""
    # Half precision cannot count beyond a few hundred.
    dtype = torch.promote_types(queries.dtype, torch.float32)
    mask = queries.new_ones(1, num_keys) if attn_mask is None else attn_mask
    visible = mask.to(dtype)
    return visible.sum(-1, keepdim=True), visible.cumsum(-1) - 1


class RelativeAttention(StackedAttention):
    """Attend with keys k_j + a_{j−i} and values v_j + b_{j−i}, the distance clipped (Shaw et al. 2018).

    The tables a and b, shared over heads, have a row for each distance from −`size` to `size`. As a query
    meets a table's few rows and not one vector a key, nothing of size queries × keys × width exists.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, size: int = 16, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.size = size
        self.key_table = nn.Parameter(torch.empty(2 * size + 1, embed_dim // num_heads))
        self.value_table = nn.Parameter(torch.empty(2 * size + 1, embed_dim // num_heads))
        nn.init.xavier_uniform_(self.key_table)
        nn.init.xavier_uniform_(self.value_table)

    def attend(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Float[Tensor, "b q d"]:
        """Attend with projected queries and keys, the queries being the last of the keys."""
        weights = F.dropout(self.maps(queries, keys, view), self._active_dropout())
        _, v = self._key_heads(keys)
        # The weight that a query gives to each distance, which is what the value table's rows get.
        by_distance = weights.new_zeros(*weights.shape[:3], 2 * self.size + 1)
        by_distance = by_distance.scatter_add(-1, self._rows(queries, keys).expand_as(weights), weights)
        value_table = self.value_table.to(v.dtype).expand(*v.shape[:2], -1, -1)
        heads = functional.attend(weights, v) + functional.attend(by_distance, value_table)
        return self._merge_heads(heads)

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
        by_distance = functional.scores(q, self.key_table.expand(*q.shape[:2], -1, -1))
        scores = scores + by_distance.gather(-1, self._rows(queries, keys).expand_as(scores))
        visible = view.visible(q, k)
        return functional.masked_softmax(scores, visible)

    def _rows(self, queries: Tensor, keys: Tensor) -> Int[Tensor, "q k"]:
        """Give the table row of each pair of query and key."""
        distance = relative_positions(queries.shape[1], keys.shape[1], queries.device)
        return distance.clamp(-self.size, self.size) + self.size


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


RAMP = 32


class SpanAttention(GlobalAttention):
    """Weigh keys by m(x) exp(s), m(x) = clamp((R + z − x)/R, 0, 1), at distance x (Sukhbaatar et al. 2019).

    Each head learns its span z, from 0 to `size`; the ramp R is 32 keys, as in that paper. There z is
    clamped by hand after each update; here it is size · sigmoid(parameter), which needs no hand. Training
    charges for long spans: `mean_span` times a coefficient is added to the loss per token.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, size: int = 1024, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.size = size
        # Near zero, from where the spans grow that earn it.
        self.span_logit = nn.Parameter(torch.full((num_heads,), -4.0))

    def span(self) -> Float[Tensor, " h"]:
        """Return each head's span z."""
        return self.size * self.span_logit.sigmoid()

    def bias(
        self,
        queries: Float[Tensor, "b q queries"],
        num_keys: int,
        attn_mask: Bool[Tensor, "..."] | None,
    ) -> Float[Tensor, "h q k"]:
        """Give log m; what the span does not reach is -inf, with no gradient."""
        distance = relative_positions(queries.shape[1], num_keys, queries.device).abs()
        weight = (RAMP + self.span()[:, None, None] - distance) / RAMP
        reached = weight > 0
        log_weight = weight.clamp(max=1.0).where(reached, 1.0).log()
        return log_weight.masked_fill(~reached, float("-inf")).to(queries.dtype)


def mean_span(model: nn.Module) -> Float[Tensor, ""] | None:
    """Return the mean span over heads, summed over layers, in keys; None if the model has no spans.

    The objective of Sukhbaatar et al. 2019 adds λ/M Σ z over the M heads of a layer, for each layer.
    """
    spans = [module.span().mean() for module in model.modules() if isinstance(module, SpanAttention)]
    return torch.stack(spans).sum() if spans else None
