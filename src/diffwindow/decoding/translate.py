"""Translate many sentences: in batches by tokens, in order, long ones in pieces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from diffwindow.data.batching import TokenBatches
from diffwindow.data.tokenizer import Tokenizer, moses_detokenizer, moses_tokenizer
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import Hypothesis, normalized
from diffwindow.decoding.state import translation_start
from diffwindow.models.pretrained import evaluating
from diffwindow.models.translator import Translator
from diffwindow.sharing import each, sharers
from diffwindow.special_tokens import EOS, PAD

# (sentences done, sentences in all)
Progress = Callable[[int, int], None]
# memory grows with the beam, and so wide a one has long ceased to give better translations
MAX_BEAM = 1000
_SENTENCE_ENDS = (".", "!", "?", ";")


@dataclass(frozen=True)
class Search:
    """How to decode: hypotheses kept open, the power of the length that divides log p, how many to give.

    A batch holds up to `max_tokens` source tokens. A source of more than `max_length` tokens is translated
    in pieces, whose translations are joined.
    """

    beam: int = 5
    length_penalty: float = 0.6
    n_best: int = 1
    max_tokens: int = 4096
    max_length: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"n_best={self.n_best} is not between 1 and beam={self.beam}")
        if self.beam > MAX_BEAM:
            raise ValueError(f"beam={self.beam:,} is above {MAX_BEAM:,}, the most that a search keeps open")
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length} is below 1")


@dataclass(frozen=True)
class Output:
    """A translation, its score log p / length^α, and the number of pieces that its source was cut into."""

    text: str
    score: float
    pieces: int = 1


def no_progress(done: int, total: int) -> None:
    """Show no progress."""


def translate(
    model: Translator,
    tokenizer: Tokenizer,
    sources: Sequence[Sequence[int]],
    search: Search,
    *,
    progress: Progress = no_progress,
) -> list[list[Output]]:
    """Return the best translations of each source, best first; a source is token ids without begin or end."""
    pieces = [_pieces(source, tokenizer, search.max_length) for source in sources]
    flat = [piece for of_source in pieces for piece in of_source]
    found = iter(_decode(model, flat, search, progress))
    return [_joined([next(found) for _ in of_source], tokenizer, search) for of_source in pieces]


def text_translator(
    model: Translator, tokenizer: Tokenizer, search: Search, moses: dict[str, str]
) -> Callable[[list[str]], list[list[Output]]]:
    """Return a function from texts to translations, through the Moses tokenizers that `moses` names."""
    before = moses_tokenizer(moses["source"]) if "source" in moses else str
    after = moses_detokenizer(moses["target"]) if "target" in moses else str

    def speak(texts: list[str]) -> list[list[Output]]:
        sources = tokenizer.encode_batch([before(text.strip()) for text in texts])
        found = translate(model, tokenizer, sources, search)
        return [[replace(one, text=after(one.text)) for one in best] for best in found]

    return speak


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
    model: Translator, sources: Sequence[Sequence[int]], search: Search, progress: Progress
) -> list[list[Hypothesis]]:
    """Search in batches of similar length, and give the results in the order of the sources."""
    lengths = np.array([len(source) + 1 for source in sources], np.int64)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    done = 0
    max_tokens = max(search.max_tokens, int(lengths.max(initial=1)))
    batches = list(TokenBatches(lengths, max_tokens=max_tokens, shuffle=False))

    def decode(indices: np.ndarray) -> list[list[Hypothesis]]:
        nonlocal done
        rows = torch.full((len(indices), int(lengths[indices].max())), PAD)
        for row, index in zip(rows, indices, strict=True):
            row[: lengths[index]] = torch.tensor([*sources[index], EOS])
        start = translation_start(model, rows.to(device))
        hypotheses = beam_search(
            model, start, beam=search.beam, length_penalty=search.length_penalty, n_best=search.n_best
        )
        # the others that share the work are about as far
        done = min(done + len(indices) * sharers(), len(sources))
        progress(done, len(sources))
        return hypotheses

    with evaluating(model) as device:
        for indices, hypotheses in zip(batches, each(decode, batches), strict=True):
            for index, best in zip(indices, hypotheses, strict=True):
                found[index] = best
    return found


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
