"""Translate many sentences: in batches by tokens, in order, long ones in pieces."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffwindow.data.tokenizer import Tokenizer, moses_detokenizer
from diffwindow.decoding.batches import ReportDone, in_batches, padded, report_nothing
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.ensemble import Ensemble
from diffwindow.decoding.sampling import sample
from diffwindow.decoding.search import FREE, Constraints, Hypothesis, normalized, translation_start
from diffwindow.models.model import evaluating
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import EOS

# memory grows with the beam, and wider ones stop giving better translations long before
MAX_BEAM = 1000
# more, and the power of a long output's length overflows
MAX_LENGTH_PENALTY = 10
# sources have seeds of their own up to this number; their further pieces have those above
MAX_SOURCES = 2**32
_SENTENCE_ENDS = (".", "!", "?", ";")


@dataclass(frozen=True)
class Search:
    """How to decode: hypotheses kept open, the power of the length that divides log p, how many to return.

    A temperature above 0 draws `n_best` samples instead of a beam search (see `sampling.sample`). A batch
    holds up to `max_tokens` source tokens. A source of more than `max_length` tokens is translated in pieces,
    whose translations are joined; constraints hold for each piece.
    """

    beam: int = 5
    length_penalty: float = 0.6
    n_best: int = 1
    max_tokens: int = 4096
    max_length: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    constraints: Constraints = FREE

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= (MAX_BEAM if self.temperature else self.beam):
            most = f"{MAX_BEAM:,}" if self.temperature else f"beam={self.beam}"
            raise ValueError(f"n_best={self.n_best} is not between 1 and {most}")
        if self.beam > MAX_BEAM:
            raise ValueError(f"beam={self.beam:,} is above {MAX_BEAM:,}, the most that a search keeps open")
        limit = MAX_LENGTH_PENALTY
        if not -limit <= self.length_penalty <= limit:
            raise ValueError(f"length_penalty={self.length_penalty} is not between -{limit} and {limit}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature={self.temperature} is not finite and at least 0, which is beam search"
            )
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length} is below 1")


@dataclass(frozen=True)
class Output:
    """A translation, its score log p / length^α, and the number of pieces that its source was cut into."""

    text: str
    score: float
    pieces: int = 1


def translate(
    model: Translator | Ensemble,
    tokenizer: Tokenizer,
    sources: Sequence[Sequence[int]],
    search: Search,
    *,
    progress: ReportDone = report_nothing,
) -> list[list[Output]]:
    """Return the best translations of each source, best first; sources are ids without begin or end."""
    pieces = [_pieces(source, tokenizer, search.max_length) for source in sources]
    flat = [piece for of_source in pieces for piece in of_source]
    # a source draws the same samples whatever stands before it: nothing, or a source in several pieces
    seeds = [
        search.seed + number + place * MAX_SOURCES
        for number, of_source in enumerate(pieces)
        for place in range(len(of_source))
    ]
    decoded = iter(_decode(model, flat, seeds, search, progress))
    return [_joined([next(decoded) for _ in of_source], tokenizer, search) for of_source in pieces]


def translate_texts(
    model: Translator | Ensemble,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    search: Search,
    moses: dict[str, str],
    *,
    progress: ReportDone = report_nothing,
) -> list[list[Output]]:
    """Translate texts, through the Moses tokenizers of the languages that `moses` names."""
    before = tokenizer.pretokenizer(moses.get("source"))
    after = moses_detokenizer(moses["target"]) if "target" in moses else str
    sources = tokenizer.encode_batch([before(text.strip()) for text in texts])
    outputs = translate(model, tokenizer, sources, search, progress=progress)
    return [[replace(one, text=after(one.text)) for one in best] for best in outputs]


def cut(
    ids: Sequence[int],
    tokens: Sequence[str],
    max_length: int,
    *,
    is_text: Callable[[Sequence[int]], bool] = lambda _: True,
) -> list[list[int]]:
    """Cut a sentence into pieces of at most `max_length` tokens: after punctuation, else between words.

    Of the places in the latter half of a piece the last one that ends a sentence is taken, then the last one
    between words; a word longer than a piece is cut where the piece is full, or earlier, so as not to
    cut a character: a piece must be what `is_text` accepts. An empty sentence has no piece.

    >>> cut([4, 5, 6, 7, 8], ["the", "key", ".", "the", "keys"], 4)
    [[4, 5, 6], [7, 8]]
    >>> cut([4, 5, 6], ["un@@", "lock", "it"], 1)
    [[4], [5], [6]]
    """
    pieces, start = [], 0
    while len(ids) - start > max_length:
        places = range(start + max_length, start + max_length // 2, -1)
        between = [place for place in places if not tokens[place - 1].endswith("@@")]
        ends = [place for place in between if tokens[place - 1].endswith(_SENTENCE_ENDS)]
        inside = (place for place in places if is_text(ids[start:place]))
        stop = (ends or between or [next(inside, start + max_length)])[0]
        pieces.append(list(ids[start:stop]))
        start = stop
    return [*pieces, list(ids[start:])] if start < len(ids) else pieces


def _pieces(source: Sequence[int], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    if len(source) <= max_length:
        return [list(source)] if len(source) else []

    def is_text(ids: Sequence[int]) -> bool:
        return not tokenizer.decode(ids).endswith("\N{REPLACEMENT CHARACTER}")

    def opened(piece: list[int]) -> list[int]:
        """Start as a sentence does, without the space before its first word."""
        text = tokenizer.decode(piece)
        return tokenizer.encode(text.strip()) if text[:1].isspace() else piece

    first, *rest = cut(source, tokenizer.tokens(source), max_length, is_text=is_text)
    return [first, *map(opened, rest)]


def _decode(
    model: Translator | Ensemble,
    sources: Sequence[Sequence[int]],
    seeds: Sequence[int],
    search: Search,
    progress: ReportDone,
) -> list[list[Hypothesis]]:
    """Search in batches of similar length, and return the results in the order of the sources."""
    if not sources:
        return []
    lengths = np.array([len(source) + 1 for source in sources], np.int64)

    def decode(indices: list[int]) -> list[list[Hypothesis]]:
        start = translation_start(model, padded([[*sources[index], EOS] for index in indices], device))
        penalty, constraints = search.length_penalty, search.constraints
        if not search.temperature:
            return beam_search(
                model,
                start,
                beam=search.beam,
                length_penalty=penalty,
                n_best=search.n_best,
                constraints=constraints,
            )
        return sample(
            model,
            start,
            seed=[seeds[index] for index in indices],
            samples=search.n_best,
            temperature=search.temperature,
            top_k=search.top_k,
            top_p=search.top_p,
            length_penalty=penalty,
            constraints=constraints,
        )

    with evaluating(model) as device:
        return in_batches([lengths], decode, max_tokens=search.max_tokens, progress=progress)


def _joined(pieces: list[list[Hypothesis]], tokenizer: Tokenizer, search: Search) -> list[Output]:
    """Join the translations of a sentence's pieces, best with best; nothing has an empty translation."""
    if not pieces:
        return [Output("", 0.0, 0)]
    outputs = []
    for ranked in zip(*pieces, strict=False):
        text = " ".join(tokenizer.decode(hypothesis.tokens) for hypothesis in ranked)
        length = sum(len(hypothesis.tokens) + 1 for hypothesis in ranked)
        log_prob = sum(hypothesis.log_prob for hypothesis in ranked)
        outputs.append(Output(text, normalized(log_prob, length, search.length_penalty), len(ranked)))
    return outputs
