"""Beam search, and greedy search, which is a beam of one."""

from functools import partial

from jaxtyping import Float, Int
from torch import Tensor

from diffwindow.decoding.search import (
    FREE,
    Candidates,
    Constraints,
    Hypothesis,
    Start,
    Step,
    Stepper,
    forbid,
    log_partition,
    search,
)


def beam_search(
    model: Stepper,
    start: Start,
    *,
    beam: int = 5,
    length_penalty: float = 0.6,
    n_best: int = 1,
    constraints: Constraints = FREE,
) -> list[list[Hypothesis]]:
    """Find the `n_best` hypotheses of each sentence, best first, by log p / length^length_penalty.

    At each step the continuations of a sentence's open hypotheses compete for the slots that its finished
    ones have left of `beam`. A beam that can hold every prefix makes the search exhaustive.
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best={n_best} is not between 1 and beam={beam}")
    propose = partial(_rank_together, beam)
    return search(
        model,
        start,
        propose,
        width=1,
        slots=beam,
        length_penalty=length_penalty,
        n_best=n_best,
        constraints=constraints,
    )


def greedy_search(
    model: Stepper, start: Start, *, length_penalty: float = 0.6, constraints: Constraints = FREE
) -> list[Hypothesis]:
    """Follow the most probable token until the end; the penalty only scales the score."""
    results = beam_search(model, start, beam=1, length_penalty=length_penalty, constraints=constraints)
    return [hypothesis for (hypothesis,) in results]


def _rank_together(beam: int, step: Step) -> Candidates:
    """Propose the `beam` best continuations of a sentence, whichever hypotheses they continue."""
    log_probs, tokens = best_continuations(step, beam)
    totals = (step.log_probs[..., None] + log_probs).flatten(1)
    best, index = totals.topk(min(beam, totals.shape[-1]))
    return Candidates(index // tokens.shape[-1], tokens.flatten(1).gather(-1, index), best)


def best_continuations(step: Step, count: int) -> tuple[Float[Tensor, "s w count"], Int[Tensor, "s w count"]]:
    """Return the log-probabilities and tokens of the `count` best continuations of each hypothesis.

    No more than `count` of one hypothesis can be among the `count` best of a sentence, so the vocabulary
    is ranked once per hypothesis and its log-probabilities are never all written out.
    """
    total = log_partition(step.logits)
    top, tokens = forbid(step).topk(min(count, step.logits.shape[-1]))
    # a rounding error above zero would break the bound, which relies on log p ≤ 0
    return (top - total).clamp(max=0.0), tokens
