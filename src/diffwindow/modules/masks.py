"""From PyTorch's masks, True where a query may not look, to ours, True where it may."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def read_masks(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, shape: tuple[int, int, int, int]
) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
    """Turn the masks of a `torch.nn.MultiheadAttention` call into a mask and a bias as `ops` takes them.

    Boolean masks join to one that broadcasts to `shape`, b h q k. Float masks are added to the scores.
    """
    batch, heads, queries, keys = shape
    masks = []
    if key_padding_mask is not None:
        _check_mask("key_padding_mask", key_padding_mask, [(batch, keys)])
        masks.append(key_padding_mask.view(batch, 1, 1, keys))
    if attn_mask is not None:
        _check_mask("attn_mask", attn_mask, [(queries, keys), (batch * heads, queries, keys)])
        masks.append(attn_mask.view(batch, heads, queries, keys) if attn_mask.dim() == 3 else attn_mask)
    visible, bias = None, None
    for mask in masks:
        if mask.dtype == torch.bool:
            visible = ~mask if visible is None else visible & ~mask
        else:
            bias = mask if bias is None else bias + mask
    return visible, bias


def first_visible_key(key_padding_mask: Tensor | None) -> Int[Tensor, " b"] | None:
    """Give the first real key of each sequence, where its segments start; 0 if there is none.

    >>> first_visible_key(torch.tensor([[True, True, False], [False, False, True]]))
    tensor([2, 0])
    """
    if key_padding_mask is None:
        return None
    return first_true(~hidden(key_padding_mask))


def first_true(mask: Bool[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """Give the first True of each row; 0 if there is none, or no column at all."""
    return mask.long().argmax(-1) if mask.shape[-1] else mask.new_zeros(mask.shape[0], dtype=torch.long)


def hidden(mask: Tensor) -> Bool[Tensor, "..."]:
    """Return where a PyTorch mask hides: where a boolean one is True, or a float one -inf."""
    return mask if mask.dtype == torch.bool else mask == float("-inf")


def _check_mask(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} is {mask.dtype}; pass a boolean mask, True where a query may not look")
    # number by number: traced sizes are compared by value only so
    if not any(
        mask.dim() == len(shape) and all(mask.shape[i] == n for i, n in enumerate(shape)) for shape in shapes
    ):
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{name} has shape {list(mask.shape)}, not {wanted}")
