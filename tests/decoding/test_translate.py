from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffwindow.data.tokenizer import Tokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding import translate as translating
from diffwindow.decoding.beam import beam_search
from diffwindow.decoding.search import start_translation
from diffwindow.decoding.translate import cut_sentence, translate
from diffwindow.special_tokens import EOS
from samples.tiny_tasks import of


@pytest.fixture(scope="module")
def task(reorder_store):
    return of(reorder_store, attention="Cr(AW,Seg)")


@pytest.fixture(scope="module")
def model(task):
    torch.manual_seed(3)
    return task.build_model().eval()


def sources_of(task, count):
    rows = task.store.split("test").sequences["source"]
    return [rows[index][:-1].tolist() for index in range(count)]


@given(
    tokens=st.lists(st.sampled_from(["word", "wo@@", "end.", "no?"]), max_size=60), limit=st.integers(1, 12)
)
def test_pieces_lose_nothing_and_fit(tokens, limit):
    ids = list(range(len(tokens)))
    pieces = cut_sentence(ids, tokens, limit)
    assert [index for piece in pieces for index in piece] == ids
    assert all(0 < len(piece) <= limit for piece in pieces)


def test_pieces_end_with_a_sentence_or_else_with_a_word():
    tokens = ["we", "went", "home.", "then", "it", "rained", "he@@", "avily"]
    assert cut_sentence(range(8), tokens, 4) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_pieces_of_a_text_without_spaces_do_not_cut_characters(task, model, monkeypatch):
    text = "吾輩は猫である。名前はまだ無い。" * 4
    tokenizer = Tokenizer.train_bpe([text], 270)
    read: list[list[int]] = []
    monkeypatch.setattr(
        translating, "_decode_all", lambda _, pieces, *__: [read.append(piece) or [] for piece in pieces]
    )
    translate(model, tokenizer, [tokenizer.encode(text)], Decoding(max_source_tokens=32))
    assert len(read) > 1
    assert "".join(map(tokenizer.decode, read)) == text
    assert max(map(len, read)) <= 32


def test_samples_of_a_source_do_not_depend_on_empty_and_long_ones_before_it(task, model):
    short, other = sources_of(task, 2)
    search = Decoding(temperature=1.0, seed=3, max_source_tokens=max(len(short), len(other)))
    sources = [[], [*other, *short, *other], short]
    together = translate(model, task.store.tokenizer, sources, search)
    (alone,) = translate(model, task.store.tokenizer, [short], replace(search, seed=5))
    assert [len(best) for best in together] == [1, 1, 1]
    assert together[1][0].pieces > 1
    assert together[2][0].text == alone[0].text


def test_batches_give_what_single_sentences_give_in_order(task, model):
    sources = sources_of(task, 6)
    search = Decoding(beam=3, n_best=2, max_tokens=30)
    found = translate(model, task.store.tokenizer, sources, search)
    assert [len(best) for best in found] == [2] * 6
    for source, best in zip(sources, found, strict=True):
        start = start_translation(model, torch.tensor([[*source, EOS]]))
        ((first, second),) = beam_search(model, start, Decoding(beam=3, length_penalty=0.6, n_best=2))
        assert best[0].text == task.store.tokenizer.decode(first.tokens)
        assert best[0].score == pytest.approx(first.score, abs=1e-4)
        assert best[0].score >= best[1].score == pytest.approx(second.score, abs=1e-4)


def test_long_sources_are_translated_in_pieces_and_empty_ones_to_nothing(task, model):
    first, second = sources_of(task, 2)
    limit = max(len(first), len(second))
    search = Decoding(beam=2, max_source_tokens=limit)
    # each sentence ends in a full stop, so that is where the two are parted
    ((joined,), (empty,), (alone,), (other,)) = translate(
        model, task.store.tokenizer, [first + second, [], first, second], search
    )
    assert (joined.pieces, empty.pieces, alone.pieces) == (2, 0, 1)
    assert joined.text == f"{alone.text} {other.text}"
    assert empty.text == ""


def test_a_piece_of_subwords_starts_like_a_sentence(model):
    tokenizer = Tokenizer.train_bpe(["the keys are here ."] * 3, 300)
    text = "the keys are here . the keys are here ."
    source = tokenizer.encode(text)
    seen = []

    class Watched:
        tokens, decode = tokenizer.tokens, tokenizer.decode

        def encode(self, text):
            seen.append(text)
            return tokenizer.encode(text)[:5]

    small = type(model)(model.config.model_copy(update={"vocab_size": tokenizer.vocab_size}))
    translate(small, Watched(), [source], Decoding(beam=1, max_source_tokens=len(source) // 2 + 1))
    assert seen == ["the keys are here ."]


def test_progress_ends_with_all_sentences(task, model):
    reported = []
    translate(
        model,
        task.store.tokenizer,
        sources_of(task, 7),
        Decoding(beam=1, max_tokens=30),
        progress=lambda done, total: reported.append((done, total)),
    )
    assert reported[-1] == (7, 7)
    assert reported == sorted(reported)


def test_impossible_searches_are_refused():
    with pytest.raises(ValueError, match="n_best=3 is not between 1 and beam=2"):
        Decoding(beam=2, n_best=3)
    with pytest.raises(ValueError, match="max_source_tokens=0"):
        Decoding(max_source_tokens=0)
    for penalty in (1e30, float("nan")):
        with pytest.raises(ValueError, match=r"length_penalty=.* is not between -10 and 10"):
            Decoding(length_penalty=penalty)
