"""Which keys each query sees, read from masks and padding, and the positions of queries and keys."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow import ops
from diffwindow.checks import FLOATS, check_gates, check_tensor

# A float mask hides a key with -inf or with a large negative number: -1e4 (-9,984 in bf16), -1e9, or the
# smallest of its type. The softmax gives such a key no weight.
HIDING = -9e3


def read_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    shape: tuple[int, int, int, int],
    device: torch.device,
) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
    """Turn the masks of a `torch.nn.MultiheadAttention` call into a mask and a bias as `ops` takes them.

    What they hide joins to one mask that broadcasts to `shape`, b h q k: the pointers must not see it either.
    The rest of a float mask is added to the scores.
    """
    batch, heads, queries, keys = shape
    masks = []
    if key_padding_mask is not None:
        _check_mask("key_padding_mask", key_padding_mask, [(batch, keys)], device)
        masks.append(key_padding_mask.view(batch, 1, 1, keys))
    if attn_mask is not None:
        _check_mask("attn_mask", attn_mask, [(queries, keys), (batch * heads, queries, keys)], device)
        masks.append(attn_mask.view(batch, heads, queries, keys) if attn_mask.dim() == 3 else attn_mask)
    visible, bias = None, None
    for mask in masks:
        hides, added = (mask, None) if mask.dtype == torch.bool else split_float_mask(mask)
        visible = ~hides if visible is None else visible & ~hides
        if added is not None:
            bias = added if bias is None else bias + added
    return visible, bias


def first_visible_key(key_padding_mask: Tensor | None) -> Int[Tensor, " b"] | None:
    """Return the first real key of each sequence, where its segments start; 0 if there is none.

    >>> first_visible_key(torch.tensor([[True, True, False], [False, False, True]]))
    tensor([2, 0])
    """
    if key_padding_mask is None:
        return None
    return first_true(~hidden(key_padding_mask))


def first_seen_key(mask: Bool[Tensor, "..."], batch: int) -> Int[Tensor, " b"]:
    """Return the first key that any query of each sequence sees, by a mask that broadcasts to `[b h q k]`.

    >>> first_seen_key(torch.tensor([False, True, True]).expand(1, 1, 2, 3), batch=2)
    tensor([1, 1])
    """
    return first_true(mask.flatten(1, -2).any(1).expand(batch, -1))


def first_true(mask: Bool[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """Return the first True of each row; 0 if there is none, or no column at all."""
    return mask.long().argmax(-1) if mask.shape[-1] else mask.new_zeros(mask.shape[0], dtype=torch.long)


def hidden(mask: Tensor) -> Bool[Tensor, "..."]:
    """Return where a PyTorch mask hides: where a boolean one is True, or a float one at most `HIDING`."""
    return mask if mask.dtype == torch.bool else mask <= HIDING


def split_float_mask(mask: Float[Tensor, "..."]) -> tuple[Bool[Tensor, "..."], Float[Tensor, "..."]]:
    """Split a float mask into where it hides and what it adds to the other scores."""
    hides = hidden(mask)
    return hides, mask.masked_fill(hides, 0.0)


def _check_mask(name: str, mask: Tensor, shapes: list[tuple[int, ...]], device: torch.device) -> None:
    check_tensor(name, mask)
    if mask.dtype not in (torch.bool, *FLOATS):
        raise TypeError(f"{name} is {mask.dtype}; pass a boolean mask, True where a query may not look")
    if mask.device != device:
        raise ValueError(f"{name} is on {mask.device} and the query is on {device}; move them to one device")
    # size by size: a tuple of traced sizes does not compare by value
    if not any(
        mask.dim() == len(shape) and all(mask.shape[i] == n for i, n in enumerate(shape)) for shape in shapes
    ):
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{name} has shape {list(mask.shape)}, not {wanted}")


class Visibility(NamedTuple):
    """Which keys each query sees, and each sequence's first real key and phrases, all as in `ops`."""

    attn_mask: Bool[Tensor, "..."] | None = None
    is_causal: bool = False
    segment_origin: Int[Tensor, " b"] | None = None
    attn_bias: Float[Tensor, "..."] | None = None
    gates: Float[Tensor, "..."] | None = None

    def visible(self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b h k e"]) -> Bool[Tensor, "..."] | None:
        """Return all masks as one, with what the bias hides; None means that everything is visible."""
        return ops.visible_mask(
            q, k, attn_mask=self.attn_mask, attn_bias=self.attn_bias, is_causal=self.is_causal
        )

    def biased(self, scores: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
        """Add the bias, if there is one."""
        return scores if self.attn_bias is None else scores + self.attn_bias

    def select(self, sequences: Int[Tensor, " b2"]) -> "Visibility":
        """Keep these sequences of the batch; each tensor must have a row per sequence."""

        def row(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[sequences]

        return Visibility(
            row(self.attn_mask),
            self.is_causal,
            row(self.segment_origin),
            row(self.attn_bias),
            row(self.gates),
        )

    def positions(self, length: int) -> Int[Tensor, "b n"] | None:
        """Count positions from each sequence's first real token; None where that is the first of all."""
        if self.segment_origin is None:
            return None
        position = torch.arange(length, device=self.segment_origin.device)
        return (position - self.segment_origin[:, None]).clamp(min=0)


EVERYTHING = Visibility()


def padded_visibility(
    mask: Bool[Tensor, "b n"] | None,
    *,
    is_causal: bool = False,
    gates: Float[Tensor, "b gaps"] | None = None,
) -> Visibility:
    """See the real tokens, where `mask` is True; None means that all are.

    >>> padded_visibility(torch.tensor([[False, True, True]])).segment_origin
    tensor([1])
    """
    if mask is None:
        return Visibility(is_causal=is_causal, gates=gates)
    if gates is not None:
        gates = close_padding(gates, mask)
    return Visibility(mask[:, None, None, :], is_causal, first_true(mask), gates=gates)


def close_padding(gates: Float[Tensor, "b *h gaps"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b *h gaps"]:
    """End a phrase beside every token that is padding, where `mask` is False.

    >>> close_padding(torch.zeros(1, 3), torch.tensor([[True, True, False, False]]))
    tensor([[0., 1., 1.]])
    """
    check_gates(gates, mask.shape[1])
    if gates.dim() not in (2, 3) or gates.shape[0] != mask.shape[0]:
        raise ValueError(
            f"gates has shape {list(gates.shape)}, not [batch, gaps] or [batch, heads, gaps] with batch "
            f"{len(mask)}"
        )
    beside = ~(mask[:, 1:] & mask[:, :-1])
    return gates.masked_fill(beside if gates.dim() == 2 else beside[:, None], 1.0)


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
    length, heads, head_dim = x.shape[-3:]
    # half precision cannot tell the angles of far places apart
    dtype = torch.promote_types(x.dtype, torch.float32)
    pair = torch.arange(0, head_dim, 2, device=x.device, dtype=dtype)
    position = torch.arange(start, start + length, device=x.device, dtype=dtype)
    angles = position[:, None] * torch.exp(pair * (-math.log(10000.0) / head_dim))
    # tables as wide as all heads: torch multiplies whole rows faster than halves of heads
    cos = angles.cos().repeat(1, 2 * heads).unflatten(-1, (heads, head_dim))
    sin = torch.cat([-angles.sin(), angles.sin()], dim=-1).repeat(1, heads).unflatten(-1, (heads, head_dim))
    x_wide = x.to(dtype)
    swapped = x_wide.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    turned = torch.addcmul(x_wide * cos, swapped, sin)
    return turned.to(x.dtype)
