"""Continue a text with a language model."""

from dataclasses import dataclass

import torch

from diffwindow.data.tokenizer import Tokenizer, moses_detokenizer
from diffwindow.decoding.beam import greedy_search
from diffwindow.decoding.sampling import sample
from diffwindow.decoding.search import FREE, Constraints, continuation_start
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.model import evaluating
from diffwindow.special_tokens import BOS, EOS

# all samples are drawn together, and memory grows with their length
MAX_SAMPLES, MAX_TOKENS = 10_000, 100_000


@dataclass(frozen=True)
class Sampling:
    """How many continuations, of how many tokens at most, and how they are drawn; temperature 0 is greedy."""

    samples: int = 1
    max_tokens: int = 50
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    constraints: Constraints = FREE

    def __post_init__(self) -> None:
        for name, value, most in (
            ("samples", self.samples, MAX_SAMPLES),
            ("max_tokens", self.max_tokens, MAX_TOKENS),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name}={value:,} is not between 1 and {most:,}")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"temperature=0 has one continuation, not samples={self.samples}")


def continuations(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    moses: str | None = None,
    running_text: bool = False,
) -> list[str]:
    """Return texts that begin with the prompt, likeliest first.

    `moses` is the language that Moses tokenises first, if any. A model of `running_text`, trained on blocks,
    has seen lines begin after the end of another; others after the beginning.
    """
    after = moses_detokenizer(moses) if moses else str
    ids = tokenizer.encode(tokenizer.pretokenizer(moses)(prompt))
    opening = EOS if running_text else BOS
    with evaluating(model) as device:
        start = continuation_start(
            model, torch.tensor([[opening, *ids]], device=device), limit=sampling.max_tokens
        )
        if sampling.temperature == 0:
            hypotheses = greedy_search(model, start, constraints=sampling.constraints)
        else:
            (hypotheses,) = sample(
                model,
                start,
                seed=sampling.seed,
                samples=sampling.samples,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                length_penalty=0.0,
                constraints=sampling.constraints,
            )
    return [after(tokenizer.decode([*ids, *hypothesis.tokens])) for hypothesis in hypotheses]
