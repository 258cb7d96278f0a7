import json
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from diffwindow.data import encoding as chunks
from diffwindow.data import prepare as module
from diffwindow.data.corpora import recipe_of
from diffwindow.data.lines import Audit, CorpusError
from diffwindow.data.own_files import labelled_recipe, plain_text, two_files
from diffwindow.data.prepare import estimate, open_or_prepare, prepare
from diffwindow.data.readers import Columns
from diffwindow.data.recipe import Recipe, Source, Vocabulary
from diffwindow.data.store import MEMORY, Store, is_store
from diffwindow.data.synthetic import reorder
from diffwindow.files import lock_folder

CHUNK_ROWS = 256
ROWS = 3 * CHUNK_ROWS + 100


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", CHUNK_ROWS)
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    examples = list(reorder(ROWS, 1))
    (folder / "train.en").write_text("".join(e.source + "\n" for e in examples))
    (folder / "train.xx").write_text("".join(e.target + "\n" for e in examples))
    return folder


def recipe(pairs, reader=None):
    source = two_files(pairs / "train.en", pairs / "train.xx")
    return Recipe("pairs", "translation", {"train": reader or source}, Vocabulary("bpe", 400))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MEMORY}


@pytest.fixture(scope="module")
def whole(pairs, tmp_path_factory):
    return prepare(recipe(pairs), tmp_path_factory.mktemp("out") / "whole").folder


def test_store_holds_the_files(pairs, whole):
    store = Store.open(whole)
    train = store.split("train")
    for side, name in (("source", "train.en"), ("target", "train.xx")):
        lines = (pairs / name).read_text().splitlines()
        for index in (0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, ROWS - 1):
            assert store.tokenizer.decode(train[index][side]) == lines[index]
    assert len(train) == ROWS
    store.verify()


def test_several_processes_write_the_same_bytes(pairs, whole, tmp_path):
    prepare(recipe(pairs), tmp_path / "out", workers=2)
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("stop_at", [0.3, 0.7])
def test_interrupted_and_restarted_gives_the_same_bytes(pairs, whole, tmp_path, monkeypatch, stop_at):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    out = tmp_path / "out"

    def interrupt(stage, fraction):
        if stage == "train" and fraction > stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(pairs), out, progress=interrupt)
    assert not out.exists()
    partial = tmp_path / "out.partial"
    done = json.loads((partial / "progress.json").read_text())["splits"].get("train", {"rows": 0})["rows"]
    assert done < ROWS
    if stop_at > 0.5:
        assert done > 0
    # the vocabulary is not learned again, and what follows the last checkpoint is written again
    trained = []
    monkeypatch.setattr(module, "train_vocabulary", lambda *_, **__: trained.append(1))
    prepare(recipe(pairs), out)
    assert not trained
    assert not partial.exists()
    assert contents(out) == contents(whole)


def test_other_settings_start_again(pairs, tmp_path):
    out = tmp_path / "out"

    def interrupt(stage, fraction):
        if stage == "train":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(pairs), out, progress=interrupt)
    other = recipe(pairs).adjust(vocab_size=300, moses=None)
    assert prepare(other, out).tokenizer.vocab_size == 300


@pytest.mark.parametrize("first", ["another column", "another task"])
def test_another_task_or_column_starts_again(tmp_path, first):
    path = tmp_path / "p.tsv"
    path.write_text("title\tbody\tlabel\n" + "one\teins\tyes\ntwo\tzwei\tno\n" * 5)
    files = {"train": path, "valid": path}
    wanted = labelled_recipe(files, Columns("body", "label"))
    others = {
        "another column": labelled_recipe(files, Columns("title", "label")),
        "another task": replace(wanted, task="language-model", splits=dict.fromkeys(files, plain_text(path))),
    }

    def interrupt(stage, fraction):
        if stage == "valid":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(others[first], tmp_path / "out", progress=interrupt)
    prepare(wanted, tmp_path / "out")
    prepare(wanted, tmp_path / "expected")
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_another_seed_or_size_starts_again(tmp_path):
    def interrupt(stage, fraction):
        if stage == "valid":
            raise KeyboardInterrupt

    for number, other in enumerate(
        [recipe_of("agreement", rows=300, seed=2), recipe_of("agreement", rows=50, seed=1)]
    ):
        out = tmp_path / f"out{number}"
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe_of("agreement", rows=300, seed=1), out, progress=interrupt)
        prepare(other, out)
        prepare(other, tmp_path / f"expected{number}")
        assert contents(out) == contents(tmp_path / f"expected{number}")


def test_one_process_at_a_time(pairs, tmp_path):
    (tmp_path / "out.partial").mkdir()
    with lock_folder(tmp_path / "out.partial"), pytest.raises(ValueError, match="another process is at work"):
        prepare(recipe(pairs), tmp_path / "out")
    prepare(recipe(pairs), tmp_path / "out")


@pytest.mark.parametrize(("name", "begun"), [
    ("thesis.tex", True), ("notes.json", True), (".mine.tmp", True), ("tokenizer.json", False),
])  # fmt: skip
def test_a_foreign_file_is_not_deleted(pairs, tmp_path, name, begun):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    files = {name: "mine"} | ({"progress.json": "{}", "train.source.tokens": "old"} if begun else {})
    for file, content in files.items():
        (partial / file).write_text(content)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} does not belong"):
        prepare(recipe(pairs), tmp_path / "out")
    assert {file: (partial / file).read_text() for file in files} == files


def test_refuses_to_overwrite(pairs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("out", "dangling"):
        with pytest.raises(ValueError, match=f"{name} exists already"):
            prepare(recipe(pairs), tmp_path / name)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_kill_at_the_last_rename_loses_nothing(pairs, whole, tmp_path, monkeypatch, renamed):
    out, rename = tmp_path / "out", Path.rename

    def interrupt(folder, target):
        if renamed:
            rename(folder, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe(pairs), out)
    if renamed:
        Store.open(out).verify()
    monkeypatch.setattr(module, "train_vocabulary", None)
    monkeypatch.setattr(module, "encoded_chunks", None)
    prepare(recipe(pairs), out)
    assert contents(out) == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    # and once more, when it is finished
    prepare(recipe(pairs), out)
    assert contents(out) == contents(whole)


def test_a_finished_store_of_other_settings_or_files_is_told(pairs, tmp_path):
    out = tmp_path / "out"
    prepare(recipe(pairs), out)
    before = contents(out)
    with pytest.raises(
        ValueError, match=r"out exists already, and was made with moses=\{\}, not \{'source': 'en'"
    ):
        prepare(recipe(pairs).adjust(moses="en,de"), out)
    with pytest.raises(ValueError, match="and was made with skip_bad=False, not True; remove it or choose"):
        prepare(recipe(pairs), out, skip_bad=True)
    swapped = {"train": two_files(pairs / "train.xx", pairs / "train.en")}
    with pytest.raises(ValueError, match="and its input files were others, or have changed"):
        prepare(replace(recipe(pairs), splits=swapped), out)
    assert contents(out) == before


def test_a_bad_row_leaves_no_store(tmp_path):
    (tmp_path / "a.en").write_text("one\n\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    bad = Recipe(
        "bad",
        "translation",
        {"train": two_files(tmp_path / "a.en", tmp_path / "a.de")},
        Vocabulary("bpe", 300),
    )
    with pytest.raises(CorpusError, match=r"a\.en, line 2: empty source"):
        prepare(bad, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    store = prepare(bad, tmp_path / "out", skip_bad=True)
    found = store.manifest.splits["train"].found
    assert (found.rows, found.skipped) == (1, {"empty source": 1})
    assert found.first_skipped["empty source"].endswith("a.en, line 2")


def test_an_empty_split_is_an_error(tmp_path):
    empty = Recipe(
        "empty", "language-model", {"train": Source(lambda _: iter([]), rows=0)}, Vocabulary("words", None)
    )
    with pytest.raises(CorpusError, match="the train split is empty: empty has no good row"):
        prepare(empty, tmp_path / "out")


def test_an_empty_validation_set_is_named_with_what_was_left_out(tmp_path):
    (tmp_path / "a.tsv").write_text("fine\tyes\nbad\tno\n")
    (tmp_path / "v.tsv").write_text("\tyes\n\tno\n")
    given = labelled_recipe({"train": tmp_path / "a.tsv", "valid": tmp_path / "v.tsv"}, skip_bad=True)
    for run in (partial(prepare, out=tmp_path / "out"), estimate):
        with pytest.raises(CorpusError) as error:
            run(given, skip_bad=True)
        assert str(error.value) == (
            f"the valid split is empty: {tmp_path / 'v.tsv'} has no good row; "
            f"left out 2: empty text (first: {tmp_path / 'v.tsv'}, line 1)"
        )


def test_given_tokenizer_is_kept(pairs, whole, tmp_path):
    store = prepare(recipe(pairs), tmp_path / "out", tokenizer=whole / "tokenizer.json")
    assert (store.folder / "tokenizer.json").read_bytes() == (whole / "tokenizer.json").read_bytes()


def test_moses_separates_punctuation(tmp_path):
    (tmp_path / "a.txt").write_text("It isn't far.\n" * 3)
    plain = Recipe(
        "a", "language-model", {"train": plain_text(tmp_path / "a.txt")}, Vocabulary("words", None)
    )
    store = prepare(plain.adjust(vocab_size=None, moses="en"), tmp_path / "out")
    assert store.tokenizer.decode(store.split("train")[0]["text"]) == "It isn 't far ."
    with pytest.raises(ValueError, match="moses=en,de names 2 languages for the fields text"):
        plain.adjust(vocab_size=None, moses="en,de")


def test_dry_run_estimates_and_writes_nothing(pairs, whole):
    before = set(pairs.iterdir())
    expected = estimate(recipe(pairs), sample=300)
    assert expected.rows["train"] == pytest.approx(ROWS, rel=0.1)
    actual = sum(path.stat().st_size for path in whole.iterdir() if path.suffix != ".json")
    assert expected.bytes == pytest.approx(actual, rel=0.1)
    assert expected.seconds > 0
    assert set(pairs.iterdir()) == before


def test_a_folder_is_known_by_the_files_inside(tmp_path):
    for name in ("train/neg/0.txt", "train/pos/0.txt", "test/neg/0.txt", "test/pos/0.txt"):
        (tmp_path / "aclImdb" / name).parent.mkdir(parents=True)
        (tmp_path / "aclImdb" / name).write_text("a fine film")
    before = recipe_of("imdb", tmp_path).inputs()
    assert before == recipe_of("imdb", tmp_path).inputs()
    folder = tmp_path / "aclImdb/train"
    times = folder.stat()
    (folder / "neg/0.txt").write_text("a poor film")
    # the folder itself does not change when a file inside does
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = recipe_of("imdb", tmp_path).inputs()
    assert after["train"] != before["train"]
    assert after["test"] == before["test"]
    assert after["train"][0]["bytes"] == 22


def test_files_of_a_folder_that_are_not_read_do_not_count(tmp_path):
    for name in ("train/neg/0.txt", "train/pos/0.txt", "test/neg/0.txt", "test/pos/0.txt"):
        (tmp_path / "aclImdb" / name).parent.mkdir(parents=True)
        (tmp_path / "aclImdb" / name).write_text("a fine film")
    before = recipe_of("imdb", tmp_path).inputs()
    (tmp_path / "aclImdb/train/unsup").mkdir()
    (tmp_path / "aclImdb/train/unsup/0.txt").write_text("not labelled " * 100)
    (tmp_path / "aclImdb/train/labeledBow.feat").write_text("1:1 " * 100)
    recipe = recipe_of("imdb", tmp_path)
    assert (recipe.splits["train"].bytes, recipe.inputs()) == (22, before)
    audit = Audit()
    list(recipe.splits["train"].read(audit))
    assert recipe.splits["train"].done(audit) == 1.0


def test_a_store_is_prepared_once(tmp_path):
    made = []

    def recipe():
        made.append(1)
        return recipe_of("agreement", rows=20)

    first = open_or_prepare(tmp_path / "new" / "store", recipe)
    again = open_or_prepare(tmp_path / "new" / "store", recipe)
    assert is_store(first.folder)
    assert not is_store(tmp_path)
    assert (len(made), len(again.split("train"))) == (1, 20)
