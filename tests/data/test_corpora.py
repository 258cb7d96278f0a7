import gzip
import html
from dataclasses import replace

import pytest

from diffwindow.data.corpora import CORPORA, GENERATED, corpus_of, recipe_of
from diffwindow.data.download import download, instructions
from diffwindow.data.lines import Audit, CorpusError
from diffwindow.data.prepare import prepare

TRANSLATION = {"translation": {"en": "one\ntwo", "de": "eins zwei", "fr": "un deux"}}
HUB_ROWS = {
    "wmt/wmt14": TRANSLATION,
    "bentrevett/multi30k": {"en": "a man", "de": "ein Mann"},
    "nyu-mll/glue": {"sentence": "very good", "label": 1},
    "stanfordnlp/imdb": {"text": "Good.\tReally.", "label": 0},
    "Salesforce/wikitext": {"text": " = Title = \n"},
}


@pytest.mark.parametrize("corpus", CORPORA.values(), ids=lambda corpus: corpus.name)
def test_a_corpus_is_generated_or_has_files_and_a_preset(corpus):
    assert bool(corpus.generate) == (corpus.name in GENERATED) == (not corpus.splits)
    assert corpus.generate or {"train", "valid"} <= set(corpus.splits)
    assert corpus.preset["train"]["max_updates"] > 0
    assert set(corpus.languages) in (set(), {"source", "target"})


@pytest.mark.parametrize("name", [corpus.name for corpus in CORPORA.values() if corpus.hub])
def test_downloaded_files_are_what_the_recipe_reads(name, tmp_path):
    asked = []

    def load(path, config, split):
        asked.append((path, config, split))
        return [HUB_ROWS[path]] * 30

    assert set(download(corpus_of(name), tmp_path, load=load).values()) == {30}
    recipe = recipe_of(name, tmp_path).adjust(vocab_size=300, moses=None)
    # the hub's one text lands on one side of a division by hash; the other is empty
    filled = {split: source for split, source in recipe.splits.items() if list(source.read(Audit()))}
    assert "test" in filled or "valid" in filled
    store = prepare(replace(recipe, splits=filled), tmp_path / "store")
    assert len(store.split("test" if "test" in store.splits else "valid")) == 30
    # files already there are not fetched again
    asked.clear()
    assert download(corpus_of(name), tmp_path, load=load) == {}
    assert not asked


def test_an_interrupted_download_leaves_no_file(tmp_path):
    def load(path, config, split):
        yield TRANSLATION
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        download(corpus_of("wmt14-en-de"), tmp_path, load=load)
    assert not (tmp_path / "wmt14-en-de/train.en").exists()


def test_instructions_say_what_to_put_where(tmp_path):
    text = instructions(corpus_of("sst2"), tmp_path)
    assert "https://nlp.stanford.edu/sentiment/" in text
    assert all(str(tmp_path / f"trees/{split}.txt") in text for split in ("train", "dev", "test"))
    assert "diffwindow prepare agreement" in instructions(corpus_of("agreement"), tmp_path)
    with pytest.raises(ValueError, match="no corpus is called 'sst9'"):
        corpus_of("sst9")


def test_missing_corpora_are_explained(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'multi30k-en-de'"):
        recipe_of("multi30k-en-d", tmp_path)
    with pytest.raises(ValueError, match="sst2 is made from files; say in which folder"):
        recipe_of("sst2", None)
    with pytest.raises(ValueError, match="is not a folder"):
        recipe_of("sst2", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds none of trees/train\.txt"):
        recipe_of("sst2", tmp_path)
    with pytest.raises(ValueError, match=r"holds none of \*\*/news\.en-000\*"):
        recipe_of("lm1b", tmp_path)
    with pytest.raises(ValueError, match="sst2 is made from files, so rows=9 has no effect"):
        recipe_of("sst2", tmp_path, rows=9)


def test_lm1b_never_validates_on_its_test_shard(tmp_path):
    for name in ("en-00001", "en.heldout-00000", "en.heldout-00002"):
        (tmp_path / f"news.{name}-of-00100").write_text("a\n")
    with pytest.raises(ValueError, match=r"holds none of \*\*/news\.en\.heldout-00001\*"):
        recipe_of("lm1b", tmp_path)


def test_both_sides_come_from_one_folder(tmp_path):
    folder = tmp_path / "multi30k/raw"
    folder.mkdir(parents=True)
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text("a\n")
    (folder / "train.en").write_text("another\n")
    train = recipe_of("multi30k-en-de", tmp_path).splits["train"]
    assert train.files == (tmp_path / "train.en", tmp_path / "train.de")
    (tmp_path / "train.de").rename(folder / "train.de.gz")
    assert recipe_of("multi30k-en-de", tmp_path).splits["train"].files[0] == folder / "train.en"
    (folder / "train.de.gz").unlink()
    with pytest.raises(ValueError, match=r"holds multi30k/raw/train\.en, but not multi30k/raw/train\.de \("):
        recipe_of("multi30k-en-de", tmp_path)


def test_text_that_was_tokenised_is_stored_as_it_was_and_new_text_is_tokenised_alike(tmp_path):
    lines = {
        "en": "a man &apos;s dog , on t-shirts .",
        "de": "ein jünger &quot; hund &quot; .",
    }
    for name in ("train", "val", "test_2016_flickr"):
        for side, line in lines.items():
            (tmp_path / f"{name}.lc.norm.tok.{side}").write_text(f"{line}\n", encoding="utf-8")
    recipe = recipe_of("multi30k-tok-en-de", tmp_path)
    store = prepare(recipe, tmp_path / "store")
    stored = {name: store.tokenizer.decode(ids[0]) for name, ids in store.split("test").sequences.items()}
    assert stored == {"source": html.unescape(lines["en"]), "target": html.unescape(lines["de"])}
    assert next(recipe.splits["test"].read(Audit()))["source"] == "a man's dog, on t-shirts."


def test_lm1b_shards(tmp_path):
    for name, line in {
        "en-00001": "a b",
        "en-00002": "c",
        "en.heldout-00000": "t",
        "en.heldout-00001": "v",
    }.items():
        (tmp_path / f"news.{name}-of-00100").write_text(line + "\n")
    store = prepare(recipe_of("lm1b", tmp_path), tmp_path / "store")
    texts = {
        name: [store.tokenizer.decode(row["text"]) for row in split] for name, split in store.splits.items()
    }
    assert texts == {"train": ["a b", "c"], "valid": ["<unk>"], "test": ["<unk>"]}


def test_the_preprocessed_release_of_wmt16(tmp_path):
    sets = {"train.tok.clean.bpe.32000": 3, "newstest2013.tok.bpe.32000": 1}
    for name, size in sets.items():
        for side in ("en", "de"):
            with gzip.open(tmp_path / f"{name}.{side}.gz", "wt") as file:
                file.write(f"{side} sen@@ tence .\n" * size)
    # references as WMT has them
    for kind, side in (("src", "en"), ("ref", "de")):
        text = f"<doc>\n<seg id='1'>{side} test &lt; set.</seg>\n</doc>\n"
        (tmp_path / f"newstest2014-deen-{kind}.{side}.sgm").write_text(text)
    store = prepare(recipe_of("wmt16-en-de", tmp_path).adjust(vocab_size=300), tmp_path / "store")
    texts = {
        name: [store.tokenizer.decode(row[field]) for row in split for field in ("source", "target")]
        for name, split in store.splits.items()
    }
    assert texts == {
        "train": ["en sentence.", "de sentence."] * 3,
        "valid": ["en sentence.", "de sentence."],
        "test": ["en test < set.", "de test < set."],
    }


def test_several_raw_files_per_side(tmp_path):
    training = tmp_path / "training"
    training.mkdir()
    for name in ("europarl-v7", "commoncrawl", "news-commentary-v9"):
        for side in ("en", "de"):
            (training / f"{name}.de-en.{side}").write_text(f"{name} {side}\n")
    # one side compressed
    with gzip.open(training / "commoncrawl.de-en.de.gz", "wt") as file:
        file.write("commoncrawl de\n")
    (training / "commoncrawl.de-en.de").unlink()
    for name in ("newstest2013", "newstest2014"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").write_text(f"{name} {side}\n")
    rows = list(recipe_of("wmt14-en-de", tmp_path).splits["train"].read(Audit()))
    assert rows == [
        {"source": f"{name} en", "target": f"{name} de"}
        for name in ("commoncrawl", "europarl-v7", "news-commentary-v9")
    ]
    (training / "europarl-v7.de-en.de").unlink()
    problem = r"europarl-v7\.de-en\.en has no other side, europarl-v7\.de-en\.de; put it there"
    with pytest.raises(CorpusError, match=problem):
        recipe_of("wmt14-en-de", tmp_path)


def test_english_french_validates_on_a_part_of_the_training_pairs(tmp_path):
    folder = tmp_path / "wmt14-en-fr"
    folder.mkdir()
    for name, size in (("train", 5_000), ("newstest2014", 3)):
        for side in ("en", "fr"):
            (folder / f"{name}.{side}").write_text("".join(f"{side} number {i}\n" for i in range(size)))
    store = prepare(recipe_of("wmt14-en-fr", tmp_path).adjust(vocab_size=300), tmp_path / "store")
    sizes = {name: len(split) for name, split in store.splits.items()}
    assert sizes["train"] + sizes["valid"] == 5_000
    assert 0 < sizes["valid"] < 15
    assert sizes["test"] == 3


def test_linzen_corpus(tmp_path):
    header = "sentence\tverb_pos\tverb_index\tn_intervening\tn_diff_intervening\tdistance\n"
    # every other row has a noun of the subject's own number
    lines = [f"the key number {i} is here\tVBZ\t5\t{i % 2}\t0\t3\n" for i in range(3_000)]
    (tmp_path / "agr_50_mostcommon_10K.tsv").write_text(header + "".join(lines))
    store = prepare(recipe_of("sva-linzen", tmp_path), tmp_path / "store")
    sizes = {name: len(split) for name, split in store.splits.items()}
    assert sizes["train"] + sizes["valid"] + sizes["test"] == 3_000
    assert sizes["test"] == pytest.approx(2_700, rel=0.03)
    texts = [store.tokenizer.decode(row["text"]) for row in store.split("test")]
    even = [text for text in texts if text.split()[3] == "<unk>" or int(text.split()[3]) % 2 == 0]
    assert 0 < sizes["differ"] <= len(even)
