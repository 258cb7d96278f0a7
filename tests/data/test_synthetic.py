from collections import Counter

import pytest

from diffwindow.data import synthetic as words
from diffwindow.data.synthetic import agreement, reorder, translate_word

NUMBER = {form: plural for pair in words.PEOPLE + words.THINGS for plural, form in enumerate(pair)}
VERBS = {form: plural for pair in words.PERSON_VERBS + words.THING_VERBS for plural, form in enumerate(pair)}


@pytest.fixture(scope="module")
def examples():
    return list(agreement(2_000, 5))


def test_same_arguments_same_examples(examples):
    assert list(agreement(100, 5)) == examples[:100]
    assert list(agreement(100, 6)) != examples[:100]
    assert list(reorder(50, 5)) == list(reorder(50, 5))


def test_the_corpora_are_those_of_earlier_versions():
    """Stores and published results depend on the generated text."""
    first = next(iter(agreement(1, part="train")))
    assert first.sentence == (
        "their young captains that the tall sailors around my man described always laugh by the river ."
    )
    assert next(iter(reorder(1, seed=5))).source == "my women described the tall baskets ."


def test_positions_and_counts_are_right(examples):
    for example in examples:
        text = example.text.split()
        first, last = example.window
        assert last == len(text)
        assert text[first] in words.DETERMINERS
        assert first < example.subject_head < last
        assert NUMBER[text[example.subject_head]] == example.label == VERBS[example.verb]
        # the head is the first noun of its phrase
        assert not any(word in NUMBER for word in text[first : example.subject_head])
        between = [NUMBER[word] for word in text[example.subject_head + 1 :] if word in NUMBER]
        assert example.attractors == sum(number != example.label for number in between)
        assert example.distance == last - example.subject_head
        assert example.sentence.split()[last] == example.verb


def test_nothing_but_the_head_shows_the_number(examples):
    # present-tense verbs, which agree, occur only where they are to be predicted
    assert not any(word in VERBS for example in examples for word in example.text.split())


def test_the_corpus_is_varied(examples):
    attractors = Counter(example.attractors for example in examples)
    assert all(attractors[count] > 50 for count in range(3))
    assert attractors[3] + attractors[4] > 15
    assert 0.45 < sum(example.label for example in examples) / len(examples) < 0.55
    assert 0.3 < sum(example.subject_start > 0 for example in examples) / len(examples) < 0.8
    assert len({example.text for example in examples}) > 0.9 * len(examples)
    # the noun just before the verb is a bad guide as there are attractors
    hard = [example for example in examples if example.attractors]
    nearest = [next(NUMBER[w] for w in reversed(e.text.split()) if w in NUMBER) == e.label for e in hard]
    assert sum(nearest) / len(hard) < 0.4


@pytest.mark.parametrize(("make", "text"), [(agreement, lambda e: e.text), (reorder, lambda e: e.source)])
def test_parts_are_disjoint(make, text):
    parts = [{text(example) for example in make(200, 0, part=part)} for part in ("train", "valid", "test")]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_reorder_aligns_every_word():
    lexicon = {}
    for example in reorder(500):
        source, target = example.source.split(), example.target.split()
        assert len(example.alignment) == len(target)
        assert all(0 <= place < len(source) for place in example.alignment)
        # only articles have no translation
        missing = {source[i] for i in set(range(len(source))) - set(example.alignment)}
        assert missing <= {"the"}
        for word, place in zip(target, example.alignment, strict=True):
            if word not in {"wo", ",", "."}:
                lexicon.setdefault(source[place], set()).add(word)
        assert source[example.alignment[-2]] in words.PAST_TRANSITIVE
    assert all(len(translations) == 1 for translations in lexicon.values())


def test_the_lexicon_is_one_to_one():
    listed = {
        *words.ADJECTIVES,
        *words.DETERMINERS,
        *words.PREPOSITIONS,
        *words.PAST_TRANSITIVE,
        *words.PLACES,
    }
    listed |= {
        *words.PAST_INTRANSITIVE,
        *words.CONJUNCTIONS,
        *(one for one, _ in words.PEOPLE + words.THINGS),
    }
    assert len({translate_word(word) for word in listed}) == len(listed)
