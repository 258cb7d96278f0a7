"""One distribution over texts, cut into words or into letters, has one perplexity by word."""

import math
import random

import pytest
import torch
from torch import nn

from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.models.language_model import LanguageModelConfig
from diffwindow.special_tokens import EOS
from diffwindow.tasks.language_modeling import LanguageModeling

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
            Recipe("text", "lm", {"test": plain_text(text)}, Vocabulary(kind, size)), tmp_path / kind
        )
        config = LanguageModelConfig(vocab_size=store.tokenizer.vocab_size)
        task = LanguageModeling(store, config, block_size=block_size)
        model = Known(store.tokenizer)
        found[kind] = task.validate(model, "test")
    # every word and every end is one of five
    assert found["words"]["perplexity"] == pytest.approx(5.0, rel=1e-5)
    assert found["bpe"]["perplexity"] == pytest.approx(5.0, rel=1e-5)
    assert found["bpe"]["loss"] < 0.8 * found["words"]["loss"]
