"""KeyCache: the projected keys of a prefix, kept while it grows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


class KeyCache:
    """Keep the stacked keys of one layer, a row per hypothesis, in a buffer that grows by half when full.

    Appending is amortised O(1) per token; reading is a view. Selecting copies rows into a second buffer that
    takes turns with the first, because fresh memory costs more than the copy.

    >>> cache = KeyCache()
    >>> [cache.append(torch.randn(2, n, 4)).shape[1] for n in (5, 1, 1)]
    [5, 6, 7]
    """

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.spare: Tensor | None = None
        self.length = 0

    def append(self, keys: Float[Tensor, "rows n stack"]) -> Float[Tensor, "rows k stack"]:
        """Add the keys of `n` tokens to each row and return all keys."""
        rows, added, width = keys.shape
        length = self.length + added
        if self.buffer is None or length > self.buffer.shape[1]:
            grown = keys.new_empty(rows, max(length, 16, self.length * 3 // 2), width)
            if self.buffer is not None:
                grown[:, : self.length] = self.buffer[:, : self.length]
            self.buffer = grown
        self.buffer[:, self.length : length] = keys
        self.length = length
        return self.buffer[:, :length]

    def select(self, rows: Int[Tensor, " rows2"]) -> None:
        """Keep these rows in this order; a row may stay several times."""
        if self.buffer is None:
            return
        shape = (len(rows), *self.buffer.shape[1:])
        if self.spare is None or self.spare.shape[0] < shape[0] or self.spare.shape[1:] != shape[1:]:
            self.spare = self.buffer.new_empty(shape)
        chosen = torch.index_select(self.buffer, 0, rows, out=self.spare[: len(rows)])
        self.buffer, self.spare = chosen, self.buffer

    def move(self, rows: Int[Tensor, " n"], sources: Int[Tensor, " n"], places: Int[Tensor, " n"]) -> None:
        """Overwrite the keys at these places of `rows` with those of the rows `sources`."""
        if self.buffer is None:
            return
        capacity, width = self.buffer.shape[1:]
        flat = self.buffer.view(-1, width)
        flat.index_copy_(0, rows * capacity + places, flat.index_select(0, sources * capacity + places))
