"""What a run must not do: call nothing learned a success, write outside its folder, write a point twice."""

import errno
import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diffwindow.data.own_files import labelled_recipe
from diffwindow.data.prepare import prepare
from diffwindow.models.model import TOKENIZER
from diffwindow.progress import Progress
from diffwindow.tasks.model_folder import ModelFolder
from diffwindow.training.failures import TrainingError, translate_exceptions
from diffwindow.training.overrides import resolve
from diffwindow.training.run import Run, train
from samples.majority_task import MajorityTask, fit


class Notes(Progress):
    """Keep what is said."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


class AllBad(MajorityTask):
    """Every training loss, or every validation, is not a number."""

    def __init__(self, *, training: bool) -> None:
        super().__init__()
        self._bad_training = training

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * math.nan if self._bad_training else loss

    def validate(self, model, split, *, watch, progress):
        # an accuracy is finite even where no probability is
        return {"loss": math.nan, "accuracy": 0.5}


def test_a_run_that_left_out_every_update_fails(tmp_path):
    with pytest.raises(TrainingError, match="all 12 updates were bad and skipped; start a new run"):
        fit(tmp_path, AllBad(training=True), on_bad_loss="skip", max_updates=12)
    assert not (tmp_path / "model").exists()
    # every record is JSON without NaN
    for line in (tmp_path / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("watch", ["loss", "accuracy"])
def test_a_run_without_a_finite_validation_fails(tmp_path, watch):
    with pytest.raises(TrainingError, match=r"the validation of update 6 is not finite; lower train\.lr"):
        fit(tmp_path / "stop", AllBad(training=False), max_updates=12, watch=watch)
    with pytest.raises(TrainingError, match="no validation in 12 updates was finite"):
        fit(tmp_path / "skip", AllBad(training=False), max_updates=12, watch=watch, on_bad_loss="skip")
    assert not (tmp_path / "skip/model").exists()


@pytest.mark.parametrize("name", ["log.jsonl", "timing.jsonl"])
def test_a_log_that_is_a_link_is_refused(tmp_path, name):
    (tmp_path / "outside").write_text("mine\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match=rf"{name} is not a regular file; move it away"):
        fit(tmp_path / "run", max_updates=2)
    assert (tmp_path / "outside").read_text() == "mine\n"


def test_temporary_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / "checkpoints/.00000005.tmp").mkdir(parents=True)
    (tmp_path / ".model.old").mkdir()
    for name in (".curves.png.4711.tmp", "checkpoints/.00000005.tmp/model.safetensors", ".model.old/x"):
        (tmp_path / name).write_text("half")
    fit(tmp_path, max_updates=2)
    assert not list(tmp_path.rglob(".*"))


def test_files_of_others_in_the_folder_stay(tmp_path):
    (tmp_path / ".venv.old").mkdir()
    others = [".venv.old/x", ".env.old", ".notes.tmp", ".average.tmp"]
    for name in others:
        (tmp_path / name).write_text("mine")
    fit(tmp_path, max_updates=2)
    assert [(tmp_path / name).read_text() for name in others] == ["mine"] * 4


def test_a_picture_that_cannot_be_drawn_does_not_fail_the_run(tmp_path):
    (tmp_path / "run/curves.png").mkdir(parents=True)
    config = resolve("agreement", ["data.rows=40", "train.max_updates=2", "model.embed_dim=16"])
    progress = Notes()
    assert train(config, tmp_path / "run", progress=progress) == tmp_path / "run/model"
    assert "there is no picture of the learning curves: " in progress.notes[-1]


def test_raw_files_cannot_change_under_a_prepared_corpus(tmp_path):
    overrides = ["data.rows=40", "train.max_updates=2", "model.embed_dim=16"]
    config = resolve("agreement", [*overrides, "data.path=raw"])
    Run.start(tmp_path, config, resume=True).prepare_store()
    Run.start(tmp_path, config, resume=True)
    with pytest.raises(ValueError, match="data was prepared from raw, not other; remove it, or choose"):
        Run.start(tmp_path, resolve("agreement", [*overrides, "data.path=other"]), resume=True)


def test_a_damaged_log_does_not_keep_the_best_model_from_being_written(tmp_path):
    fit(tmp_path, max_updates=12)
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[0] = b"x" * len(lines[0])
    log.write_bytes(b"\n".join(lines))
    fit(tmp_path, max_updates=18, final="best")
    assert (tmp_path / "model/model.safetensors").exists()


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_named(seed):
    with pytest.raises(ValueError, match=r"train\.seed"):
        resolve("agreement", [f"train.seed={seed}"])


def test_storage_that_fails_is_named_without_a_guess(tmp_path):
    denied = PermissionError(errno.EACCES, "Permission denied", "state.safetensors")
    with pytest.raises(TrainingError) as caught, translate_exceptions(400, lambda: "no checkpoint yet"):
        raise denied
    assert str(caught.value) == "state.safetensors: Permission denied; no checkpoint yet"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("speed/")]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}


def test_tensorboard_has_every_point_once_wherever_a_run_was_cut(tmp_path):
    changes = {"max_updates": 12, "final": "average", "average_last": 2}
    fit(tmp_path / "whole", **changes)
    expected = scalars(tmp_path / "whole")
    # after the last update, so that a run that goes on purges it
    assert [step for step, _ in expected["final/loss"]] == [13]
    cut = tmp_path / "cut"
    # before the first checkpoint, after it, and after the final points
    for loss in (5, 8):
        with pytest.raises(KeyboardInterrupt):
            fit(cut, Interrupting(loss), **changes)
    for _ in range(3):
        fit(cut, **changes)
    assert scalars(cut) == expected


class Interrupting(MajorityTask):
    """Ends as a kill would, without saving, in the given call of its loss."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._left = calls

    def loss(self, model, batch):
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        return super().loss(model, batch)


class Gone:
    """A terminal that went away."""

    def write(self, text):
        self.flush()

    def flush(self):
        raise OSError(errno.EIO, "Input/output error")

    def isatty(self):
        return False


@pytest.mark.parametrize("stderr", [None, Gone()])
def test_training_goes_on_without_stderr(tmp_path, monkeypatch, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    sizes = ["data.rows=60", "model.embed_dim=8", "model.ffn_dim=8", "model.num_heads=2"]
    times = ["train.max_updates=2", "train.log_every=1", "train.max_tokens=400", "train.device=cpu"]
    train(resolve("agreement", [*sizes, *times]), tmp_path / "run")
    assert (tmp_path / "run/model/model.safetensors").is_file()
    assert (tmp_path / "run/curves.png").read_bytes().startswith(b"\x89PNG")


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
    return ModelFolder.read(folder).model


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
        expected, found = ModelFolder.read(plain).model(*pair), model(*pair)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_windows_learn_and_the_run_resumes_without_its_source(plain, tmp_path):
    run = tmp_path / "run"
    source = shutil.copytree(plain, tmp_path / "source")
    model = fine_tuned(source, run, "train.lr=0.01", attention="Dec(MW)")
    gates = [weight for name, weight in model.named_parameters() if name.endswith("gate")]
    assert any(gate.abs().max() > 0 for gate in gates)
    shutil.rmtree(source)
    train(resolve(str(run), ["train.max_updates=5"]), run)
    assert ModelFolder.read(run).model.config.attention == "Dec(MW,Gate)"


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
        expected, found = ModelFolder.read(plain).model(*pair), model(*pair)
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
        return ModelFolder.read(tmp_path / name)

    first = trained("first", prepared("all", ["bad", "good", "mixed"]), *SMALL[1:])
    own = first.path / TOKENIZER
    start = {"start": str(tmp_path / "first")}
    second = trained("second", prepared("two", ["bad", "mixed"], tokenizer=own), *STILL, **start)
    assert second.labels == ("bad", "mixed")
    tokens = torch.tensor(first.encode(["a mixed film"], "text"))
    with torch.no_grad():
        torch.testing.assert_close(second.model(tokens), first.model(tokens)[:, [0, 2]])
    with pytest.raises(ValueError, match=r"has the label 'worse', but .* was trained with bad, good, mixed"):
        trained("third", prepared("others", ["bad", "good", "worse"], tokenizer=own), *STILL, **start)
