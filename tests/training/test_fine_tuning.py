"""Starting from a trained model: same vocabulary, same function, with windows where there were none."""

import shutil

import pytest
import torch

from diffwindow.data.own_files import labelled_recipe
from diffwindow.data.prepare import prepare
from diffwindow.models.pretrained import TOKENIZER
from diffwindow.tasks.trained_model import Trained
from diffwindow.training.overrides import resolve
from diffwindow.training.run_folder import Run
from diffwindow.training.train import train

SMALL = ["data.rows=80", "model.embed_dim=16", "model.ffn_dim=16", "model.num_heads=2"]
SHORT = ["train.max_updates=3", "train.valid_every=3", "train.final=last", "train.max_tokens=400"]
# so small a rate that the weights stay what they are
STILL = ["train.lr=1e-30", "train.warmup=0", "train.warmup_from=0", *SHORT[:1]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(resolve("reorder", [*SMALL, *SHORT, "model.encoder_layers=1", "model.decoder_layers=1"]), folder)
    return folder


@pytest.fixture
def pair(plain):
    store = Run.open(plain).open_store()
    batch = Run.open(plain).task(store).collate("valid", torch.arange(5).numpy())
    return batch.source, batch.target


def fine_tuned(plain, folder, *overrides, **values):
    train(resolve("reorder", [*SMALL[:1], *SHORT, *overrides], {"start": str(plain), **values}), folder)
    return Trained.load(folder).model


@pytest.mark.parametrize(
    ("attention", "became"),
    [
        (None, "Global"),
        ("Enc(AW)-Cr(AW,Seg)", "Enc(AW)-Cr(AW,Seg)"),
        ("Dec(MW)", "Dec(MW,Gate)"),
    ],
)
def test_the_function_is_unchanged_where_the_run_starts(plain, tmp_path, pair, attention, became):
    values = {"attention": attention} if attention else {}
    model = fine_tuned(plain, tmp_path / "run", *STILL, "model.window_tolerance=1e-6", **values)
    assert (model.config.attention, model.config.window_tolerance) == (became, 1e-6)
    # taken from the trained model, not from the preset
    assert model.config.embed_dim == 16
    with torch.no_grad():
        expected, found = Trained.load(plain).model(*pair), model(*pair)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_windows_learn_and_the_run_resumes_without_its_source(plain, tmp_path):
    run = tmp_path / "run"
    source = shutil.copytree(plain, tmp_path / "source")
    model = fine_tuned(source, run, "train.lr=0.01", attention="Dec(MW)")
    gates = [weight for name, weight in model.named_parameters() if name.endswith("gate")]
    assert any(gate.abs().max() > 0 for gate in gates)
    shutil.rmtree(source)
    train(resolve(str(run), ["train.max_updates=5"]), run)
    assert Trained.load(run).model.config.attention == "Dec(MW,Gate)"


def test_without_checkpoints_the_run_starts_from_its_source_again(plain, tmp_path, pair):
    run = tmp_path / "run"
    fine_tuned(plain, run, *STILL)
    shutil.rmtree(run / "checkpoints")
    log = (run / "log.jsonl").read_text()
    with pytest.raises(ValueError, match="has a model but no checkpoint to go on from"):
        fine_tuned(plain, run, *STILL)
    assert (run / "log.jsonl").read_text() == log
    shutil.rmtree(run / "model")
    model = fine_tuned(plain, run, *STILL)
    with torch.no_grad():
        expected, found = Trained.load(plain).model(*pair), model(*pair)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_corpus_is_prepared_with_the_vocabulary_of_the_source(plain, tmp_path):
    fine_tuned(plain, tmp_path / "run", "data.seed=9")
    assert (tmp_path / "run/data/tokenizer.json").read_bytes() == (
        plain / "model/tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("overrides", "values", "message"),
    [
        ([], {"start": "/nowhere"}, "there is no folder /nowhere"),
        (["model.embed_dim=32"], {}, "model.embed_dim=32, but the model of .* has 16"),
        (["task.kind=classification"], {}, "start=.* holds a translator, not a classifier"),
        (["model.norm=pre"], {}, "model.norm='pre', but the model of .* has 'post'"),
        ([], {"attention": "Enc(Rel)"}, r"only AW and MW can be added"),
        ([], {"attention": "Enc(AW,Dist)"}, r"Enc\(AW,Dist\) has relative positions"),
    ],
)
def test_a_model_that_does_not_fit_is_one_sentence(plain, tmp_path, overrides, values, message):
    with pytest.raises(ValueError, match=message):
        fine_tuned(plain, tmp_path / "run", *overrides, **values)


def test_windows_are_not_added_to_windows(plain, tmp_path):
    fine_tuned(plain, tmp_path / "one", attention="Enc(AW)")
    with pytest.raises(ValueError, match=r"the model to start from has attention='Enc\(AW\)'"):
        fine_tuned(tmp_path / "one", tmp_path / "two", attention="Enc(MW)")


def test_another_vocabulary_is_refused(plain, tmp_path):
    train(resolve("reorder", [*SMALL, *SHORT, "data.seed=7", "data.rows=40"]), tmp_path / "other")
    with pytest.raises(ValueError, match="has another vocabulary than"):
        fine_tuned(plain, tmp_path / "run", **{"data.path": str(tmp_path / "other/data")})


def test_the_head_of_a_classifier_follows_the_names_of_the_labels(tmp_path):
    def prepared(name, labels, **options):
        (tmp_path / f"{name}.tsv").write_text("".join(f"a {label} film\t{label}\n" * 4 for label in labels))
        return prepare(labelled_recipe({"train": tmp_path / f"{name}.tsv"}), tmp_path / name, **options)

    def trained(name, store, *overrides, **values):
        values["data.path"] = str(store.folder)
        train(
            resolve("classification", [*SHORT, "train.valid_every=null", *overrides], values), tmp_path / name
        )
        return Trained.load(tmp_path / name)

    first = trained("first", prepared("all", ["bad", "good", "mixed"]), *SMALL[1:])
    own = first.folder / TOKENIZER
    start = {"start": str(tmp_path / "first")}
    second = trained("second", prepared("two", ["bad", "mixed"], tokenizer=own), *STILL, **start)
    assert second.labels == ("bad", "mixed")
    tokens = torch.tensor(first.encode(["a mixed film"], "text"))
    with torch.no_grad():
        torch.testing.assert_close(second.model(tokens), first.model(tokens)[:, [0, 2]])
    with pytest.raises(ValueError, match=r"has the label 'worse', but .* was trained with bad, good, mixed"):
        trained("third", prepared("others", ["bad", "good", "worse"], tokenizer=own), *STILL, **start)
