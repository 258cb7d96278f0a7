"""Subject-verb agreement with nested clauses and attractors, the right window known for every sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from diffwindow.data.synthetic import words as w
from diffwindow.data.synthetic.words import Part, take

MAX_DEPTH = 2


@dataclass(frozen=True)
class AgreementExample:
    """Words before a verb, and the number that the verb must have.

    Positions count words of `text` from 0. The gold window is [subject_start, verb_position], both ends
    included: from the first word of the subject phrase to the place of the verb, which is the first position
    after the prefix (in a store, the position of EOS). `distance` is verb_position - subject_head.
    """

    text: str
    label: int  # 0 singular, 1 plural
    attractors: int  # nouns of the other number between the subject's head and the verb
    distance: int
    subject_start: int
    subject_head: int
    verb_position: int
    verb: str
    sentence: str

    @property
    def window(self) -> tuple[int, int]:
        """First and last position of the gold window."""
        return self.subject_start, self.verb_position


@dataclass
class _Phrase:
    """A noun phrase: words, the place of its head, and its nouns as (place, is plural)."""

    words: list[str]
    head: int
    nouns: list[tuple[int, bool]]

    def extend(self, words: list[str], inner: _Phrase | None = None) -> None:
        self.words.extend(words)
        if inner is not None:
            self.nouns.extend((len(self.words) + place, plural) for place, plural in inner.nouns)
            self.words.extend(inner.words)


def agreement(num_examples: int, seed: int = 0, *, part: Part = "all") -> Iterator[AgreementExample]:
    """Generate examples; the same arguments always give the same ones.

    `part` restricts them to one of three disjoint sets of sentences.

    >>> example = next(agreement(1, seed=3))
    >>> example.sentence.startswith(example.text + " " + example.verb)
    True
    """
    return take(_example, lambda example: example.text, num_examples, seed=seed, part=part)


def _example(rng: random.Random) -> AgreementExample:
    plural = rng.random() < 0.5
    lead = _lead(rng)
    person = rng.random() < 0.6
    subject = _noun_phrase(rng, plural=plural, person=person, depth=0)
    adverb = [rng.choice(w.ADVERBS)] if rng.random() < 0.2 else []
    words = [*lead, *subject.words, *adverb]
    verb = rng.choice(w.PERSON_VERBS if person else w.THING_VERBS)[plural]
    tail = rng.choice(w.TAILS.get(verb, w.PLAIN_TAILS))
    head = len(lead) + subject.head
    text = " ".join(words)
    return AgreementExample(
        text=text,
        label=int(plural),
        attractors=sum(other != plural for place, other in subject.nouns if place > subject.head),
        distance=len(words) - head,
        subject_start=len(lead),
        subject_head=head,
        verb_position=len(words),
        verb=verb,
        sentence=f"{text} {verb} {tail}",
    )


def _lead(rng: random.Random) -> list[str]:
    """Give words before the subject phrase: a place, a clause, a speaker, or none."""
    draw = rng.random()
    if draw < 0.35:
        return []
    if draw < 0.55:
        return [rng.choice(w.PREPOSITIONS[:3]), *_noun_phrase(rng, depth=MAX_DEPTH).words, ","]
    who = _noun_phrase(rng, person=True, depth=MAX_DEPTH - (rng.random() < 0.3)).words
    if draw < 0.8:
        return [*who, rng.choice(w.PAST_SAYING), "that"]
    return [rng.choice(w.CONJUNCTIONS), *who, rng.choice(w.PAST_INTRANSITIVE), ","]


def _noun_phrase(
    rng: random.Random, *, plural: bool | None = None, person: bool | None = None, depth: int
) -> _Phrase:
    plural = rng.random() < 0.5 if plural is None else plural
    person = rng.random() < 0.5 if person is None else person
    before = [rng.choice(w.DETERMINERS)]
    if rng.random() < 0.35:
        before.append(rng.choice(w.ADJECTIVES))
    noun = rng.choice(w.PEOPLE if person else w.THINGS)[plural]
    phrase = _Phrase([*before, noun], len(before), [(len(before), plural)])
    # subjects are modified most of the time, the nouns inside their modifiers less and less
    if depth < MAX_DEPTH and rng.random() < (0.75, 0.45)[depth]:
        _modify(rng, phrase, person=person, depth=depth + 1)
        if depth == 0 and rng.random() < 0.3:
            _modify(rng, phrase, person=person, depth=depth + 1)
    return phrase


def _modify(rng: random.Random, phrase: _Phrase, *, person: bool, depth: int) -> None:
    draw = rng.random()
    if draw < 0.5:
        phrase.extend([rng.choice(w.PREPOSITIONS)], _noun_phrase(rng, depth=depth))
    elif draw < 0.75 and person:
        phrase.extend(["who", rng.choice(w.PAST_TRANSITIVE)], _noun_phrase(rng, depth=depth))
    else:
        phrase.extend(["that"], _noun_phrase(rng, person=True, depth=depth))
        phrase.extend([rng.choice(w.PAST_TRANSITIVE)])
