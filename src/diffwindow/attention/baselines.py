"""The attentions that windows are compared with, each with its entry in the table of kinds."""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffwindow import functional, ops
from diffwindow.attention.base import SELF_ROLES, Keys, Kind, Queries, StackedAttention
from diffwindow.attention.plain import GlobalAttention, Pairs, ScoreBias, plain_attention, plain_weights
from diffwindow.attention.visibility import EVERYTHING, Visibility
from diffwindow.soft_window import Maps

BASELINES: dict[str, Kind] = {}


class RelativeAttention(StackedAttention):
    """Attend with keys k_j + a_{j−i} and values v_j + b_{j−i}, the distance clipped (Shaw et al. 2018).

    The tables a and b, shared over heads, have a row for each distance from −`size` to `size`.
    """

    from_queries = "relative positions"

    def __init__(self, embed_dim: int, num_heads: int, *, size: int, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.size = size
        self.key_table = nn.Parameter(torch.empty(2 * size + 1, embed_dim // num_heads))
        self.value_table = nn.Parameter(torch.empty(2 * size + 1, embed_dim // num_heads))
        self._reset_tables()

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights and tables, zero biases."""
        super().reset_parameters()
        self._reset_tables()

    def _reset_tables(self) -> None:
        nn.init.xavier_uniform_(self.key_table)
        nn.init.xavier_uniform_(self.value_table)

    def _attend(self, queries: Queries, keys: Keys, visibility: Visibility) -> Float[Tensor, "b q d"]:
        (q,) = self.query_heads(queries)
        k, v = self.key_heads(keys)
        heads = ops.interval_attention(
            q,
            k,
            v,
            key_table=self.key_table,
            value_table=self.value_table,
            attn_mask=visibility.attn_mask,
            attn_bias=visibility.attn_bias,
            is_causal=visibility.is_causal,
            dropout_p=self._active_dropout(),
        )
        return self._merge_heads(heads)

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, _ = self.key_heads(keys)
        distances = functional.distance_scores(q, self.key_table, keys.shape[1])
        return Maps(plain_weights(q, k, visibility, distances))


BASELINES["Rel"] = Kind(
    "relative positions clipped at a distance (Shaw et al. 2018)", RelativeAttention, SELF_ROLES, size=16
)


class Pointer(nn.Module):
    """Predict fractions of a sequence from each query, several per head: sigmoid(U tanh(W q))."""

    def __init__(self, embed_dim: int, num_heads: int, *, num_pointers: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.hidden = nn.Linear(embed_dim, embed_dim, bias=False)
        self.output = nn.Linear(embed_dim, num_pointers * num_heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights."""
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, queries: Float[Tensor, "b q d"]) -> tuple[Float[Tensor, "b h q 1"], ...]:
        """Return each pointer as `[b h q 1]`."""
        fractions = self.output(self.hidden(queries).tanh()).sigmoid()
        heads = fractions.unflatten(-1, (-1, self.num_heads))
        pointers: tuple[Tensor, ...] = heads.permute(2, 0, 3, 1).unsqueeze(-1).unbind()
        return pointers


class GaussianAttention(StackedAttention):
    """Align within a window and favour its middle: softmax(s) exp(−(j − p)²/2σ²) (Luong et al. 2015).

    The middle is p = n sigmoid(v tanh(W q)) in a source of n real tokens, one v per head; the softmax is over
    the keys with |j − p| ≤ D, where D is `size`, and σ = D/2. As in the paper, the weights are not
    renormalised. Dropout acts on them, after the Gaussian, with which it commutes.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, size: int, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, dropout=dropout)
        self.size = size
        self.pointer = Pointer(embed_dim, num_heads)

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights, zero biases."""
        super().reset_parameters()
        self.pointer.reset_parameters()

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, _ = self.key_heads(keys)
        count, position = Pairs(queries, keys.shape[1], visibility.attn_mask).real_positions()
        (centre,) = self.pointer(queries)
        distance = position - count * centre
        near = distance.abs() <= self.size
        visible = visibility.visible(q, k)
        weights = functional.multiplicative_weights(
            visibility.biased(functional.scores(q, k)),
            (-distance.square() / (2 * (self.size / 2) ** 2)).exp(),
            mask=near if visible is None else near & visible,
        )
        return Maps(weights)


BASELINES["Gauss"] = Kind(
    "local-p: a Gaussian at a predicted source position (Luong et al. 2015)",
    GaussianAttention,
    ("Cr",),
    size=10,
)


def localness(pairs: Pairs, size: None, pointer: Pointer) -> Float[Tensor, "b h q k"]:
    """Prefer keys around a predicted centre: softmax(q kᵀ/√e − (j − P)²/2σ²), σ = D/2 (Yang et al. 2018).

    Centre and window depend on the query: P = n sigmoid(u tanh(W q)) and D = n sigmoid(u′ tanh(W q)) in a
    sequence of n real tokens, with one W for both and a u and a u′ per head.
    """
    count, position = pairs.real_positions()
    centre, window = pointer(pairs.queries)
    # a sequence of padding alone, whose weights are zero anyway, must not divide zero by zero
    deviation = count.clamp(min=1) * window / 2
    bias: Tensor = -(position - count * centre).square() / (2 * deviation.square())
    return bias


def _two_pointers(embed_dim: int, num_heads: int, size: int | None) -> dict[str, Pointer]:
    return {"pointer": Pointer(embed_dim, num_heads, num_pointers=2)}


BASELINES["Loc"] = Kind(
    "localness around a predicted centre (Yang et al. 2018), bidirectional only",
    partial(GlobalAttention, score_bias=ScoreBias(localness, _two_pointers, "predicted centres")),
    ("Enc",),
)


def band(pairs: Pairs, size: int) -> Bool[Tensor, "q k"]:
    """See only the keys at most `size` tokens away, |i − j| ≤ size (Sperber et al. 2018, hard masking)."""
    return pairs.distance().abs() <= size


BASELINES["Band"] = Kind(
    "a fixed band of keys around the query (Sperber et al. 2018)",
    partial(GlobalAttention, score_bias=ScoreBias(band)),
    SELF_ROLES,
    size=5,
)


def bell(pairs: Pairs, size: int, deviation: Float[Tensor, " h"]) -> Float[Tensor, "h q k"]:
    """Prefer near keys: softmax(q kᵀ/√e − (i − j)²/2σ²), one trained σ per head (Sperber et al. 2018)."""
    return -pairs.distance().square() / (2 * deviation.square()[:, None, None])


def _deviations(embed_dim: int, num_heads: int, size: int | None) -> dict[str, nn.Parameter]:
    assert size is not None
    return {"deviation": nn.Parameter(torch.full((num_heads,), float(size)))}


BASELINES["Bell"] = Kind(
    "a trained Gaussian around the query (Sperber et al. 2018)",
    partial(GlobalAttention, score_bias=ScoreBias(bell, _deviations)),
    SELF_ROLES,
    size=5,
)


RAMP = 32


def span(pairs: Pairs, size: int, span_logit: Float[Tensor, " h"]) -> Float[Tensor, "h q k"]:
    """Weigh keys by m(x) exp(s), m(x) = clamp((R + z − x)/R, 0, 1), at distance x (Sukhbaatar et al. 2019).

    Each head learns its span z, from 0 to `size`; the ramp R is 32 keys, as in that paper. There z is
    clamped after each update; here it is size · sigmoid(parameter). Training charges for long spans:
    `mean_span` times a coefficient is added to the loss per token. The bias is log m, and −inf without a
    gradient beyond the span.
    """
    weight = (RAMP + _spans(span_logit, size)[:, None, None] - pairs.distance().abs()) / RAMP
    reached = weight > 0
    log_weight = weight.clamp(max=1.0).where(reached, 1.0).log()
    return log_weight.masked_fill(~reached, float("-inf"))


def _short_spans(embed_dim: int, num_heads: int, size: int | None) -> dict[str, nn.Parameter]:
    # spans start near zero and grow where that helps
    return {"span_logit": nn.Parameter(torch.full((num_heads,), -4.0))}


def _spans(span_logit: Float[Tensor, " h"], size: int) -> Float[Tensor, " h"]:
    return size * span_logit.sigmoid()


SPAN = ScoreBias(span, _short_spans)
BASELINES["Span"] = Kind(
    "a learned span back from the query (Sukhbaatar et al. 2019)",
    partial(GlobalAttention, score_bias=SPAN),
    SELF_ROLES,
    size=1024,
)


def mean_span(model: nn.Module) -> Float[Tensor, ""] | None:
    """Return the mean span over heads, summed over layers, in keys; None if the model has no spans.

    The objective of Sukhbaatar et al. 2019 adds λ/M Σ z over the M heads of a layer, for each layer.
    """
    spans = [
        _spans(module.get_parameter("span_logit"), module.size).mean()
        for module in model.modules()
        if isinstance(module, GlobalAttention) and module.score_bias == SPAN and module.size is not None
    ]
    return torch.stack(spans).sum() if spans else None


class ForgettingAttention(StackedAttention):
    """Attend with softmax(q_i·k_j/√e + Σ_{l=j+1}^{i} log f_l), where f = sigmoid(w·x + b) (Lin et al. 2025).

    Each head has its gates. The gate of a token is projected beside its key and cached with it. Biases start
    at zero, so that a gate starts near one half, as in the authors' code.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(embed_dim, num_heads, key_extra=(1,), dropout=dropout)

    def _attend(self, queries: Queries, keys: Keys, visibility: Visibility) -> Float[Tensor, "b q d"]:
        (q,) = self.query_heads(queries)
        k, gate, v = self.key_heads(keys)
        bias = forgetting_bias(gate, q.shape[2], visibility.visible(q, k)).to(q.dtype)
        return self._merge_heads(plain_attention(q, k, v, visibility, bias, dropout_p=self._active_dropout()))

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, gate, _ = self.key_heads(keys)
        bias = forgetting_bias(gate, q.shape[2], visibility.visible(q, k))
        return Maps(plain_weights(q, k, visibility, bias))


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


BASELINES["Fox"] = Kind("forgetting attention, causal only (Lin et al. 2025)", ForgettingAttention, ("Dec",))


class StickBreakingAttention(StackedAttention):
    """Break a stick from the newest key back: A_ij = β_ij Π_{j<l<i} (1 − β_il), β = sigmoid(q·k/√e).

    A query sees the keys before it and not itself, and its weights need not sum to one (Tan et al. 2025). The
    first token sees nothing.
    """

    def maps(self, queries: Queries, keys: Keys, visibility: Visibility = EVERYTHING) -> Maps:
        """Return the weights of `attend`, without dropout."""
        (q,) = self.query_heads(queries)
        k, _ = self.key_heads(keys)
        before = functional.relative_positions(q.shape[2], k.shape[2], q.device) < 0
        visible = visibility.visible(q, k)
        mask = before if visible is None else before & visible
        return Maps(stick_weights(visibility.biased(functional.scores(q, k)), mask))


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


BASELINES["Stick"] = Kind(
    "stick-breaking attention, causal only (Tan et al. 2025)", StickBreakingAttention, ("Dec",)
)
