"""From PyTorch's masks, True where a query may not look, to ours, True where it may."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def visible_keys(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, shape: tuple[int, int, int, int]
) -> Bool[Tensor, "..."] | None:
    """Join the masks of a `torch.nn.MultiheadAttention` call to one that broadcasts to `shape`, b h q k."""
    batch, heads, queries, keys = shape
    visible = None
    if key_padding_mask is not None:
        _check_shape("key_padding_mask", key_padding_mask, [(batch, keys)])
        visible = ~hidden("key_padding_mask", key_padding_mask).view(batch, 1, 1, keys)
    if attn_mask is not None:
        _check_shape("attn_mask", attn_mask, [(queries, keys), (batch * heads, queries, keys)])
        allowed = ~hidden("attn_mask", attn_mask)
        if allowed.dim() == 3:
            allowed = allowed.view(batch, heads, queries, keys)
        visible = allowed if visible is None else visible & allowed
    return visible


def first_visible_key(key_padding_mask: Tensor | None) -> Int[Tensor, " b"] | None:
    """Give the first real key of each sequence, where its segments start; 0 if there is none.

    >>> first_visible_key(torch.tensor([[True, True, False], [False, False, True]]))
    tensor([2, 0])
    """
    if key_padding_mask is None:
        return None
    return first_true(~hidden("key_padding_mask", key_padding_mask))


def first_true(mask: Bool[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """Give the first True of each row; 0 if there is none, or no column at all."""
    return mask.long().argmax(-1) if mask.shape[-1] else mask.new_zeros(mask.shape[0], dtype=torch.long)


def hidden(name: str, mask: Tensor) -> Bool[Tensor, "..."]:
    """Read a PyTorch mask: a boolean one, or a float one of 0 and -inf, into which torch's layers turn it."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise TypeError(f"{name} is {mask.dtype}; pass a boolean mask, True where a query may not look")
    is_hidden = mask == float("-inf")
    # A compiled graph cannot branch on values; so the check is for eager calls alone.
    if not torch.compiler.is_compiling():
        biases = mask[~is_hidden & (mask != 0)]
        if biases.numel():
            raise ValueError(
                f"{name} holds {biases[0].item():g}, but a float mask may only hold 0 and -inf: "
                "window attention takes no bias"
            )
    return is_hidden


def _check_shape(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{name} has shape {list(mask.shape)}, not {wanted}")
