"""The search that all decoders share: where it begins, its steps, and when it ends."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from diffwindow.decoding import Decoding
from diffwindow.decoding.ensemble import Ensemble
from diffwindow.functional import at_least_fp32
from diffwindow.kernels import ranking
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import BOS, EOS, PAD


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


def start_translation(
    model: Translator | Ensemble,
    source: Int[Tensor, "s n"],
    source_mask: Bool[Tensor, "s n"] | None = None,
    *,
    ratio: float = 1.2,
    extra: int = 10,
    limit: int | None = None,
) -> Start:
    """Begin translations of at most `limit` tokens.

    None allows ⌊ratio · n⌋ + extra, where n counts the source's real tokens.
    """
    real = source != PAD if source_mask is None else source_mask
    first = torch.full_like(source[:, 0], BOS)
    limits = limit_lengths(real.sum(-1), ratio=ratio, extra=extra)
    if limit is not None:
        limits = torch.full_like(limits, limit)
    return Start(model.begin(source, source_mask), first, limits)


def start_continuation(
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


def limit_lengths(lengths: Int[Tensor, " s"], *, ratio: float = 1.2, extra: int = 10) -> Int[Tensor, " s"]:
    """Limit each output by its source: ⌊ratio · n⌋ + extra tokens, the end not counted.

    >>> limit_lengths(torch.tensor([5, 20]))
    tensor([16, 34])
    """
    return (lengths * ratio).long() + extra


@runtime_checkable
class Stepper(Protocol):
    """A model that decodes step by step: a `Translator`, a `LanguageModel`."""

    def step(self, tokens: Int[Tensor, "s w"], state: Any) -> Float[Tensor, "s w v"]:
        """Append one token to each hypothesis and return the logits of the next."""


@dataclass(frozen=True)
class Hypothesis:
    """A complete output: the tokens between its opening and its end, neither of which is among them.

    `log_prob` includes the end. `ended` is False if the length limit stopped it.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


def normalize_score(log_prob: float, length: int, length_penalty: float) -> float:
    """Score a hypothesis of `length` tokens, the end included: log p / length^α.

    >>> normalize_score(-8.0, 16, 0.5)
    -2.0
    """
    return log_prob / math.pow(length, length_penalty)


def bound_score(log_prob: float, shortest: int, longest: int, length_penalty: float) -> float:
    """Bound the score of all that can grow from a prefix.

    log p ≤ 0 only falls as the prefix grows, and length^α is monotone, so the best score that any of its
    completions can have is that of log p at one of the two extreme lengths, whatever the sign of α.

    >>> bound_score(-8.0, 4, 16, 0.5), bound_score(-8.0, 4, 16, 0.0), bound_score(-8.0, 4, 16, -0.5)
    (-2.0, -8.0, -16.0)
    """
    return max(normalize_score(log_prob, length, length_penalty) for length in (shortest, longest))


class Step(NamedTuple):
    """One step of a search: the logits, which may be changed in place, log p so far, and the prefixes.

    Prefixes start with the opening token.
    """

    logits: Float[Tensor, "s w v"]
    log_probs: Float[Tensor, "s w"]
    at_limit: Bool[Tensor, " s"]
    sentences: Int[Tensor, " s"]
    prefixes: Int[Tensor, "s w t"]
    decoding: Decoding

    @property
    def length(self) -> int:
        """Count the tokens of each prefix, with the opening."""
        return self.prefixes.shape[-1]


class Candidates(NamedTuple):
    """Continuations of a sentence's open hypotheses, best first; `parents` says which each continues."""

    parents: Int[Tensor, "s c"]
    tokens: Int[Tensor, "s c"]
    log_probs: Float[Tensor, "s c"]


# returns the candidates for the slots of each sentence; log p = −∞ marks an empty one
Propose = Callable[[Step], Candidates]


@torch.no_grad()
def search(
    model: Stepper,
    start: Start,
    propose: Propose,
    decoding: Decoding,
    *,
    width: int,
    slots: int,
) -> list[list[Hypothesis]]:
    """Find the `n_best` hypotheses of each sentence, best first, by log p / length^length_penalty.

    A sentence begins with `width` equal hypotheses and has `slots` slots. At each step its candidates take
    the slots left, best first; one that ends keeps its slot for good. A sentence is done when no slot is
    open, or when no open hypothesis can still score above its `n_best` finished ones (see `bound_score`); it
    then leaves the batch.
    """
    results = [_Finished(limit, decoding.length_penalty, decoding.n_best) for limit in start.limits.tolist()]
    running, state, limits, device = results, start.state, start.limits, start.first.device
    sentences = torch.arange(len(results), device=device)
    prefixes = start.first[:, None, None].expand(-1, width, 1)
    if width > 1:
        state.select(sentences, torch.zeros_like(prefixes[..., 0]))
    log_probs = torch.zeros(prefixes.shape[:2], device=device)
    while running:
        length = prefixes.shape[-1]
        logits = model.step(prefixes[..., -1], state)
        candidates = propose(Step(logits, log_probs, limits < length, sentences, prefixes, decoding))
        left = torch.tensor([slots - len(done.hypotheses) for done in running], device=device)
        ends, stays = _fill(candidates, left)
        for row, rank in ends.nonzero().tolist():
            prefix = prefixes[row, candidates.parents[row, rank], 1:]
            running[row].add(prefix.tolist(), candidates.log_probs[row, rank].item())
        if stays.all() and not any(done.hypotheses for done in running):
            kept, (parents, tokens, log_probs) = torch.arange(len(running), device=device), candidates
        else:
            best_open = candidates.log_probs.where(stays, -torch.inf).amax(-1).tolist()
            rows = [row for row, best in enumerate(best_open) if not running[row].is_settled(best, length)]
            running = [running[row] for row in rows]
            kept = torch.tensor(rows, dtype=torch.long, device=device)
            parents, tokens, log_probs = _close_ranks(candidates, stays, kept)
        if not _is_unchanged(kept, parents, prefixes):
            state.select(kept, parents)
        sentences, limits = sentences[kept], limits[kept]
        prefixes = torch.cat([prefixes[kept[:, None], parents], tokens[..., None]], dim=-1)
    if not all(done.hypotheses for done in results):
        raise ValueError(
            "every output has probability zero or NaN: the weights or inputs of the model are not finite"
        )
    return [done.best() for done in results]


def log_partition(logits: Float[Tensor, "s w v"]) -> Float[Tensor, "s w 1"]:
    """Return log Σ exp(logits) over all tokens, so that log-probabilities are never renormalised."""
    return ranking.logsumexp(at_least_fp32(logits))


def forbid(step: Step) -> Float[Tensor, "s w v"]:
    """Set the logits of what may not follow to −∞, in place: padding, the opening, what the options exclude.

    At its length limit a sentence can only end; one for which nothing is left may end too.
    """
    logits, at_limit = step.logits, step.at_limit
    ngram, shortest = step.decoding.no_repeat_ngram, step.decoding.min_new_tokens
    # one by one: a list of indices takes longer
    logits[..., PAD] = -torch.inf
    logits[..., BOS] = -torch.inf
    ends = logits[..., EOS].clone()
    if ngram and (banned := find_repeating(step.prefixes[..., 1:], ngram)) is not None:
        logits.scatter_(-1, banned, -torch.inf)
    if step.length <= shortest:
        logits[..., EOS] = -torch.inf
    if ngram or shortest:
        stuck = logits.amax(-1) == -torch.inf
        logits[..., EOS] = logits[..., EOS].where(~stuck, ends)
    if at_limit.any():
        logits[at_limit] = -torch.inf
        logits[at_limit, :, EOS] = ends[at_limit]
    return logits


def find_repeating(prefixes: Int[Tensor, "s w t"], size: int) -> Int[Tensor, "s w n"] | None:
    """Return the tokens that would repeat an n-gram of this size in their prefix; padding fills the rows.

    >>> find_repeating(torch.tensor([[[7, 8, 9, 7, 8]]]), 3).tolist()
    [[[9, 0, 0]]]
    """
    length = prefixes.shape[-1]
    if length < size:
        return None
    grams = prefixes.unfold(-1, size, 1)
    last = prefixes[..., None, length - size + 1 :]
    same = (grams[..., :-1] == last).all(-1)
    return grams[..., -1].where(same, PAD)


@dataclass
class _Finished:
    """The finished hypotheses of one sentence."""

    limit: int
    length_penalty: float
    n_best: int
    hypotheses: list[Hypothesis] = field(default_factory=list)

    def add(self, tokens: list[int], log_prob: float) -> None:
        """Take in a hypothesis that has ended."""
        score = normalize_score(log_prob, len(tokens) + 1, self.length_penalty)
        self.hypotheses.append(Hypothesis(tuple(tokens), log_prob, score, ended=len(tokens) < self.limit))

    def best(self) -> list[Hypothesis]:
        """Return the n best, best first; of equal ones the first to end."""
        return sorted(self.hypotheses, key=lambda hypothesis: -hypothesis.score)[: self.n_best]

    def is_settled(self, log_prob: float, length: int) -> bool:
        """Return whether no completion of open prefixes of `length` tokens can get among the n best."""
        if log_prob == -torch.inf:
            return True
        if len(self.hypotheses) < self.n_best:
            return False
        highest = bound_score(log_prob, length + 1, self.limit + 1, self.length_penalty)
        return self.best()[-1].score >= highest


def _fill(
    candidates: Candidates, slots: Int[Tensor, " s"]
) -> tuple[Bool[Tensor, "s c"], Bool[Tensor, "s c"]]:
    """Assign the slots left to the best candidates; return those that end and those that stay open."""
    rank = torch.arange(candidates.tokens.shape[-1], device=slots.device)
    chosen = (rank < slots[:, None]) & candidates.log_probs.isfinite()
    ends = candidates.tokens == EOS
    return chosen & ends, chosen & ~ends


def _close_ranks(candidates: Candidates, stays: Bool[Tensor, "s c"], kept: Int[Tensor, " s2"]) -> Candidates:
    """Of these sentences, move the candidates that stay to the front; empty slots have log p = −∞."""
    stays = stays[kept]
    width = int(stays.sum(-1).max()) if len(kept) else 0
    order = stays.int().argsort(dim=-1, descending=True, stable=True)[:, :width]
    parents, tokens, log_probs = (column[kept].gather(-1, order) for column in candidates)
    return Candidates(parents, tokens, log_probs.where(stays.gather(-1, order), -torch.inf))


def _is_unchanged(
    kept: Int[Tensor, " s2"], parents: Int[Tensor, "s2 w2"], prefixes: Int[Tensor, "s w t"]
) -> bool:
    """Return whether every hypothesis goes on where it is, so that no cache needs to move."""
    if len(kept) != len(prefixes) or parents.shape != prefixes.shape[:2]:
        return False
    return bool((parents == torch.arange(parents.shape[1], device=parents.device)).all())
