from functools import partial
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffwindow.data.encoding import Encoder
from diffwindow.data.tokenizer import Tokenizer, token_dtype
from diffwindow.special_tokens import EOS, SPECIAL_TOKENS, UNK

LINES = [
    "the keys to the cabinet are here .",
    "die Schlüssel zum Schrank sind hier .",
    "naïve 日本語 text",
] * 20


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train_bpe(LINES, 300)


@pytest.fixture(scope="module")
def exact():
    return Tokenizer.train_bpe(LINES, 300, normalization="none")


@pytest.fixture(scope="module")
def words():
    return Tokenizer.train_words(LINES)


def test_special_ids_come_first(bpe, words):
    for tokenizer in (bpe, words):
        assert tokenizer.tokens([0, 1, 2, 3]) == list(SPECIAL_TOKENS)


def test_training_is_deterministic():
    import io

    first, second = (Tokenizer.train_bpe(io.StringIO("\n".join(LINES)), 290) for _ in range(2))
    assert first.encode("the cabinet") == second.encode("the cabinet")
    assert first.vocab_size == second.vocab_size == 290


@given(text=st.text(max_size=60))
def test_bpe_gives_any_text_back_and_no_control_id(exact, text):
    ids = exact.encode(text)
    assert exact.decode(ids) == text
    assert all(index > UNK for index in ids)


def test_control_tokens_in_a_corpus_are_text(bpe, words):
    text = "<s> the <pad> </s> <unk>"
    assert bpe.decode(bpe.encode(text)) == text
    the = words.encode("the")
    assert words.encode(text) == [UNK, *the, UNK, UNK, UNK]


def test_words_round_trip_and_vocabulary_limit():
    tokenizer = Tokenizer.train_words(["b a a c c c"], vocab_size=6)
    assert tokenizer.vocab_size == 6
    assert tokenizer.encode("c a b") == [4, 5, UNK]
    assert tokenizer.decode([4, 5, EOS]) == "c a"


def test_display_marks_continued_tokens(bpe):
    text = "the naïvest cabinet , are."
    shown = bpe.tokens([*bpe.encode(text), EOS])
    assert shown[-1] == "</s>"
    assert not shown[-2].endswith("@@")
    assert any(token.endswith("@@") for token in shown)
    ascii_text = "the keyless cabinets ."
    assert " ".join(bpe.tokens(bpe.encode(ascii_text))).replace("@@ ", "") == ascii_text


def test_saves_and_loads(bpe, words, tmp_path):
    for tokenizer in (bpe, words):
        tokenizer.save(tmp_path / "tokenizer.json")
        loaded = Tokenizer.load(tmp_path / "tokenizer.json")
        assert loaded.kind == tokenizer.kind
        assert loaded.encode("the <s> keys") == tokenizer.encode("the <s> keys")
        assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("content", ["{", "{}", '{"pre_tokenizer": {"type": "ByteLevel"}}'])
def test_refuses_other_files(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


def test_refuses_a_tokenizer_with_other_ids(tmp_path):
    import tokenizers

    other = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2, "d": 3}, unk_token="a"))
    other.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="not made by diffwindow"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_bpe_needs_room_for_the_bytes():
    with pytest.raises(ValueError, match="vocab_size=100 is too small"):
        Tokenizer.train_bpe(LINES, 100)


spaced = st.text(alphabet=st.sampled_from("ab'sé日1. \t\u00a0\u2028\x1c\n"), max_size=40)


@given(texts=st.lists(st.one_of(spaced, st.text(max_size=30)), max_size=5))
def test_cached_encoding_equals_the_tokenizer(bpe, words, texts):
    for tokenizer in (bpe, words):
        encoder = Encoder(tokenizer)
        for _ in range(2):
            tokens, lengths = encoder.encode(texts)
            expected = [[*tokenizer.encode(text), EOS] for text in texts]
            assert lengths.tolist() == list(map(len, expected))
            import numpy as np

            found = np.frombuffer(tokens, token_dtype(tokenizer.vocab_size))
            assert found.tolist() == [index for ids in expected for index in ids]


def test_full_cache_is_emptied(bpe, monkeypatch):
    monkeypatch.setattr("diffwindow.data.encoding.CACHED_WORDS", 3)
    encoder = Encoder(bpe)
    texts = ["the keys to the cabinet are here ."] * 3
    tokens, _ = encoder.encode(texts)
    assert len(encoder._later) <= 3
    assert tokens == Encoder(bpe).encode(texts)[0]


def test_token_type_follows_the_vocabulary():
    assert token_dtype(65_536).itemsize == 2
    assert token_dtype(65_537).itemsize == 4


@pytest.mark.parametrize("train", [partial(Tokenizer.train_bpe, vocab_size=300), Tokenizer.train_words])
@pytest.mark.parametrize("moses", [None, "de"])
def test_the_unicode_form_of_a_text_does_not_matter_unless_asked(train, moses, tmp_path):
    composed, decomposed = (normalize(form, " ".join(LINES)) for form in ("NFC", "NFD"))
    tokenizer = train([decomposed])
    tokenizer.save(tmp_path / "nfc.json")
    assert Tokenizer.load(tmp_path / "nfc.json").normalization == "nfc"
    before = tokenizer.pretokenizer(moses)
    ids = tokenizer.encode(before(decomposed))
    assert ids == tokenizer.encode(before(composed))
    assert UNK not in ids or moses
    assert tokenizer.decode(tokenizer.encode(decomposed)) == composed
    exact = train([decomposed], normalization="none")
    exact.save(tmp_path / "none.json")
    assert Tokenizer.load(tmp_path / "none.json").normalization == "none"
    assert exact.decode(exact.encode(decomposed)) == decomposed


def test_a_tokenizer_that_changes_the_text_otherwise_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train_words(LINES).save(path)
    path.write_text(path.read_text().replace('"NFC"', '"Lowercase"'))
    with pytest.raises(ValueError, match=r"was not made by diffwindow: it changes the text \(Lowercase"):
        Tokenizer.load(path)
