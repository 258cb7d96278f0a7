"""Translate many sentences: in batches by tokens, in order, long ones in pieces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffwindow.data.tokenizer import Tokenizer, moses_detokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.batches import ReportDone, map_in_batches, pad_rows, report_nothing
from diffwindow.decoding.beam import decode
from diffwindow.decoding.ensemble import Ensemble
from diffwindow.decoding.search import Hypothesis, normalize_score, start_translation
from diffwindow.models.model import evaluating
from diffwindow.models.translator import Translator
from diffwindow.special_tokens import EOS

# sources have seeds of their own up to this number; their further pieces have those above
MAX_SOURCES = 2**32
_SENTENCE_ENDS = (".", "!", "?", ";")


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
    decoding: Decoding,
    *,
    progress: ReportDone = report_nothing,
) -> list[list[Output]]:
    """Return the best translations of each source, best first; sources are ids without begin or end."""
    pieces = [_cut_source(source, tokenizer, decoding.max_source_tokens) for source in sources]
    flat = [piece for of_source in pieces for piece in of_source]
    # a source draws the same samples whatever stands before it: nothing, or a source in several pieces
    seeds = [
        decoding.seed + number + place * MAX_SOURCES
        for number, of_source in enumerate(pieces)
        for place in range(len(of_source))
    ]
    decoded = iter(_decode_all(model, flat, seeds, decoding, progress))
    return [_join([next(decoded) for _ in of_source], tokenizer, decoding) for of_source in pieces]


def translate_texts(
    model: Translator | Ensemble,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    decoding: Decoding,
    moses: dict[str, str],
    *,
    progress: ReportDone = report_nothing,
) -> list[list[Output]]:
    """Translate texts, through the Moses tokenizers of the languages that `moses` names."""
    before = tokenizer.pretokenizer(moses.get("source"))
    after = moses_detokenizer(moses["target"]) if "target" in moses else str
    sources = tokenizer.encode_batch([before(text.strip()) for text in texts])
    outputs = translate(model, tokenizer, sources, decoding, progress=progress)
    return [[replace(one, text=after(one.text)) for one in best] for best in outputs]


def cut_sentence(
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

    >>> cut_sentence([4, 5, 6, 7, 8], ["the", "key", ".", "the", "keys"], 4)
    [[4, 5, 6], [7, 8]]
    >>> cut_sentence([4, 5, 6], ["un@@", "lock", "it"], 1)
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


def _cut_source(source: Sequence[int], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    if len(source) <= max_length:
        return [list(source)] if len(source) else []

    def is_text(ids: Sequence[int]) -> bool:
        return not tokenizer.decode(ids).endswith("\N{REPLACEMENT CHARACTER}")

    def as_opening(piece: list[int]) -> list[int]:
        """Start as a sentence does, without the space before its first word."""
        text = tokenizer.decode(piece)
        return tokenizer.encode(text.strip()) if text[:1].isspace() else piece

    first, *rest = cut_sentence(source, tokenizer.tokens(source), max_length, is_text=is_text)
    return [first, *map(as_opening, rest)]


def _decode_all(
    model: Translator | Ensemble,
    sources: Sequence[Sequence[int]],
    seeds: Sequence[int],
    decoding: Decoding,
    progress: ReportDone,
) -> list[list[Hypothesis]]:
    """Search in batches of similar length, and return the results in the order of the sources."""
    if not sources:
        return []
    lengths = np.array([len(source) + 1 for source in sources], np.int64)

    def decode_batch(indices: list[int]) -> list[list[Hypothesis]]:
        start = start_translation(
            model,
            pad_rows([[*sources[index], EOS] for index in indices], device),
            limit=decoding.max_new_tokens,
        )
        return decode(model, start, decoding, seeds=[seeds[index] for index in indices])

    with evaluating(model) as device:
        return map_in_batches([lengths], decode_batch, max_tokens=decoding.max_tokens, progress=progress)


def _join(pieces: list[list[Hypothesis]], tokenizer: Tokenizer, decoding: Decoding) -> list[Output]:
    """Join the translations of a sentence's pieces, rank by rank; an empty source has an empty one."""
    if not pieces:
        return [Output("", 0.0, 0)]
    outputs = []
    for ranked in zip(*pieces, strict=False):
        text = " ".join(tokenizer.decode(hypothesis.tokens) for hypothesis in ranked)
        length = sum(len(hypothesis.tokens) + 1 for hypothesis in ranked)
        log_prob = sum(hypothesis.log_prob for hypothesis in ranked)
        outputs.append(Output(text, normalize_score(log_prob, length, decoding.length_penalty), len(ranked)))
    return outputs
