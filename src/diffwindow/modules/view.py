"""What a stack's queries see of its keys: one value that travels through all its layers."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow import ops
from diffwindow.modules.masks import first_true


class View(NamedTuple):
    """The masks of an attention, as in `ops`, and the first real key of each sequence."""

    attn_mask: Bool[Tensor, "..."] | None = None
    is_causal: bool = False
    segment_origin: Int[Tensor, " b"] | None = None

    def visible(self, q: Float[Tensor, "b h q e"], k: Float[Tensor, "b h k e"]) -> Bool[Tensor, "..."] | None:
        """Give the masks as one; None means that everything is visible."""
        return ops.visible_mask(q, k, attn_mask=self.attn_mask, is_causal=self.is_causal)

    def select(self, sequences: Int[Tensor, " b2"]) -> "View":
        """Keep these sequences of the batch, where the view tells them apart."""
        mask, origin = self.attn_mask, self.segment_origin
        return View(
            None if mask is None else mask[sequences],
            self.is_causal,
            None if origin is None else origin[sequences],
        )

    def positions(self, length: int) -> Int[Tensor, "b n"] | None:
        """Count positions from each sequence's first real token; None where that is the first of all."""
        if self.segment_origin is None:
            return None
        position = torch.arange(length, device=self.segment_origin.device)
        return (position - self.segment_origin[:, None]).clamp(min=0)


EVERYTHING = View()


def padded_view(mask: Bool[Tensor, "b n"] | None, *, is_causal: bool = False) -> View:
    """See the real tokens, where `mask` is True; None means that all are.

    >>> padded_view(torch.tensor([[False, True, True]])).segment_origin
    tensor([1])
    """
    if mask is None:
        return View(is_causal=is_causal)
    return View(mask[:, None, None, :], is_causal, first_true(mask))
