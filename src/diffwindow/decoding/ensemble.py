"""Ensemble: several translators of one vocabulary that decode as one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffwindow.functional import at_least_fp32
from diffwindow.models.decoding_state import DecodingState
from diffwindow.models.translator import Translator


@dataclass
class EnsembleState:
    """The states of all models."""

    states: list[DecodingState]

    def select(self, sentences: Int[Tensor, " s2"], hypotheses: Int[Tensor, "s2 w2"]) -> None:
        """Keep these sentences, and of each these hypotheses, in this order."""
        for state in self.states:
            state.select(sentences, hypotheses)


class Ensemble(nn.Module):
    """Translators whose probabilities are averaged, token by token: p = mean p_m."""

    def __init__(self, models: Sequence[Translator]) -> None:
        super().__init__()
        sizes = sorted({model.config.vocab_size for model in models})
        if len(sizes) != 1:
            raise ValueError(f"the models have vocabularies of {sizes} tokens; an ensemble shares one")
        self.models = nn.ModuleList(models)

    def begin(
        self, source: Int[Tensor, "s n"], source_mask: Bool[Tensor, "s n"] | None = None
    ) -> EnsembleState:
        """Encode sources with every model."""
        return EnsembleState([model.begin(source, source_mask) for model in self.translators()])

    def step(self, tokens: Int[Tensor, "s w"], state: EnsembleState) -> Float[Tensor, "s w v"]:
        """Append a token to each hypothesis and return log p of the next."""
        pairs = zip(self.translators(), state.states, strict=True)
        logits = [at_least_fp32(model.step(tokens, own)) for model, own in pairs]
        return average_log_probs([each.log_softmax(-1) for each in logits])

    def translators(self) -> list[Translator]:
        """Return the models."""
        return [model for model in self.models if isinstance(model, Translator)]


def average_log_probs(log_probs: Sequence[Float[Tensor, "*shape"]]) -> Float[Tensor, "*shape"]:
    """Average probabilities: log mean p_m.

    >>> average_log_probs([torch.tensor([0.2]).log(), torch.tensor([0.6]).log()]).exp()
    tensor([0.4000])
    """
    stacked = at_least_fp32(torch.stack(list(log_probs)))
    return stacked.logsumexp(0) - math.log(len(log_probs))
