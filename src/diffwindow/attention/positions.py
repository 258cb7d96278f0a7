"""Where tokens stand: sinusoidal and rotary positions, and the distances of self-attention."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffwindow import functional


def sinusoids(positions: Int[Tensor, "*lead"], embed_dim: int) -> Float[Tensor, "*lead d"]:
    """Encode positions (Vaswani et al. 2017): sin(p / 10000^(2i/d)) at width 2i, its cosine at 2i + 1.

    >>> sinusoids(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if embed_dim % 2:
        raise ValueError(
            f"embed_dim={embed_dim} is odd; sinusoidal positions need pairs of a sine and a cosine"
        )
    even = torch.arange(0, embed_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None] * torch.exp(even * (-math.log(10000.0) / embed_dim))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def rotate(x: Float[Tensor, "*lead n h e"], *, start: int = 0) -> Float[Tensor, "*lead n h e"]:
    """Turn the pair (x[i], x[i + e/2]) by the angle p / 10000^(2i/e), where p counts along n from `start`.

    The product of a query and a key that are turned like this depends on their distance and not on where
    they stand (Su et al. 2021). Pairs are the halves of a head, as in today's language models.

    >>> x = torch.tensor([1.0, 0.0]).expand(3, 1, 2)
    >>> rotate(x, start=1)[:, 0]
    tensor([[ 0.5403,  0.8415],
            [-0.4161,  0.9093],
            [-0.9900,  0.1411]])
    """
    length, head_dim = x.shape[-3], x.shape[-1]
    # half precision cannot tell the angles of far places apart
    dtype = torch.promote_types(x.dtype, torch.float32)
    pair = torch.arange(0, head_dim, 2, device=x.device, dtype=dtype)
    position = torch.arange(start, start + length, device=x.device, dtype=dtype)
    angles = position[:, None] * torch.exp(pair * (-math.log(10000.0) / head_dim))
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.to(dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x.dtype)


def relative_positions(num_queries: int, num_keys: int, device: torch.device) -> Int[Tensor, "q k"]:
    """Return how far each key lies to the right of each query, where the queries are the last of the keys.

    >>> relative_positions(2, 3, torch.device("cpu"))
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    key = torch.arange(num_keys, device=device)
    return key - key[num_keys - num_queries :, None]


def table_rows(num_queries: int, num_keys: int, size: int, device: torch.device) -> Int[Tensor, "q k"]:
    """Return the row of each pair's distance, clipped at `size`, in a table from −size to size.

    >>> table_rows(2, 3, 1, torch.device("cpu"))
    tensor([[0, 1, 2],
            [0, 0, 1]])
    """
    return relative_positions(num_queries, num_keys, device).clamp(-size, size) + size


def distance_scores(
    q: Float[Tensor, "b h q e"], table: Float[Tensor, "rows e"], num_keys: int
) -> Float[Tensor, "b h q k"]:
    """Return q_i·a_{j−i}/√e, where `table` holds a for each clipped distance (Shaw et al. 2018).

    Queries are compared with the rows of the table, so nothing of size queries × keys × width exists.
    """
    by_row = functional.scores(q, table.expand(*q.shape[:2], -1, -1))
    rows = table_rows(q.shape[2], num_keys, table.shape[0] // 2, q.device)
    return by_row.gather(-1, rows.expand(*q.shape[:2], -1, -1))
