"""RelativeAttention: self-attention with relative positions in keys and values (Shaw et al. 2018)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffwindow import functional
from diffwindow.modules.positions import relative_positions
from diffwindow.modules.stacked_attention import StackedAttention
from diffwindow.modules.view import EVERYTHING, View


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
