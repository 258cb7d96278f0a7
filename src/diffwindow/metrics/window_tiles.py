"""How much of the text lies outside of windows: the share of keys, and of tiles that kernels can skip."""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

# queries × keys that a kernel takes at a time, or about that
TILE = 64


class OutsideCounts(NamedTuple):
    """Pairs of query and key that are visible, tiles that hold any, and how many of both lie outside.

    A pair lies outside if M is below the tolerance, a tile if all of its visible pairs do.
    """

    pairs: int = 0
    pairs_outside: int = 0
    tiles: int = 0
    tiles_outside: int = 0

    def plus(self, other: "OutsideCounts") -> "OutsideCounts":
        """Add two counts."""
        return OutsideCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def keys_share(self) -> float:
        """The share of visible pairs outside."""
        return self.pairs_outside / max(self.pairs, 1)

    @property
    def tiles_share(self) -> float:
        """The share of tiles outside."""
        return self.tiles_outside / max(self.tiles, 1)


def count_outside(
    window: Float[Tensor, "*lead q k"], visible: Bool[Tensor, "*lead q k"], tolerance: float
) -> OutsideCounts:
    """Count what lies outside of a window, in tiles that start at the first query and key.

    >>> import torch
    >>> window = torch.eye(128)
    >>> counts = count_outside(window, torch.ones(128, 128).bool(), tolerance=0.5)
    >>> counts.keys_share, counts.tiles_share
    (0.9921875, 0.5)
    """
    inside = visible & (window >= tolerance)
    pairs, tiles, pairs_inside, tiles_inside = (
        int(x.sum()) for seen in (visible, inside) for x in (seen, _any_in_tile(seen))
    )
    return OutsideCounts(pairs, pairs - pairs_inside, tiles, tiles - tiles_inside)


def _any_in_tile(seen: Bool[Tensor, "*lead q k"]) -> Bool[Tensor, "*lead tq tk"]:
    if not seen.numel():
        return seen
    images = seen.flatten(0, -3) if seen.dim() > 2 else seen[None]
    return F.max_pool2d(images.float(), TILE, ceil_mode=True) > 0
