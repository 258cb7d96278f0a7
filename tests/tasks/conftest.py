"""Small stores of the generated corpora, made once."""

import pytest

from diffwindow.data.corpora import agreement_recipe, plain_text, reorder_recipe
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe, Vocabulary
from diffwindow.data.synthetic import agreement


@pytest.fixture(scope="session")
def agreement_store(tmp_path_factory):
    return prepare(agreement_recipe(rows=2000), tmp_path_factory.mktemp("agreement") / "store")


@pytest.fixture(scope="session")
def reorder_store(tmp_path_factory):
    return prepare(reorder_recipe(rows=2000), tmp_path_factory.mktemp("reorder") / "store")


@pytest.fixture(scope="session")
def text_store(tmp_path_factory):
    """Sentences of the agreement grammar as language-model text, in subwords."""
    folder = tmp_path_factory.mktemp("text")
    sources = {}
    for split, size in (("train", 1000), ("valid", 100), ("test", 100)):
        file = folder / f"{split}.txt"
        file.write_text("".join(f"{example.sentence}\n" for example in agreement(size, part=split)))
        sources[split] = plain_text(file)
    return prepare(Recipe("sentences", "lm", sources, Vocabulary("bpe", 300)), folder / "store")
