"""A translation task by lexicon and phrase reordering: English-like sentences into a verb-final language.

The target language puts places first and the verb last, adjectives after nouns, and marks the plural (-ni),
the object (particle `wo`), and places (the preposition, after its noun).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from diffwindow.data.synthetic import words as w
from diffwindow.data.synthetic.words import Part, take

_ONSETS = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "sh", "t", "v", "z", ""]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ou"]
PLURAL = "ni"
OBJECT = "wo"
# a phrase is (target word, position of the source word it comes from)
_Aligned = list[tuple[str, int]]


@dataclass(frozen=True)
class ReorderExample:
    """A sentence, its translation, and for each target word the source position it comes from."""

    source: str
    target: str
    alignment: tuple[int, ...]


def translate_word(word: str) -> str:
    """Give the word of the target language, always the same one.

    >>> translate_word("lamp") == translate_word("lamp") != translate_word("boat")
    True
    """
    code = zlib.crc32(f"the {word}".encode())
    syllables = []
    for _ in range(2 + code % 2):
        code, onset = divmod(code, len(_ONSETS))
        code, vowel = divmod(code, len(_VOWELS))
        syllables.append(_ONSETS[onset] + _VOWELS[vowel])
    return "".join(syllables)


def reorder(num_examples: int, seed: int = 0, *, part: Part = "all") -> Iterator[ReorderExample]:
    """Generate examples; the same arguments always give the same ones, and the three parts are disjoint."""
    return take(_example, lambda example: example.source, num_examples, seed=seed, part=part)


def _example(rng: random.Random) -> ReorderExample:
    source: list[str] = []
    subject = _noun_phrase(rng, source, person=True)
    verb = _word(rng.choice(w.PAST_TRANSITIVE), source)
    object_ = _noun_phrase(rng, source, person=False)
    object_ = [*object_, (OBJECT, object_[0][1])]
    places = [_place(rng, source) for _ in range(rng.choice((0, 1, 1, 2)))]
    clause: _Aligned = []
    if rng.random() < 0.3:
        joint = _word(rng.choice(w.CONJUNCTIONS), source)
        who = _noun_phrase(rng, source, person=True)
        clause = [*who, *_word(rng.choice(w.PAST_INTRANSITIVE), source), *joint, (",", len(source) - 1)]
    source.append(".")
    # the last place first: the longest move a word makes grows with the sentence
    ordered = [*clause, *(pair for place in reversed(places) for pair in place), *subject, *object_, *verb]
    target = [*ordered, (".", len(source) - 1)]
    return ReorderExample(
        " ".join(source), " ".join(word for word, _ in target), tuple(place for _, place in target)
    )


def _word(word: str, source: list[str], lemma: str | None = None, suffix: str = "") -> _Aligned:
    source.append(word)
    return [(translate_word(lemma or word) + suffix, len(source) - 1)]


def _noun_phrase(rng: random.Random, source: list[str], *, person: bool) -> _Aligned:
    determiner = _word(rng.choice(w.DETERMINERS), source)
    adjectives = [
        pair for word in rng.sample(w.ADJECTIVES, rng.choice((0, 0, 1, 1, 2))) for pair in _word(word, source)
    ]
    singular, plural = rng.choice(w.PEOPLE if person else w.THINGS)
    many = rng.random() < 0.5
    noun = _word(plural if many else singular, source, singular, PLURAL if many else "")
    # the article has no translation, other determiners follow the noun
    kept = [] if source[determiner[0][1]] == "the" else determiner
    return [*noun, *adjectives[::-1], *kept]


def _place(rng: random.Random, source: list[str]) -> _Aligned:
    preposition = _word(rng.choice(w.PREPOSITIONS), source)
    source.append("the")
    adjective = _word(rng.choice(w.ADJECTIVES), source) if rng.random() < 0.4 else []
    noun = _word(rng.choice(w.PLACES), source)
    return [*noun, *adjective, *preposition]
