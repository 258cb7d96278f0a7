"""StackedAttention: what every multi-head attention here shares, one projection and one call."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow import ops
from diffwindow.modules.view import EVERYTHING, View

Maps = ops.WindowMaps | Float[Tensor, "b h q k"]


class StackedAttention(nn.Module):
    """Multi-head attention with its projections in one matrix: the queries, the keys, then the values.

    `num_scores` is how many pairs of queries and keys a kind compares (a plain attention one, a window
    more). Projecting is apart from attending, so that a decoder can keep `project_keys` of its prefix, and
    of the source, and no kind of attention needs to know whether its keys are new or kept. In
    self-attention the queries are always the last of the keys, which is how a kind with relative positions
    knows where they stand.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, num_scores: int = 1, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        ops.check_dropout("dropout", dropout)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_scores = num_scores
        self.dropout = dropout
        self.in_proj = nn.Linear(embed_dim, (2 * num_scores + 1) * embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier-uniform weights, the stacked projection as one matrix, and zero biases."""
        for projection in (self.in_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def project_queries(self, query: Float[Tensor, "b q d"]) -> Float[Tensor, "b q stack"]:
        """Project queries for the scores, stacked along the width."""
        return self._project_rows(query, 0, self.num_scores)

    def project_keys(
        self, key: Float[Tensor, "b k d"], value: Float[Tensor, "b k d"] | None = None
    ) -> Float[Tensor, "b k stack"]:
        """Project keys and values, stacked along the width: what a decoder caches. Values default to keys."""
        if value is None or value is key:
            return self._project_rows(key, self.num_scores, 2 * self.num_scores + 1)
        keys = self._project_rows(key, self.num_scores, 2 * self.num_scores)
        values = self._project_rows(value, 2 * self.num_scores, 2 * self.num_scores + 1)
        return torch.cat([keys, values], dim=-1)

    def project_self(
        self, x: Float[Tensor, "b n d"]
    ) -> tuple[Float[Tensor, "b n queries"], Float[Tensor, "b n keys"]]:
        """Project a sequence that attends to itself, queries and keys, in one matrix product."""
        width = self.num_scores * self.embed_dim
        queries, keys = self.in_proj(x).split([width, width + self.embed_dim], dim=-1)
        return queries, keys

    def attend(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Float[Tensor, "b q d"]:
        """Attend with projected queries and keys, to what `view` shows."""
        raise NotImplementedError

    def maps(
        self,
        queries: Float[Tensor, "b q queries"],
        keys: Float[Tensor, "b k keys"],
        view: View = EVERYTHING,
    ) -> Maps:
        """Give what `attend` does with these arguments: its weights and, where it has one, its window."""
        raise NotImplementedError

    def _project_rows(self, x: Tensor, first: int, last: int) -> Tensor:
        """Apply the blocks `first` to `last` of the stacked projection."""
        rows = slice(first * self.embed_dim, last * self.embed_dim)
        bias = self.in_proj.bias
        return F.linear(x, self.in_proj.weight[rows], None if bias is None else bias[rows])

    def _split_heads(self, stack: Float[Tensor, "b n stack"]) -> tuple[Tensor, ...]:
        """View a stack of projections as `[b h n e]` tensors, without a copy."""
        batch, length, width = stack.shape
        blocks, head_dim = width // self.embed_dim, self.embed_dim // self.num_heads
        heads = stack.view(batch, length, blocks, self.num_heads, head_dim)
        return heads.permute(2, 0, 3, 1, 4).unbind()

    def _merge_heads(self, heads: Float[Tensor, "b h q e"]) -> Float[Tensor, "b q d"]:
        output: Tensor = self.out_proj(heads.transpose(1, 2).flatten(2))
        return output

    def _active_dropout(self) -> float:
        return self.dropout if self.training else 0.0
