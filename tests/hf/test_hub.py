"""Push and pull through a hub on this machine: the same model, a card from the run, damage refused."""

import json
import os
import subprocess
import sys

import pytest
import torch
from stub_hub import stub_hub

from diffwindow import Classifier, hf
from diffwindow.hf.hub import card_text
from diffwindow.models.weights import ModelFileError
from diffwindow.training.overrides import resolve
from diffwindow.training.run import train

PUSH = """
import sys
from diffwindow.cli import main
sys.argv = ["diffwindow", "push", sys.argv[1], "me/windows", "--scores", sys.argv[2]]
main()
"""
# pull each revision that is named, into a folder of its own, and print the logits or the error
PULL = """
import json, sys, tempfile, torch
from diffwindow import Classifier, load
from diffwindow.hf import download_model
found = []
for revision in sys.argv[1:]:
    try:
        folder = download_model("me/windows", revision=revision, cache_dir=tempfile.mkdtemp())
        load(folder, device="cpu").predict(["a text"])
        found.append(Classifier.from_pretrained(folder)(torch.tensor([[5, 6, 7, 8]])).tolist())
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, agreement_store):
    """A classifier with windows, trained for two updates."""
    folder = tmp_path_factory.mktemp("run")
    settings = {
        "attention": "Enc(AW)", "data.path": str(agreement_store.folder), "train.max_updates": 2,
        "train.valid_every": 2, "train.save_every": 2, "model.embed_dim": 16, "model.ffn_dim": 16,
        "model.num_heads": 2, "train.device": "cpu",
    }  # fmt: skip
    train(resolve("agreement", (), settings), folder)
    return folder


@pytest.fixture(scope="module")
def evaluation(run):
    """What `evaluate --json` prints of the run."""
    command = [sys.executable, "-m", "diffwindow", "evaluate", run, "--split", "valid", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def python(code, *arguments, endpoint, home):
    environment = os.environ | {
        "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_none", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_push_and_pull(run, evaluation, tmp_path):
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps(evaluation))
    with stub_hub() as (endpoint, repositories):
        pushed = python(PUSH, run, scores, endpoint=endpoint, home=tmp_path / "pusher")
        assert pushed.returncode == 0, pushed.stderr
        commit, files = repositories["me/windows"][-1]
        names = {"config.json", "model.safetensors", "tokenizer.json", "task.json", "checkpoint.json"}
        assert files.keys() - {".gitattributes"} == names | {"README.md", "windows.png"}
        card = files["README.md"].decode()
        for text in (
            "pipeline_tag: text-classification", "`Enc(AW)`",
            f"| metrics.accuracy.total | {evaluation['metrics']['accuracy']['total']} |",
            "| split | valid |", "| train.max_updates | 2 |", "(windows.png)",
            "| corpus | agreement |", 'load(download_model("me/windows"))',
        ):  # fmt: skip
            assert text in card, text
        assert str(run) not in card
        assert str(run.parent) not in card
        assert "data.path" not in card
        assert files["windows.png"].startswith(b"\x89PNG")
        weights = files["model.safetensors"]
        damaged = files | {"model.safetensors": weights[:-1] + bytes([weights[-1] ^ 1])}
        repositories["me/windows"].append(("d" * 40, damaged))
        pulled = python(PULL, commit, "d" * 40, "0" * 40, endpoint=endpoint, home=tmp_path / "puller")
    assert pulled.returncode == 0, pulled.stderr
    good, bad, unknown = json.loads(pulled.stdout)
    expected = Classifier.from_pretrained(run / "model")(torch.tensor([[5, 6, 7, 8]])).tolist()
    assert good[0] == pytest.approx(expected[0], abs=1e-6)
    assert "model.safetensors is damaged" in bad
    assert unknown.startswith("RevisionNotFoundError") or "404" in unknown


@pytest.mark.usefixtures("unchecked")
def test_scores_of_another_model_are_refused(run, evaluation, tmp_path):
    model = Classifier.from_pretrained(run / "model")
    assert "## Scores" in card_text(model, "me/windows", scores=evaluation)
    with torch.no_grad():
        next(model.parameters()).flatten()[-1] += 1
    with pytest.raises(ValueError, match=r"the scores are of another model, of the run run.*; evaluate the"):
        card_text(model, "me/windows", scores=evaluation)
    # also before anything is sent to the hub
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({"metrics": evaluation["metrics"]}))
    with pytest.raises(ValueError, match="do not say which model they are of; evaluate the model again"):
        hf.push_run(run, "me/windows", scores=scores)
    for wrong, message in (
        ({"picture": "no"}, "picture='no' is not a bool"),
        ({"scores": 3}, "scores=3 is not what an evaluation prints"),
        ({"repo_id": None}, "repo_id=None is not a str; pass the name on the hub"),
    ):
        with pytest.raises(TypeError, match=message):
            card_text(model, **{"repo_id": "me/windows"} | wrong)


def test_a_card_has_no_local_paths(run, evaluation, tmp_path):
    """Neither of the run that training started from, nor of what was evaluated and compared."""
    settings = json.loads((run / "run.json").read_text()) | {"start": "/home/me/runs/base"}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    scores = evaluation | {
        "corpus": ["/home/me/a.txt", "my, data/c.txt"],
        "against": {"run": "/home/me/runs/other", "p": "a|b"},
        "by_file": {"/home/me/d.txt": [["/home/me/e.txt"]]},
    }
    card = card_text(Classifier.from_pretrained(run / "model"), "me/it", run=tmp_path, scores=scores)
    for row in (
        "| start | base |",
        "| corpus | a.txt, c.txt |",
        "| against.run | other |",
        r"| against.p | a\|b |",
        "| by_file.d.txt | e.txt |",
    ):
        assert row in card
    assert "/home" not in card


def test_a_damaged_config_is_named(tmp_path):
    """Also in a folder without a manifest, which would have told."""
    (tmp_path / "config.json").write_text('{"model": "classifier", ')
    with pytest.raises(ModelFileError, match=r"config.json is damaged: Expecting property name"):
        Classifier.from_pretrained(tmp_path)
    with pytest.raises(ModelFileError, match=r"config.json is damaged: Expecting property name"):
        hf.push_run(tmp_path, "me/windows")
