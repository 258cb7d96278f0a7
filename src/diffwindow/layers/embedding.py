"""TokenEmbedding: one matrix for the tokens that come in and the logits that go out."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffwindow.attention.positions import sinusoids
from diffwindow.kernels import few_rows
from diffwindow.special_tokens import PAD

# rotary positions are the attention's: tokens are embedded without any
Positions = Literal["sinusoidal", "rotary", "none"]


class TokenEmbedding(nn.Module):
    """Embed tokens as √d times their rows, and give logits with the same matrix.

    Rows start normal with deviation d^-½, so that what enters the first layer has unit variance; padding
    starts at zero.
    """

    def __init__(self, vocab_size: int, embed_dim: int, positions: Positions = "sinusoidal") -> None:
        super().__init__()
        self.positions = positions
        self.weight = nn.Parameter(torch.empty(vocab_size, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the rows, the one of padding with zeros."""
        if self.weight.is_meta:
            # nothing to initialise, and torch would import torch._dynamo to do it, which takes seconds
            return
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        with torch.no_grad():
            self.weight[PAD].zero_()

    def forward(
        self, tokens: Int[Tensor, "*lead"], positions: Int[Tensor, "*lead"] | None = None
    ) -> Float[Tensor, "*lead d"]:
        """Embed tokens and add the sinusoids, if any, of positions, which count along the last dimension."""
        rows = F.embedding(tokens, self.weight, padding_idx=PAD) * math.sqrt(self.weight.shape[1])
        if self.positions != "sinusoidal":
            return rows
        if positions is None:
            positions = torch.arange(tokens.shape[-1], device=tokens.device)
        return rows + sinusoids(positions, self.weight.shape[1]).to(rows.dtype)

    def logits(self, hidden: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Score every token of the vocabulary."""
        return few_rows.linear(hidden, self.weight)

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, positions={self.positions!r}"
