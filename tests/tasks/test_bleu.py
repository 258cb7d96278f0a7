import math
from unicodedata import normalize

import pytest
import sacrebleu

from diffwindow.tasks.metrics import (
    METRICS,
    bleu_of,
    bleu_terms,
    paired_bootstrap,
    split_compounds,
    translation_scores,
)

REFERENCES = [
    "Ein Mann in einem gelb-schwarzen Hemd läuft über die Straße.",
    "Zwei Hunde spielen im frisch gefallenen Schnee.",
    "Eine Frau liest, während sie auf den Bus wartet.",
]
HYPOTHESES = [
    "Ein Mann in gelb-schwarzen Hemd läuft über eine Straße.",
    "Zwei Hunde spielen im Schnee.",
    "Eine Frau liest, während sie auf den Zug wartet.",
]


def test_bleu_by_hand():
    """One word of five is wrong, the fourth: 4/5, 2/4, 1/3 and 0/2 n-grams match, with no brevity penalty."""
    scores = translation_scores(["a b c x e"], ["a b c d e"], language="en")
    assert scores["bleu_tokenized"].value == 0.0
    # exponential smoothing gives the first zero count the value 1/2: 0.5 of 2 4-grams
    smoothed = 100 * (4 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2) ** 0.25
    assert scores["bleu"].value == pytest.approx(smoothed)


def test_brevity_penalty_by_hand():
    scores = translation_scores(["a b c d e"], ["a b c d e f g"], language="en")
    assert scores["bleu_tokenized"].value == pytest.approx(100 * math.exp(1 - 7 / 5))


@pytest.mark.parametrize(("language", "tokenizer"), [("ja", "char"), ("zh", "zh")])
def test_a_language_without_spaces_is_scored_by_character(language, tokenizer):
    """To 13a each sentence is one word, without a 4-gram to match: even equal texts have a BLEU of 0."""
    texts = ["我喜欢猫", "他们在公园里"]
    scores = translation_scores(texts, texts, language=language)
    assert list(scores) == ["bleu", "chrf"]
    assert scores["bleu"].value == pytest.approx(100)
    assert f"tok:{tokenizer}|" in scores["bleu"].signature
    assert bleu_terms(texts, texts, language=language)[:, 0].tolist() == [4, 6]


def test_detokenised_scores_are_sacrebleus_own():
    scores = translation_scores(HYPOTHESES, REFERENCES, language="de")
    assert scores["bleu"].value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores["chrf"].value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert "tok:13a" in scores["bleu"].signature
    assert sacrebleu.__version__ in scores["bleu"].signature


def test_each_way_has_its_own_signature_and_value():
    scores = translation_scores(HYPOTHESES, REFERENCES, language="de")
    assert set(scores) == {"bleu", "bleu_tokenized", "bleu_compound_split", "chrf"}
    assert len({score.signature for score in scores.values()}) == 4
    assert "moses:de" in scores["bleu_tokenized"].signature
    assert "tok:none" in scores["bleu_tokenized"].signature
    assert "+atat" in scores["bleu_compound_split"].signature
    assert scores["bleu_compound_split"].value != scores["bleu_tokenized"].value


def test_tokenised_bleu_separates_punctuation_as_moses_does():
    """With the full stop apart, "Haus ." and "Haus" share a word that whitespace alone would not see."""
    apart = translation_scores(["das ist ein altes Haus"], ["das ist ein altes Haus."], language="de")
    assert apart["bleu_tokenized"].value == pytest.approx(100 * math.exp(1 - 6 / 5))


def test_compounds_are_split_at_hyphens_inside_words_only():
    assert split_compounds("gelb-schwarz - na-ja -") == "gelb ##AT##-##AT## schwarz - na ##AT##-##AT## ja -"
    # as the Perl of get_ende_bleu.sh: a letter already taken by one match cannot begin the next
    assert split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_compound_splitting_rewards_half_a_compound():
    scores = translation_scores(["ein rot-weißes Hemd hier"], ["ein blau-weißes Hemd hier"], language="de")
    assert scores["bleu_compound_split"].value > 0
    assert scores["bleu_tokenized"].value == 0


@pytest.mark.parametrize("way", ["bleu", "bleu_tokenized", "bleu_compound_split"])
def test_terms_of_sentences_give_the_score_of_each_way(way):
    terms = bleu_terms(HYPOTHESES, REFERENCES, language="de", way=way)
    score = translation_scores(HYPOTHESES, REFERENCES, language="de")[way].value
    assert METRICS[way].compute(terms.sum(0, dtype=float)) == pytest.approx(score)


def test_tokenised_terms_need_a_language():
    with pytest.raises(ValueError, match="bleu_tokenized needs the rules of a language with spaces"):
        bleu_terms(HYPOTHESES, REFERENCES, language=None, way="bleu_tokenized")


def test_bootstrap_of_a_system_with_itself_sees_no_difference():
    for one in paired_bootstrap(HYPOTHESES, HYPOTHESES, REFERENCES, language="de", samples=50):
        assert one.value == one.other
        assert one.p == 1.0


def test_bootstrap_sees_that_perfect_is_better_and_says_how_it_was_drawn():
    references = [f"sentence number {n} is about the house by the lake" for n in range(60)]
    worse = [text.replace("house by", "boat on") for text in references]
    found = paired_bootstrap(references, worse, references, language="en", samples=200)
    assert [one.metric for one in found] == ["bleu", "bleu_tokenized", "bleu_compound_split", "chrf"]
    for one in found:
        assert one.value == pytest.approx(100)
        assert one.other < 90
        assert one.p < 0.01
        assert "bs:200|seed:12345" in one.signature


def test_unpaired_sentences_are_refused():
    with pytest.raises(ValueError, match="2 translations for 3 references"):
        translation_scores(HYPOTHESES[:2], REFERENCES, language="de")


@pytest.mark.parametrize("language", ["fr", "zh", None])
def test_the_unicode_form_of_a_text_does_not_matter(language):
    composed = ["les clés sont déjà là , bien sûr", "un garçon très âgé"]
    decomposed = [normalize("NFD", text) for text in composed]
    for score in translation_scores(decomposed, composed, language=language).values():
        assert score.value == pytest.approx(100.0)
    assert bleu_of(bleu_terms(composed, decomposed, language=language).sum(0)) == pytest.approx(100.0)
    same = paired_bootstrap(decomposed, composed, composed, language=language, samples=20)
    assert [one.value - one.other for one in same] == [0.0] * len(same)
