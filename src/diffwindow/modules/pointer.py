"""The predicted centres that Yang's and Luong's attentions place their Gaussians at."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


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
