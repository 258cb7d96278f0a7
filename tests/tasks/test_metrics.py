"""One distribution over texts, cut into words or into letters, has one perplexity by word."""

import math
import random

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import nn

from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.models.language_model import LanguageModelConfig
from diffwindow.special_tokens import EOS
from diffwindow.tasks.entries import TaskOptions
from diffwindow.tasks.language_modeling import LanguageModeling
from diffwindow.tasks.metrics import (
    accuracy_of,
    accuracy_terms,
    bleu_of,
    bleu_terms,
    count_words,
    load_outcomes,
    save_outcomes,
    word_perplexity,
)

REFERENCES = ["the old man reads a book .", "two dogs run in the green park", "she is here", "a b c d e f"]
OUTPUTS = [
    REFERENCES,
    ["the old man reads books .", "two dogs run in a green park today", "she was here", "a b c d"],
    # no 4-gram matches, then neither 3-grams do: both are smoothed
    ["the old man", "a green two dogs", "is she here", "f e d a b"],
    ["the", "dogs", "x", "c a"],
    ["nothing", "matches", "at", "all of this is wrong"],
    ["", "", "", ""],
]


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_bleu_from_totals_is_sacrebleu_s(outputs):
    found = bleu_of(bleu_terms(outputs, REFERENCES, language="de").sum(0).astype(float))
    assert float(found) == pytest.approx(BLEU().corpus_score(outputs, [REFERENCES]).score, abs=1e-9)


def test_bleu_is_computed_for_many_totals_at_once():
    totals = np.stack([bleu_terms(outputs, REFERENCES, language="de").sum(0) for outputs in OUTPUTS]).astype(
        float
    )
    np.testing.assert_array_equal(bleu_of(totals), [bleu_of(row) for row in totals])


def test_accuracy_is_the_share_of_right_answers():
    assert (
        float(accuracy_of(accuracy_terms(np.array([True, False, True, True])).sum(0).astype(float))) == 75.0
    )


def test_outcomes_come_back_as_they_were(tmp_path):
    written = {"Enc(AW)/1": np.eye(3, 2, dtype=np.int8), "Global+ffn_dim=704/2": np.ones((4, 2), np.float32)}
    save_outcomes(tmp_path / "outcomes.npz", written)
    found = load_outcomes(tmp_path / "outcomes.npz")
    assert found.keys() == written.keys()
    for name, terms in written.items():
        np.testing.assert_array_equal(found[name], terms)
        assert found[name].dtype == terms.dtype


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage", "objects", "overwritten"])
def test_damaged_outcomes_are_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "outcomes.npz"
    if content == "objects":
        np.savez(path, terms=np.array([{"code": "would run"}], dtype=object))
    elif content == "overwritten":
        save_outcomes(path, {"terms": np.random.default_rng(0).integers(0, 9, (500, 2))})
        whole = path.read_bytes()
        path.write_bytes(whole[:200] + b"\xff" * 15 + whole[215:])
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"outcomes\.npz is damaged"):
        load_outcomes(path)


def test_ends_of_lines_count_as_words():
    assert [count_words(text) for text in ("a b c", "", "  d  ")] == [3 + 1, 1, 1 + 1]


def test_nothing_has_no_perplexity_and_nonsense_is_finite():
    with pytest.raises(ValueError, match="without words"):
        word_perplexity(1.0, 0)
    assert math.isfinite(word_perplexity(1e9, 1))


WORDS = ("aa", "ab", "ba", "bb")


class Known(nn.Module):
    """Each word is one of four and the end, each with probability 1/5, in whichever tokens it is spelt."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.nowhere = nn.Parameter(torch.zeros(()))

    def nll_by_row(self, tokens, labels):
        of_token = self.whole_words if self.tokenizer.kind == "words" else self.letters
        rows = ([token for token in row if token] for row in labels.tolist())
        return torch.tensor([-sum(map(math.log, of_token(row))) for row in rows])

    def whole_words(self, row):
        return [1 / 5] * len(row)

    def letters(self, row):
        """A letter that opens a text has 2/5, the end 1/5, a space before the next word 4/5, others 1/2."""
        pieces = ["" if token == EOS else self.tokenizer.decode([token]) for token in row]
        assert all(piece in ("a", "b", " ", "") for piece in pieces)
        first = {"a": 2 / 5, "b": 2 / 5, "": 1 / 5}[pieces[0]]
        return [first, *({"": 1 / 5, " ": 4 / 5}.get(piece, 1 / 2) for piece in pieces[1:])]


@pytest.mark.parametrize("block_size", [None, 1000])
def test_perplexity_by_word_does_not_depend_on_the_tokens(tmp_path, block_size):
    rng = random.Random(0)
    text = tmp_path / "text.txt"
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(1 if block_size else 30)]
    text.write_text("\n".join(lines) + "\n")
    found = {}
    for kind, size in (("words", None), ("bpe", 260)):
        store = prepare(
            Recipe("text", "language-model", {"test": plain_text(text)}, Vocabulary(kind, size)),
            tmp_path / kind,
        )
        config = LanguageModelConfig(vocab_size=store.tokenizer.vocab_size)
        task = LanguageModeling(store, config, TaskOptions(block_size=block_size))
        model = Known(store.tokenizer)
        found[kind] = task.validate(model, "test")
    # every word and every end is one of five
    assert found["words"]["perplexity"] == pytest.approx(5.0, rel=1e-5)
    assert found["bpe"]["perplexity"] == pytest.approx(5.0, rel=1e-5)
    assert found["bpe"]["loss"] < 0.8 * found["words"]["loss"]
