"""Where tokens stand: sinusoidal positions, and the distances of self-attention."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


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


def relative_positions(num_queries: int, num_keys: int, device: torch.device) -> Int[Tensor, "q k"]:
    """Give how far each key lies to the right of each query, where the queries are the last of the keys.

    >>> relative_positions(2, 3, torch.device("cpu"))
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    key = torch.arange(num_keys, device=device)
    return key - key[num_keys - num_queries :, None]
