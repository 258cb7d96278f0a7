"""The verbs `train`, `average` and `list`, from the command line to the files."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from diffwindow.cli import main
from diffwindow.files import lock_folder
from diffwindow.models.classifier import Classifier
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.translator import Translator
from diffwindow.models.weights import verify
from diffwindow.training import run as train_module
from diffwindow.training.records import read_records

SMALL = [
    "data.rows=300",
    "model.embed_dim=16",
    "model.ffn_dim=16",
    "model.num_heads=2",
    "train.max_tokens=600",
]
SHORT = ["train.max_updates=6", "train.log_every=2", "train.valid_every=3", "train.save_every=2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder of its own, without data from outside and without drawing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIFFWINDOW_DATA", raising=False)
    monkeypatch.setattr(train_module, "draw_curves", lambda records, path: None)


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        """Give the exit code and what was said on stderr."""
        monkeypatch.setattr(sys, "argv", ["diffwindow", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr().err

    return run


def test_a_classifier_learns(call):
    words = [
        "model.dropout=0",
        "train.lr=0.01",
        "train.warmup=10",
        "train.log_every=20",
        "train.valid_every=20",
    ]
    sizes = [*SMALL, "data.rows=800", "train.max_tokens=2000", "train.max_updates=80"]
    code, said = call("train", "agreement", "--attention", "Enc(AW)", "--out", "run", *sizes, *words)
    assert code == 0, said
    assert "left" in said
    records = read_records(Path("run/log.jsonl"))
    # labels are balanced: a model that learned nothing is right half of the time
    assert records[-1]["kind"] == "final"
    assert records[-1]["accuracy"] > 0.75
    model = Classifier.from_pretrained("run/model")
    assert model.config.attention == "Enc(AW)"
    assert json.loads(Path("run/run.json").read_text())["train"]["max_updates"] == 80
    assert json.loads(Path("run/origin.json").read_text())["versions"]["torch"] == torch.__version__


def test_a_translator_learns(call):
    words = [
        "train.warmup=10",
        "train.lr=0.01",
        "train.log_every=10",
        "train.valid_every=20",
        "train.save_every=10",
    ]
    code, said = call(
        "train",
        "reorder",
        "--attention",
        "Enc(AW)-Cr(AW,Seg)-Dec(MW)",
        "--out",
        "run",
        *SMALL,
        "train.max_updates=40",
        "train.average_last=2",
        *words,
    )
    assert code == 0, said
    losses = [record["loss"] for record in read_records(Path("run/log.jsonl")) if record["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    assert "average of updates 30, 40" in said
    Translator.from_pretrained("run/model")


def test_a_language_model_learns(call):
    Path("text").write_text("the cat sees the dog\nthe dog sees the cat\n" * 60)
    assert call("prepare", "--text", "text", "--out", "store", "--vocab-size", "300")[0] == 0
    # a corpus without a validation split
    words = [
        *SMALL[1:4],
        "task.block_size=8",
        "train.max_tokens=256",
        "train.final=last",
        "train.valid_every=null",
    ]
    fast = ["train.max_updates=30", "train.lr=0.01", "train.warmup=5", "train.log_every=10"]
    code, said = call(
        "train", "wikitext2", "--data", "store", "--attention", "Dec(MW)", "--out", "run", *words, *fast
    )
    assert code == 0, said
    losses = [record["loss"] for record in read_records(Path("run/log.jsonl"))]
    assert losses[-1] < 0.8 * losses[0]
    LanguageModel.from_pretrained("run/model")


@pytest.fixture
def run(call):
    code, said = call("train", "agreement", "--out", "run", *SMALL, *SHORT)
    assert code == 0, said
    return Path("run")


def test_a_finished_run_is_found_finished(call, run):
    before = (run / "model/model.safetensors").read_bytes()
    code, said = call("train", "agreement", "--out", run, *SMALL, *SHORT)
    assert code == 0
    assert "resuming from update 6" in said
    assert (run / "model/model.safetensors").read_bytes() == before


def test_a_run_folder_is_enough_to_go_on(call, run):
    code, said = call("train", run, "train.max_updates=8")
    assert code == 0, said
    assert "done after 8 updates" in said


def test_a_run_starts_from_another(call, run):
    words = ["train", "agreement", *SMALL[:1], *SMALL[4:], *SHORT, "--from", run, "--attention", "Enc(AW)"]
    code, said = call(*words, "--out", "tuned")
    assert code == 0, said
    assert Classifier.from_pretrained("tuned/model").config.embed_dim == 16
    Path("mine.yaml").write_text("task: {kind: classification}\ndata: {path: none}\ntrain: {max_updates: 9}")
    code, said = call("train", "mine.yaml", "--out", "mine")
    assert (code, "data.path=none is not a prepared store" in said) == (2, True)


def test_other_settings_are_refused(call, run):
    code, said = call("train", "agreement", "--out", run, *SMALL, *SHORT, "train.lr=0.5")
    assert code == 2
    assert "run was started with train.lr=0.002, not 0.5; choose another folder" in said


def test_a_run_that_failed_at_once_does_not_keep_its_folder(call):
    code, said = call("train", "agreement", "--out", "run", *SMALL, *SHORT, "train.watch=bleu")
    assert (code, "train.watch=bleu" in said) == (2, True)
    code, said = call("train", "agreement", "--out", "run", *SMALL, *SHORT, "data.rows=99")
    assert (code, "run was started with data.rows=300" in said) == (2, True)
    assert call("train", "agreement", "--out", "run", *SMALL, *SHORT)[0] == 0


def test_nor_does_one_that_failed_on_a_corpus_of_its_own(call):
    Path("text").write_text("the cat sees the dog\n" * 60)
    text = ["--text", "text", "--vocab-size", "300"]
    assert call("prepare", *text, "--out", "one")[0] == 0
    assert call("prepare", *text, "--valid", "text", "--out", "two")[0] == 0
    settings = [*SMALL[1:4], *SHORT, "train.max_tokens=256"]
    code, said = call("train", "wikitext2", "--data", "one", "--out", "run", *settings)
    assert (code, "has no split 'valid'" in said) == (2, True)
    assert not Path("run").exists()
    code, said = call("train", "wikitext2", "--data", "two", "--out", "run", *settings)
    assert code == 0, said


def test_a_finished_run_without_its_checkpoints_is_still_a_run(call, run):
    shutil.rmtree(run / "checkpoints")
    code, said = call("train", "agreement", "--out", run, *SMALL, *SHORT, "train.lr=0.5")
    assert (code, "run was started with train.lr=0.002" in said) == (2, True)
    code, said = call("train", "agreement", "--out", run, "--resume", "never", *SMALL, *SHORT)
    assert (code, "run holds a run" in said) == (2, True)


def test_never_resuming_refuses_a_run(call, run):
    code, said = call("train", "agreement", "--out", run, "--resume", "never", *SMALL, *SHORT)
    assert code == 2
    assert "run holds a run; choose another folder" in said


def test_another_vocabulary_is_refused(call, run):
    assert call("prepare", "agreement", "--rows", "40", "--seed", "9", "--out", "other")[0] == 0
    code, said = call("train", "agreement", "--out", run, "--data", "other", *SMALL, *SHORT)
    assert code == 2
    assert "has another vocabulary than the corpus that run was trained on" in said


def test_the_average_of_a_run(call, run):
    code, _ = call("average", run, "--last", "2", "--out", "mean")
    assert code == 0
    mean, four, six = (
        Classifier.from_pretrained(folder).state_dict()
        for folder in ("mean", "run/checkpoints/00000004", "run/checkpoints/00000006")
    )
    for name in mean:
        torch.testing.assert_close(mean[name], (four[name] + six[name]) / 2)
    assert (Path("mean") / "tokenizer.json").exists()


def test_an_average_leaves_the_final_model_and_other_folders_alone(call, run):
    before = Path("run/model/checkpoint.json").read_bytes()
    assert call("average", run, "--last", "2")[0] == 0
    assert verify(Path("run/average")) == {"updates": [4, 6]}
    assert Path("run/model/checkpoint.json").read_bytes() == before
    Path("thesis").mkdir()
    Path("thesis/thesis.tex").write_text("mine")
    code, said = call("average", run, "--last", "2", "--out", "thesis")
    assert (code, "thesis holds something other" in said) == (2, True)
    assert Path("thesis/thesis.tex").exists()


def test_two_runs_do_not_share_a_folder(call, run):
    with lock_folder(Path(run)):
        code, said = call("train", run)
    assert (code, "another process is at work in run" in said) == (2, True)


def test_more_checkpoints_than_there_are(call, run):
    code, said = call("average", run, "--last", "9")
    assert code == 2
    assert "run has 3 checkpoints, not 9" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agreement", "train.max_update=5"], "did you mean 'train.max_updates'"),
        (["agrement"], "agreement"),
        (["sst2"], "--data"),
        (["sst2", "--data", "nowhere"], "--data nowhere: there is no such folder"),
        (["agreement", "--attention", "Cr(AW)"], "a role that this model does not have"),
        (["agreement", "train.precision=fp16", "train.device=cpu"], "needs a GPU"),
        (["agreement", "train.device=abacus"], "train.device=abacus"),
        (["agreement", "task.block_size=5", *SMALL], "block_size=5 is not an option of classification"),
    ],
)
def test_wrong_use_is_a_sentence_and_code_2(call, words, said):
    code, err = call("train", *words, "--out", "run")
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_a_store_that_cannot_be_used_is_refused(call):
    assert call("prepare", "reorder", "--rows", "40", "--out", "store")[0] == 0
    Path("run").mkdir()
    Path("run/notes.txt").touch()
    code, said = call("train", "agreement", "--data", "store", "--out", "run")
    assert code == 2
    assert "store is for translation, but run is for classification" in said
    code, said = call("train", "reorder", "--data", "store", "--out", "run", "train.max_tokens=2")
    assert (code, "no training example fits train.max_tokens=2; raise it" in said) == (2, True)
    # a folder of other files stays as it was
    assert [path.name for path in Path("run").iterdir()] == ["notes.txt"]


def test_a_ruined_run_is_a_sentence_and_code_1(call):
    code, said = call("train", "agreement", "--out", "run", *SMALL, *SHORT, "train.max_loss=0.0001")
    assert code == 1
    assert "the loss of update 1 is" in said
    assert "Traceback" not in said


def test_virtual_gpus_accumulate(call):
    code, _ = call("train", "agreement", "--out", "run", "--virtual-gpus", "3", *SMALL, *SHORT)
    assert code == 0
    assert json.loads(Path("run/run.json").read_text())["train"]["accumulate"] == 3


def test_list_shows_presets_corpora_and_tables(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["diffwindow", "list"])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert "wmt14-en-de" in out
    assert "200,000 updates of 8 x 4,096 tokens" in out
    assert out.index("Presets") < out.index("Corpora") < out.index("50,000 reviews") < out.index("\ntable1 ")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_ends_with_its_own_code(number, code):
    words = ["train", "agreement", "--out", "run", *SMALL, "train.max_updates=100000", "train.save_every=2"]
    child = os.fork()
    if not child:
        sys.argv = ["diffwindow", *words]
        try:
            main()
        except SystemExit as ended:
            os._exit(ended.code)
        os._exit(99)
    while not list(Path("run/checkpoints").glob("0*")):
        time.sleep(0.02)
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    newest = max(Path("run/checkpoints").glob("0*"))
    assert (newest / "checkpoint.json").exists()
