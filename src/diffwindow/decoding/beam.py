"""Beam search, of which greedy search is a beam of one, and `decode`, which searches or samples."""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float, Int
from torch import Tensor

from diffwindow.decoding import Decoding
from diffwindow.decoding.sampling import sample
from diffwindow.decoding.search import (
    Candidates,
    Hypothesis,
    Start,
    Step,
    Stepper,
    forbid,
    log_partition,
    search,
)
from diffwindow.kernels import ranking


def decode(
    model: Stepper, start: Start, decoding: Decoding, *, seeds: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """Sample if the temperature is above 0, else search; `seeds` are those of `sample`."""
    if decoding.temperature:
        return sample(model, start, decoding, seeds=seeds)
    return beam_search(model, start, decoding)


def beam_search(model: Stepper, start: Start, decoding: Decoding | None = None) -> list[list[Hypothesis]]:
    """Find the `n_best` hypotheses of each sentence, best first, by log p / length^length_penalty.

    At each step the continuations of a sentence's open hypotheses compete for the slots that its finished
    ones have left of `beam`. A beam that can hold every prefix makes the search exhaustive.
    """
    decoding = decoding or Decoding()
    if decoding.temperature:
        raise ValueError(f"temperature={decoding.temperature} draws samples; a beam search needs 0")
    propose = partial(_rank_together, decoding.beam)
    return search(model, start, propose, decoding, width=1, slots=decoding.beam)


def _rank_together(beam: int, step: Step) -> Candidates:
    """Propose the `beam` best continuations of a sentence, whichever hypotheses they continue."""
    log_probs, tokens = find_best_continuations(step, beam)
    totals = (step.log_probs[..., None] + log_probs).flatten(1)
    best, index = totals.topk(min(beam, totals.shape[-1]))
    return Candidates(index // tokens.shape[-1], tokens.flatten(1).gather(-1, index), best)


def find_best_continuations(
    step: Step, count: int
) -> tuple[Float[Tensor, "s w count"], Int[Tensor, "s w count"]]:
    """Return the log-probabilities and tokens of the `count` best continuations of each hypothesis.

    No more than `count` of one hypothesis can be among the `count` best of a sentence, so the vocabulary
    is ranked once per hypothesis and its log-probabilities are never all written out.
    """
    total = log_partition(step.logits)
    top, tokens = ranking.topk(forbid(step), min(count, step.logits.shape[-1]))
    # a rounding error above zero would break the bound, which relies on log p ≤ 0
    return (top - total).clamp(max=0.0), tokens
