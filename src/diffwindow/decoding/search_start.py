"""Where a search begins: what the model has read, the token that opens each sentence, and its limit."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from diffwindow.decoding.ensemble import Ensemble
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import BOS, PAD


@runtime_checkable
class State(Protocol):
    """What a model remembers of the sentences that it is decoding."""

    def select(self, sentences: Int[Tensor, " s2"], hypotheses: Int[Tensor, "s2 w2"]) -> None:
        """Keep these sentences, and of each these hypotheses, in this order."""


@dataclass(frozen=True)
class Start:
    """Where a search begins: the state, the token that opens each sentence, and the most it may grow.

    A search consumes the state: it serves one search.
    """

    state: State
    first: Int[Tensor, " s"]
    limits: Int[Tensor, " s"]

    def __post_init__(self) -> None:
        if self.limits.shape != self.first.shape:
            raise ValueError(f"{len(self.limits)} limits for {len(self.first)} sentences; pass one for each")
        if (self.limits < 0).any():
            raise ValueError(
                f"limit {int(self.limits.min())} is below 0; it counts the tokens before the end"
            )


def translation_start(
    model: Translator | Ensemble,
    source: Int[Tensor, "s n"],
    source_mask: Bool[Tensor, "s n"] | None = None,
    *,
    ratio: float = 1.2,
    extra: int = 10,
) -> Start:
    """Begin translations of at most ⌊ratio · n⌋ + extra tokens, where n counts the source's real tokens."""
    real = source != PAD if source_mask is None else source_mask
    first = torch.full_like(source[:, 0], BOS)
    return Start(
        model.begin(source, source_mask), first, length_limits(real.sum(-1), ratio=ratio, extra=extra)
    )


def continuation_start(
    model: LanguageModel,
    prompt: Int[Tensor, "s n"],
    prompt_mask: Bool[Tensor, "s n"] | None = None,
    *,
    limit: int = 100,
) -> Start:
    """Begin continuations, of at most `limit` tokens, of prompts that are padded on the left if at all."""
    if prompt.shape[1] == 0:
        raise ValueError("the prompts are empty; to begin from nothing, prompt with the opening token, 1")
    if prompt_mask is not None:
        if not prompt_mask[:, -1].all():
            raise ValueError("a prompt ends in padding; pad prompts on the left")
        prompt_mask = prompt_mask[:, :-1]
    first = prompt[:, -1]
    return Start(model.begin(prompt[:, :-1], prompt_mask), first, torch.full_like(first, limit))


def length_limits(lengths: Int[Tensor, " s"], *, ratio: float = 1.2, extra: int = 10) -> Int[Tensor, " s"]:
    """Limit each output by its source: ⌊ratio · n⌋ + extra tokens, the end not counted.

    >>> length_limits(torch.tensor([5, 20]))
    tensor([16, 34])
    """
    return (lengths * ratio).long() + extra
