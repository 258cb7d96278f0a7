"""The readers against the published sizes of the real corpora."""

import pytest

from diffwindow.data.batching import TokenBatches
from diffwindow.data.corpora import recipe_of
from diffwindow.data.lines import Audit
from diffwindow.data.prepare import prepare

ROWS = {
    "multi30k-en-de": {"train": 29_000, "valid": 1_014, "test": 1_000, "test2017": 1_000, "mscoco": 461},
    "multi30k-en-fr": {"train": 29_000, "valid": 1_014, "test": 1_000, "test2017": 1_000, "mscoco": 461},
    "multi30k-tok-en-de": {"train": 29_000, "valid": 1_014, "test": 1_000, "test2017": 1_000, "mscoco": 461},
    "sst2": {"train": 77_616, "valid": 872, "test": 1_821},
    "sst5": {"train": 159_274, "valid": 1_101, "test": 2_210},
    "sva": {"train": 68_476, "valid": 8_444, "test": 8_602},
    "wikitext2": {"train": 36_718, "valid": 3_760, "test": 4_358},
}
# corpora that are divided by hash: the parts add up to the file
TOTALS = {"tatoeba-en-de": 169_197, "tatoeba-en-fr": 167_130, "lm1b-heldout": 12_216, "imdb": 50_000}


def counts(name, root):
    found = {}
    for split, source in recipe_of(name, root).splits.items():
        audit = Audit()
        assert sum(1 for _ in source.read(audit)) == audit.rows
        found[split] = audit.rows
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_the_published_ones(real_data, name, unchecked):
    assert counts(name, real_data) == ROWS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOTALS)
def test_parts_add_up(real_data, name, unchecked):
    found = counts(name, real_data)
    assert sum(found.values()) == TOTALS[name]
    assert min(found.values()) > 1_000


def test_multi30k_wastes_little_padding(real_data, tmp_path, unchecked):
    store = prepare(recipe_of("multi30k-en-de", real_data), tmp_path / "store")
    train = store.split("train")
    assert (len(train), store.tokenizer.vocab_size) == (29_000, 8_192)
    lengths = [train.lengths("source"), train.lengths("target")]
    for max_tokens in (1_024, 4_096):
        assert TokenBatches(lengths, max_tokens=max_tokens, seed=1).padding_waste() < 0.10


@pytest.mark.slow
def test_wikitext_has_the_published_tokens(real_data, tmp_path, unchecked):
    store = prepare(recipe_of("wikitext2", real_data), tmp_path / "store")
    tokens = {split: len(store.split(split).stream("text")) for split in ("train", "valid", "test")}
    assert tokens == {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    # 33,278 types with <unk> and <eos>, of which ours are two of the four special ids
    assert store.tokenizer.vocab_size == 33_280
