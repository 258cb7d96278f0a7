"""A share of the training rows, also of corpora that were split by the same hash."""

import pytest

from diffwindow.data.lines import Audit
from diffwindow.reproduce.jobs import make_store, recipe
from diffwindow.reproduce.scales import Experiment


def texts(recipe, split):
    return [row["text"] for row in recipe.splits[split].read(Audit())]


@pytest.mark.parametrize("kept", [50, 500])
def test_a_corpus_without_splits_keeps_its_share(tmp_path, kept):
    for name in ("train", "test"):
        lines = (f"{i % 2}\t1\t{i}\treview number {i}\n" for i in range(4000))
        (tmp_path / f"imdb_{name}.tsv").write_text("".join(lines))
    whole = recipe(Experiment("imdb"), tmp_path)
    part = recipe(Experiment("imdb", kept=kept), tmp_path)
    train = texts(whole, "train")
    assert len(train) == pytest.approx(3600, rel=0.02)
    assert set(texts(part, "train")) < set(train)
    assert len(texts(part, "train")) == pytest.approx(len(train) * kept / 1000, rel=0.15)
    assert texts(part, "valid") == texts(whole, "valid")


def test_a_corpus_with_splits_keeps_the_rows_of_the_published_results():
    part = recipe(Experiment("agreement", rows=200, kept=100), None)
    # chosen once and for all by crc32(text) % 1000 < 100
    from zlib import crc32

    whole = texts(recipe(Experiment("agreement", rows=200), None), "train")
    assert texts(part, "train") == [text for text in whole if crc32(text.encode()) % 1000 < 100]


def test_a_prepared_corpus_takes_the_place_of_raw_files(tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text("(3 (2 It) (4 good))\n(1 (2 It) (0 bad))\n")
    experiment = Experiment("sst2", vocab_size=300)
    make_store(experiment, tmp_path / "out/data/one", tmp_path)
    make_store(experiment, tmp_path / "out/data/two", tmp_path / "out/data/one")
    assert (tmp_path / "out/data/two").resolve() == tmp_path / "out/data/one"
    with pytest.raises(ValueError, match=r"a vocabulary of 300 .* but sst2-vocab400 is wanted"):
        make_store(Experiment("sst2", vocab_size=400), tmp_path / "out/data/three", tmp_path / "out/data/one")
