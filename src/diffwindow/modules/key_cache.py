"""KeyCache: the projected keys of a prefix, kept while it grows."""

from jaxtyping import Float, Int
from torch import Tensor


class KeyCache:
    """Keep the stacked keys of one layer, a row a hypothesis, in a buffer that doubles when it is full.

    Appending a token costs the token, averaged over a sequence; reading is a view.

    >>> import torch
    >>> cache = KeyCache()
    >>> [cache.append(torch.randn(2, n, 4)).shape[1] for n in (5, 1, 1)]
    [5, 6, 7]
    """

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.length = 0

    def append(self, keys: Float[Tensor, "rows n stack"]) -> Float[Tensor, "rows k stack"]:
        """Add the keys of `n` tokens to each row and give all that are kept."""
        rows, added, width = keys.shape
        length = self.length + added
        if self.buffer is None or length > self.buffer.shape[1]:
            grown = keys.new_empty(rows, max(2 * self.length, length), width)
            if self.buffer is not None:
                grown[:, : self.length] = self.buffer[:, : self.length]
            self.buffer = grown
        self.buffer[:, self.length : length] = keys
        self.length = length
        return self.buffer[:, :length]

    def select(self, rows: Int[Tensor, " rows2"]) -> None:
        """Keep these rows in this order; a row may stay several times."""
        if self.buffer is not None:
            self.buffer = self.buffer.index_select(0, rows)
