"""Continue a text with a language model."""

from dataclasses import dataclass

import torch

from diffwindow.data.tokenizer import BOS, Tokenizer
from diffwindow.models.beam import greedy_search
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.sampling import sample
from diffwindow.models.start import continuation_start
from diffwindow.tasks.batch import evaluating


@dataclass(frozen=True)
class Sampling:
    """How many continuations, of how many tokens at most, and how they are drawn; temperature 0 is greedy."""

    samples: int = 1
    max_tokens: int = 50
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0


def continuations(model: LanguageModel, tokenizer: Tokenizer, prompt: str, sampling: Sampling) -> list[str]:
    """Give texts that begin with the prompt, likeliest first."""
    ids = tokenizer.encode(prompt)
    with evaluating(model) as device:
        start = continuation_start(
            model, torch.tensor([[BOS, *ids]], device=device), limit=sampling.max_tokens
        )
        if sampling.temperature == 0:
            found = greedy_search(model, start)
        else:
            (found,) = sample(
                model,
                start,
                seed=sampling.seed,
                samples=sampling.samples,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
            )
    return [tokenizer.decode([*ids, *hypothesis.tokens]) for hypothesis in found]
