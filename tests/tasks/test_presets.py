"""Presets of the tasks: sizes that suit the corpus, and what its texts decide."""

import pytest

from diffwindow.data.corpora import recipe_of
from diffwindow.data.own_files import plain_text
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe
from diffwindow.data.store import Manifest
from diffwindow.tasks.entries import TASKS
from diffwindow.tasks.presets import describe_sizes, example_settings, preset, size_of
from diffwindow.training.overrides import resolve


def manifest(task, tokens, rows, *splits):
    field = "target" if task == "translation" else "text"
    parts = {"sequences": [field], "columns": [], "found": {"labels": {}}, "files": {}}
    entry = {"rows": rows, "tokens": {field: tokens}, **parts}
    settings = {"corpus": "own", "moses": {}}
    return Manifest(
        task=task,
        tokenizer={"sha256": ""},
        settings=settings,
        splits=dict.fromkeys(("train", *splits), entry),
    )


@pytest.mark.parametrize("task", TASKS)
def test_more_text_gets_a_larger_size_and_each_has_its_updates(task):
    names = [size_of(manifest(task, 10**power, 100)).name for power in range(3, 10)]
    assert list(dict.fromkeys(names)) == [size.name for size in TASKS[task].sizes]
    assert all(size.settings["train"]["max_updates"] for size in TASKS[task].sizes)


def test_what_the_texts_decide():
    assert example_settings(manifest("language-model", 1_000, 100, "valid")) == {}
    assert example_settings(manifest("language-model", 10_000, 100, "valid"))["task"] == {"block_size": 128}
    long = example_settings(manifest("classification", 50_000, 100, "valid"))
    assert (long["task"], long["train"]["max_tokens"]) == ({"max_length": 512}, 16_384)
    alone = example_settings(manifest("classification", 1_000, 100))
    assert alone["train"] == {"valid_every": None, "watch": "loss", "final": "last"}


@pytest.mark.parametrize(("name", "corpus"), [("classification", "agreement"), ("translation", "reorder")])
def test_a_task_takes_its_sizes_from_the_store(tmp_path, name, corpus):
    store = prepare(recipe_of(corpus, rows=30), tmp_path / "store")
    config = resolve(name, ["train.max_updates=7"], {"data.path": str(store.folder)})
    assert (config.name, config.data.corpus, config.train.max_updates) == (name, corpus, 7)
    assert config.train.save_every < 1000, "a tiny corpus is saved often"
    said = describe_sizes(name, store.folder, config.model_dump())
    assert said.startswith(f"{name}: tiny sizes for ")
    assert said.endswith("layers, 7 updates")
    assert resolve(name, [f"data.path={store.folder}"]).model == config.model


def test_a_language_model_without_validation(tmp_path):
    (tmp_path / "a.txt").write_text("one line\nand another\n")
    store = prepare(
        Recipe("a", "language-model", {"train": plain_text(tmp_path / "a.txt")}), tmp_path / "store"
    )
    config = resolve("language-model", (), {"data.path": str(store.folder)})
    said = describe_sizes("language-model", store.folder, config.model_dump())
    assert said.endswith("each line by itself, no validation set, so the last model is kept")
    assert config.train.valid_every is None


def test_mistakes_are_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"the preset 'translation' takes its sizes from a prepared corpus; give one"
    ):
        preset("translation")
    with pytest.raises(ValueError, match=f"a prepared corpus, which {tmp_path} is not"):
        preset("translation", tmp_path)
    store = prepare(recipe_of("agreement", rows=20), tmp_path / "store")
    with pytest.raises(ValueError, match="is prepared for classification, not for language-model"):
        preset("language-model", store.folder)
    with pytest.raises(ValueError, match="did you mean 'translation'"):
        preset("translatio")
