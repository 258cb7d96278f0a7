"""SpanAttention: self-attention over a span around each query whose length is learned."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffwindow.modules.global_attention import GlobalAttention
from diffwindow.modules.positions import relative_positions

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
