"""Generated corpora, deterministic and with the right answer known: `agreement` and `reorder`.

`agreement`: subject-verb agreement with nested clauses and attractors; the right window of every sentence is
known. `reorder`: translation by lexicon and phrase reordering, from English-like sentences into a verb-final
language that puts places first, adjectives after nouns, and marks the plural (-ni), the object (particle
`wo`) and places (the preposition, after its noun).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar


def _words(text: str) -> list[str]:
    return text.split()


def _plurals(nouns: str, **irregular: str) -> list[tuple[str, str]]:
    """Return (singular, plural) of each noun."""
    return [(noun, irregular.get(noun, f"{noun}s")) for noun in nouns.split()]


def _persons(verbs: str) -> list[tuple[str, str]]:
    """Return (third person singular, plural) of each regular verb."""
    return [(f"{verb}s", verb) for verb in verbs.split()]


PEOPLE = _plurals(
    "doctor baker sailor teacher painter farmer child woman man guest singer captain neighbour student "
    "driver judge nurse cook gardener writer soldier friend",
    child="children",
    woman="women",
    man="men",
)
THINGS = _plurals(
    "key cabinet letter lamp box boat bridge window picture book chair house garden knife bell tower road "
    "coat clock basket mirror ladder",
    box="boxes",
    knife="knives",
)
ADJECTIVES = _words(
    "old young tall small quiet famous tired green red heavy strange new broken bright clever kind "
    "dark simple"
)
DETERMINERS = _words("the the the my our their her his")
PREPOSITIONS = _words("near behind beside with without under above opposite from around")
# the past tense shows no number, so a verb inside the subject phrase gives nothing away
PAST_TRANSITIVE = _words(
    "admired found painted visited carried remembered sold bought followed forgot noticed described repaired "
    "wanted"
)
PAST_INTRANSITIVE = _words("left arrived slept waited laughed vanished returned fell")
PAST_SAYING = _words("said thought believed knew heard hoped claimed")
PERSON_VERBS = [*_persons("laugh wait sleep sing work walk smile travel"), ("is", "are"), ("has", "have")]
THING_VERBS = [
    *_persons("fall shine stand break cost move lie"), ("is", "are"), ("has", "have"), ("looks", "look"),
]  # fmt: skip
TAILS = {
    ("is", "are"): ["here .", "old .", "not far away .", "known to everyone ."],
    ("has", "have"): ["a long story .", "no name .", "a new owner ."],
    ("looks", "look"): ["strange .", "new ."],
    ("costs", "cost"): ["too much .", "very little ."],
}
PLAIN_TAILS = ["every morning .", "in the evening .", "again .", "by the river .", "."]
ADVERBS = _words("often always never usually still really")
PLACES = _words("harbour market station village castle church forest square")
CONJUNCTIONS = _words("although because when after before while")

Part = Literal["all", "train", "valid", "test"]
# out of ten sentences: identical ones always land in the same part
_SHARES: dict[Part, range] = {"all": range(10), "train": range(8), "valid": range(8, 9), "test": range(9, 10)}
Example = TypeVar("Example")


def _take(
    name: str,
    make: Callable[[random.Random], Example],
    text_of: Callable[[Example], str],
    num_examples: int,
    *,
    seed: int,
    part: Part,
) -> Iterator[Example]:
    """Yield examples until `num_examples` of them belong to the part."""
    # fixed names: the corpora of earlier versions, and their published results, depend on them
    rng = random.Random(f"diffwindow.data.synthetic.{name} {seed} {part}")
    share = _SHARES[part]
    made = 0
    while made < num_examples:
        example = make(rng)
        if zlib.crc32(text_of(example).encode()) % 10 in share:
            made += 1
            yield example


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
    tree: str  # of `text`, bracketed

    @property
    def window(self) -> tuple[int, int]:
        """First and last position of the gold window."""
        return self.subject_start, self.verb_position


@dataclass
class _Phrase:
    """A noun phrase: words, the place of its head, its nouns as (place, is plural), and its tree."""

    words: list[str]
    head: int
    nouns: list[tuple[int, bool]]
    tree: str

    def modify(self, before: list[str], inner: _Phrase, after: list[str]) -> None:
        self.words.extend(before)
        self.nouns.extend((len(self.words) + place, plural) for place, plural in inner.nouns)
        self.words.extend([*inner.words, *after])
        self.tree = f"(NP {self.tree} {_tree(before, inner, after)})"


def _tree(before: list[str], inner: _Phrase, after: list[str]) -> str:
    """Return the tree of words around a noun phrase."""
    return f"(X {' '.join([*before, inner.tree, *after])})"


def agreement(num_examples: int, seed: int = 0, *, part: Part = "all") -> Iterator[AgreementExample]:
    """Yield examples; the same arguments always give the same ones.

    `part` restricts them to one of three disjoint sets of sentences.

    >>> example = next(agreement(1, seed=3))
    >>> example.sentence.startswith(example.text + " " + example.verb)
    True
    """
    return _take("grammar", _agreement_example, lambda e: e.text, num_examples, seed=seed, part=part)


def _agreement_example(rng: random.Random) -> AgreementExample:
    plural = rng.random() < 0.5
    lead, lead_tree = _lead(rng)
    person = rng.random() < 0.6
    subject = _noun_phrase(rng, plural=plural, person=person, depth=0)
    adverb = [rng.choice(ADVERBS)] if rng.random() < 0.2 else []
    words = [*lead, *subject.words, *adverb]
    forms = rng.choice(PERSON_VERBS if person else THING_VERBS)
    verb, tail = forms[plural], rng.choice(TAILS.get(forms, PLAIN_TAILS))
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
        tree=f"(S {' '.join([lead_tree, subject.tree, *adverb])})",
    )


def _lead(rng: random.Random) -> tuple[list[str], str]:
    """Return the words before the subject phrase, a place, a clause, a speaker or none, and their tree."""
    draw = rng.random()
    before: list[str] = []
    if draw < 0.35:
        return before, ""
    if draw < 0.55:
        before, inner, after = [rng.choice(PREPOSITIONS[:3])], _noun_phrase(rng, depth=MAX_DEPTH), [","]
    else:
        inner = _noun_phrase(rng, person=True, depth=MAX_DEPTH - (rng.random() < 0.3))
        if draw < 0.8:
            after = [rng.choice(PAST_SAYING), "that"]
        else:
            before, after = [rng.choice(CONJUNCTIONS)], [rng.choice(PAST_INTRANSITIVE), ","]
    return [*before, *inner.words, *after], _tree(before, inner, after)


def _noun_phrase(
    rng: random.Random, *, plural: bool | None = None, person: bool | None = None, depth: int
) -> _Phrase:
    plural = rng.random() < 0.5 if plural is None else plural
    person = rng.random() < 0.5 if person is None else person
    before = [rng.choice(DETERMINERS)]
    if rng.random() < 0.35:
        before.append(rng.choice(ADJECTIVES))
    noun = rng.choice(PEOPLE if person else THINGS)[plural]
    words = [*before, noun]
    phrase = _Phrase(words, len(before), [(len(before), plural)], f"(NP {' '.join(words)})")
    # subjects are modified most of the time, the nouns inside their modifiers less and less
    if depth < MAX_DEPTH and rng.random() < (0.75, 0.45)[depth]:
        _modify(rng, phrase, person=person, depth=depth + 1)
        if depth == 0 and rng.random() < 0.3:
            _modify(rng, phrase, person=person, depth=depth + 1)
    return phrase


def _modify(rng: random.Random, phrase: _Phrase, *, person: bool, depth: int) -> None:
    draw = rng.random()
    if draw < 0.5:
        phrase.modify([rng.choice(PREPOSITIONS)], _noun_phrase(rng, depth=depth), [])
    elif draw < 0.75 and person:
        phrase.modify(["who", rng.choice(PAST_TRANSITIVE)], _noun_phrase(rng, depth=depth), [])
    else:
        inner = _noun_phrase(rng, person=True, depth=depth)
        phrase.modify(["that"], inner, [rng.choice(PAST_TRANSITIVE)])


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

    @property
    def links(self) -> list[tuple[int, int]]:
        """The right links of source and target words, by their places."""
        return [(source, target) for target, source in enumerate(self.alignment)]


def translate_word(word: str) -> str:
    """Return the word of the target language, always the same one.

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
    """Yield examples; the same arguments always give the same ones, and the three parts are disjoint."""
    return _take("translation", _reorder_example, lambda e: e.source, num_examples, seed=seed, part=part)


def _reorder_example(rng: random.Random) -> ReorderExample:
    source: list[str] = []
    subject = _aligned_noun_phrase(rng, source, person=True)
    verb = _word(rng.choice(PAST_TRANSITIVE), source)
    object_ = _aligned_noun_phrase(rng, source, person=False)
    object_ = [*object_, (OBJECT, object_[0][1])]
    places = [_place(rng, source) for _ in range(rng.choice((0, 1, 1, 2)))]
    clause: _Aligned = []
    if rng.random() < 0.3:
        joint = _word(rng.choice(CONJUNCTIONS), source)
        who = _aligned_noun_phrase(rng, source, person=True)
        clause = [*who, *_word(rng.choice(PAST_INTRANSITIVE), source), *joint, (",", len(source) - 1)]
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


def _aligned_noun_phrase(rng: random.Random, source: list[str], *, person: bool) -> _Aligned:
    determiner = _word(rng.choice(DETERMINERS), source)
    adjectives = [
        pair for word in rng.sample(ADJECTIVES, rng.choice((0, 0, 1, 1, 2))) for pair in _word(word, source)
    ]
    singular, plural = rng.choice(PEOPLE if person else THINGS)
    many = rng.random() < 0.5
    noun = _word(plural if many else singular, source, singular, PLURAL if many else "")
    # the article has no translation, other determiners follow the noun
    kept = [] if source[determiner[0][1]] == "the" else determiner
    return [*noun, *adjectives[::-1], *kept]


def _place(rng: random.Random, source: list[str]) -> _Aligned:
    preposition = _word(rng.choice(PREPOSITIONS), source)
    source.append("the")
    adjective = _word(rng.choice(ADJECTIVES), source) if rng.random() < 0.4 else []
    noun = _word(rng.choice(PLACES), source)
    return [*noun, *adjective, *preposition]
