"""Decoding: greedy, beam and sampling over any model with `step`."""

import math
from dataclasses import dataclass

# memory grows with the beam, and wider ones stop giving better translations long before
MAX_BEAM = 1000
# all samples are drawn together, and memory grows with their length
MAX_SAMPLES, MAX_NEW_TOKENS = 10_000, 100_000
# more, and the power of a long output's length overflows
MAX_LENGTH_PENALTY = 10


@dataclass(frozen=True)
class Decoding:
    """How outputs are decoded: by beam search, or by sampling if `temperature` is above 0.

    - `beam`: hypotheses kept open; 1 is greedy search.
    - `n_best`: how many outputs to return, or samples to draw.
    - `length_penalty`: the power of the length that divides log p in the score of an output.
    - `temperature`, `top_k`, `top_p`, `seed`: see `sampling.sample`.
    - `min_new_tokens`, `max_new_tokens`: the length of an output. None limits a translation by its source,
      and a continuation to 50 tokens.
    - `no_repeat_ngram`: no n-gram of this size occurs twice in an output; 0 allows everything.
    - `max_source_tokens`: a longer source is translated in pieces, which are joined.
    - `max_tokens`: source tokens per batch.

    >>> Decoding(beam=4, n_best=2)  # doctest: +ELLIPSIS
    Decoding(beam=4, n_best=2, length_penalty=0.6, temperature=0.0, ...)
    """

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 0.6
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    min_new_tokens: int = 0
    max_new_tokens: int | None = None
    no_repeat_ngram: int = 0
    max_source_tokens: int = 256
    max_tokens: int = 4096

    def __post_init__(self) -> None:
        self._check_between("beam", 1, MAX_BEAM)
        if self.temperature or self.n_best < 1:
            self._check_between("n_best", 1, MAX_SAMPLES)
        elif self.n_best > self.beam:
            raise ValueError(f"n_best={self.n_best} is not between 1 and beam={self.beam}")
        self._check_between("length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature={self.temperature} is not finite and at least 0, which is beam search"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} is below 1; None keeps all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is not above 0 and at most 1 (1 keeps all tokens)")
        for name in ("min_new_tokens", "no_repeat_ngram"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is below 0, which is no constraint")
        if self.max_new_tokens is not None:
            self._check_between("max_new_tokens", 1, MAX_NEW_TOKENS)
        for name in ("max_source_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is below 1")

    def _check_between(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise ValueError(f"{name}={value:,} is not between {least} and {most:,}")
