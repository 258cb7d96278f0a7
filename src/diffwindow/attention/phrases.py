"""PhraseGates: where phrases end, learned from the embedded tokens."""

from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffwindow.checks import check_positive

# t of the gates, in the standard deviations that distances have at the start
TEMPERATURE = 0.5


class PhraseGates(nn.Module):
    """Learn one distance per gap between neighbouring tokens, and levels above which a phrase ends.

    d_k = MLP([x_k; x_{k+1}]) and g_k = σ((d_k − τ) / t), for each of the levels τ. They start at spread
    quantiles of a standard normal, which is about how distances of normal x are distributed at first. The
    phrases of a lower level lie inside those of a higher one, so that all levels are cuts of one tree.

    Args:
        embed_dim: The width d of the embedded tokens, which is the inner width of the MLP too.
        levels: How many levels there are: one per head that has gates.

    >>> gates = PhraseGates(16, levels=2)
    >>> gates(gates.distances(torch.randn(3, 7, 16))).shape
    torch.Size([3, 2, 6])
    """

    def __init__(self, embed_dim: int, levels: int) -> None:
        super().__init__()
        check_positive("levels", levels)
        self.inner = nn.Linear(2 * embed_dim, embed_dim)
        self.outer = nn.Linear(embed_dim, 1)
        self.levels = nn.Parameter(torch.empty(levels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: weights that keep the variance, zero biases, levels at spread quantiles."""
        nn.init.kaiming_uniform_(self.inner.weight, nonlinearity="linear")
        nn.init.kaiming_uniform_(self.outer.weight, nonlinearity="tanh")
        for linear in (self.inner, self.outer):
            nn.init.zeros_(linear.bias)
        count = len(self.levels)
        quantiles = [NormalDist().inv_cdf((index + 0.5) / count) for index in range(count)]
        with torch.no_grad():
            self.levels.copy_(torch.tensor(quantiles))

    def distances(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b gaps"]:
        """Return the distance of each token from the next."""
        # the layer on [x_k; x_{k+1}], without a copy of both
        first, second = self.inner.weight.chunk(2, dim=1)
        hidden = x[:, :-1] @ first.T + x[:, 1:] @ second.T + self.inner.bias
        distance: Tensor = self.outer(hidden.tanh())
        return distance.squeeze(-1)

    def forward(self, distances: Float[Tensor, "b gaps"]) -> Float[Tensor, "b levels gaps"]:
        """Return the gates of each level."""
        return torch.sigmoid((distances[:, None] - self.levels[:, None]) / TEMPERATURE)
