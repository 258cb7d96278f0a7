"""New test files are read as the model's own corpus was: the same rows give the same metrics."""

import pytest

from diffwindow.data.own_files import labelled_recipe, plain_text, two_files
from diffwindow.data.prepare import prepare
from diffwindow.data.recipe import Recipe
from diffwindow.decoding import Decoding
from diffwindow.evaluation.evaluate import evaluate_model, score_texts
from diffwindow.evaluation.new_files import NewFiles, new_store
from diffwindow.models.model import TOKENIZER
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.tasks.task import model_config, task_of

TINY = {"embed_dim": 16, "ffn_dim": 16, "num_heads": 2}
SENTENCES = ["the keys are here", "a dog runs", "nothing at all , really", "the dog is here"]
FRENCH = ["les clés sont ici", "un chien court", "rien du tout , vraiment", "le chien est ici"]
LABELS = ["very good", "bad", "very good", "bad"]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def saved(recipe, folder, **languages):
    """Save an untrained model of a corpus, and open it again with its store."""
    store = prepare(recipe.adjust(vocab_size=270, **languages), folder / "store")
    task = task_of(store, model_config(store, TINY))
    ModelFolder.of(task, task.build_model(), folder / "model").write()
    return ModelFolder.read(folder / "model"), store


@pytest.fixture
def translator(tmp_path):
    files = write(tmp_path / "a.en", SENTENCES), write(tmp_path / "a.fr", FRENCH)
    recipe = Recipe("mine", "translation", dict.fromkeys(("train", "test"), two_files(*files)))
    return *saved(recipe, tmp_path, languages={"target": "fr"}), NewFiles(*files)


@pytest.fixture
def classifier(tmp_path):
    rows = [f"{text}\t{label}" for text, label in zip(SENTENCES, LABELS, strict=True)]
    file = write(tmp_path / "a.tsv", rows)
    return *saved(labelled_recipe({"train": file, "test": file}), tmp_path), NewFiles(labels=file)


@pytest.fixture
def language_model(tmp_path):
    file = write(tmp_path / "a.txt", SENTENCES)
    recipe = Recipe("mine", "language-model", dict.fromkeys(("train", "test"), plain_text(file)))
    return *saved(recipe, tmp_path), NewFiles(text=file)


@pytest.mark.parametrize("made", ["translator", "classifier", "language_model"])
def test_the_same_rows_give_the_same_metrics(made, request):
    trained, store, files = request.getfixturevalue(made)
    search = Decoding(beam=2)
    expected = evaluate_model(trained, trained.task(store), "test", search)
    with new_store(trained, files) as again:
        assert evaluate_model(trained, trained.task(again), "test", search).metrics == expected.metrics
    assert not again.folder.exists()


def test_labels_are_shown_by_name(classifier):
    trained, store, _ = classifier
    assert trained.labels == ("bad", "very good")
    metrics = evaluate_model(trained, trained.task(store), "test", Decoding()).metrics
    assert {name: group["total"] for name, group in metrics["by_label"].items()} == {"bad": 2, "very good": 2}


def test_french_is_scored_as_french(translator):
    trained, store, _ = translator
    metrics = evaluate_model(trained, trained.task(store), "test", Decoding(beam=1)).metrics
    assert metrics["bleu_tokenized"]["signature"].startswith("moses:fr,")
    assert "target_language" not in metrics


def test_an_unknown_language_is_said_and_not_assumed():
    metrics = score_texts(FRENCH, FRENCH, language=None)
    assert metrics["bleu"]["value"] == pytest.approx(100.0)
    assert metrics["target_language"] == "unknown"
    assert "bleu_tokenized" not in metrics


def test_mistakes_are_one_sentence(classifier, tmp_path):
    trained, _, files = classifier
    with pytest.raises(ValueError, match=r"a test set for language-model, but .* is for classification"):
        NewFiles(text=files.labels).recipe(trained)
    with pytest.raises(ValueError, match="there is no file"):
        NewFiles(labels=tmp_path / "none.tsv").recipe(trained)
    unseen = write(tmp_path / "unseen.tsv", ["fine\tsuperb"])
    with (
        pytest.raises(
            ValueError, match=r"unseen\.tsv, line 1: a label that does not occur in training: 'superb'"
        ),
        new_store(trained, NewFiles(labels=unseen)),
    ):
        pass


def test_labels_of_a_store_are_matched_by_name(tmp_path):
    labels = ["bad", "good", "mixed", "mixed"]
    rows = ["text\tlabel", *(f"{text}\t{label}" for text, label in zip(SENTENCES, labels, strict=True))]
    trained, _ = saved(labelled_recipe({"train": write(tmp_path / "a.tsv", rows)}), tmp_path)
    few = write(tmp_path / "few.tsv", [row for row in rows if "good" not in row])
    store = prepare(labelled_recipe({"test": few}), tmp_path / "few", tokenizer=trained.path / TOKENIZER)
    assert (store.labels, trained.classes_of(store)) == (("bad", "mixed"), (0, 2))
    found = evaluate_model(trained, trained.task(store), "test", Decoding()).metrics
    with new_store(trained, NewFiles(labels=few)) as same:
        assert found == evaluate_model(trained, trained.task(same), "test", Decoding()).metrics
    other = write(tmp_path / "other.tsv", [row.replace("mixed", "so so") for row in rows])
    store = prepare(labelled_recipe({"test": other}), tmp_path / "other", tokenizer=trained.path / TOKENIZER)
    with pytest.raises(ValueError, match=r"has the label 'so so', but .* was trained with bad, good, mixed;"):
        trained.task(store)


def test_a_store_of_other_tokens_or_languages_is_refused(translator, tmp_path):
    *_, files = translator
    (tmp_path / "moses").mkdir()
    recipe = Recipe("mine", "translation", {"test": two_files(files.source, files.reference)})
    with_moses, _ = saved(recipe, tmp_path / "moses", moses="en,fr")
    own = {"tokenizer": with_moses.path / TOKENIZER}
    without = prepare(recipe, tmp_path / "without", **own)
    with pytest.raises(ValueError, match=r"without was prepared without Moses, .* again with --moses en,fr"):
        with_moses.check_tokens(without)
    turned = prepare(recipe.adjust(moses="fr,en"), tmp_path / "turned", **own)
    with pytest.raises(ValueError, match=r"the source of .*turned is 'fr', but .* was trained with 'en'"):
        with_moses.task(turned)
    # a run may start from a model of other languages
    with_moses.check_tokens(turned)
