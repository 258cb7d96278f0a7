"""Sampling: paths drawn from the model, by temperature, top-k and top-p, the same for the same seed."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffwindow.decoding import Decoding
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


def sample(
    model: Stepper, start: Start, decoding: Decoding, *, seeds: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """Draw `n_best` hypotheses of each sentence and return them best first.

    Tokens are drawn from softmax(logits / temperature), cut to its `top_k` most probable tokens and then to
    the fewest of these that hold the mass `top_p`; `log_prob` and `score` are the model's own, before both.
    Sentence i draws from the seed `seed + i`, or from its own of `seeds`, whatever else is in the batch.
    """
    if not decoding.temperature:
        raise ValueError("temperature=0 is beam search; samples need one above 0")
    seeds = range(decoding.seed, decoding.seed + len(start.limits)) if seeds is None else seeds
    count = decoding.n_best
    propose = partial(_continue_each, _draw_noise(seeds, start.limits, count))
    return search(model, start, propose, decoding, width=count, slots=count)


def _draw_noise(seeds: Sequence[int], limits: Int[Tensor, " s"], samples: int) -> Float[Tensor, "s t w"]:
    """Draw one number in [0, 1) for each sentence, step and path; a sentence's do not depend on others."""
    longest = int(limits.max()) + 1 if len(limits) else 0
    noise = torch.empty(len(limits), longest, samples, dtype=torch.float64)
    for seed, rows in zip(seeds, noise, strict=True):
        rows.uniform_(generator=torch.Generator().manual_seed(seed))
    return noise.to(limits.device)


def _continue_each(noise: Float[Tensor, "s t w"], step: Step) -> Candidates:
    """Propose one continuation of each open path, drawn with the noise of its sentence, step and slot."""
    total = log_partition(step.logits)
    logits = forbid(step)
    width = logits.shape[1]
    at_step = noise[step.sentences, step.length - 1, :width]
    # at most 0, in doubles: a tiny temperature would overflow
    tempered = (logits - logits.amax(-1, keepdim=True)).double() / step.decoding.temperature
    tokens = draw(tempered, at_step, top_k=step.decoding.top_k, top_p=step.decoding.top_p)
    log_probs = (logits.gather(-1, tokens[..., None]) - total).squeeze(-1)
    parents = torch.arange(width, device=tokens.device).expand_as(tokens)
    return Candidates(parents, tokens, step.log_probs + log_probs)


def draw(
    logits: Float[Tensor, "*lead v"], noise: Float[Tensor, "*lead"], *, top_k: int | None, top_p: float
) -> Int[Tensor, "*lead"]:
    """Draw a token from the top of softmax(logits), by the inverse of its distribution function at `noise`.

    >>> logits, noise = torch.tensor([0.1, 0.5, 0.4]).log(), torch.tensor([0.0, 0.49, 0.51, 0.91])
    >>> draw(logits.expand(4, 3), noise, top_k=None, top_p=1.0)
    tensor([1, 1, 2, 0])
    >>> draw(logits.expand(4, 3), noise, top_k=None, top_p=0.8)
    tensor([1, 1, 1, 2])
    """
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    top, tokens = logits.double().topk(count)
    probability = top.softmax(-1)
    cumulative = probability.cumsum(-1)
    # the last token kept is the one whose predecessors hold less than top_p; with NaN, any: `search` raises
    last = ((cumulative - probability < top_p).sum(-1, keepdim=True) - 1).clamp(min=0)
    target = noise.double()[..., None] * cumulative.gather(-1, last)
    index = torch.searchsorted(cumulative, target, right=True).minimum(last)
    return tokens.gather(-1, index).squeeze(-1)
