"""The verbs `runs`, `export` and `push`, and what the shell completes."""

import json
import os
import shutil
import subprocess
import sys

import pytest


def test_runs_are_listed_with_state_and_score(run, runs, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "deep/plain", ignore=shutil.ignore_patterns("model"))
    shutil.copytree(runs / "windows", tmp_path / "windows")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    code, out, _ = run("runs", tmp_path)
    rows = [line.split()[1:4] for line in out.splitlines()]
    assert (code, rows[1][0]) == (0, "damaged")
    assert rows[2:] == [["Global", "unfinished", "3"], ["Enc(AW)", "done", "3"]]
    code, out, _ = run("runs", tmp_path, "--json")
    listed = json.loads(out)["runs"]
    assert (listed[2]["max_updates"], listed[2]["metric"]) == (3, "accuracy")
    assert 0 <= listed[2]["score"] <= 100


def test_two_runs_show_how_their_configs_differ(run, runs):
    code, out, _ = run("runs", runs / "plain", runs / "windows")
    assert code == 0
    assert [line.split() for line in out.splitlines()[4:]] == [
        ["setting", str(runs / "plain"), str(runs / "windows")],
        ["attention", "Global", "Enc(AW)"],
    ]
    code, out, _ = run("runs", runs / "plain", runs / "plain")
    assert (code, out.splitlines()[-1]) == (0, "the configs are the same")
    # a folder without runs is named, also beside another
    code, _, err = run("runs", runs / "plain", runs / "text")
    assert (code, err) == (
        2,
        f"diffwindow: there is no run in {runs / 'text'}; `diffwindow train` makes one\n",
    )


COMPLETE = """
import sys
from diffwindow.cli import main
sys.argv = ["diffwindow"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("train agr", ["agreement", "agreement-trees"]),
        ("evaluate --conf", ["--confusion"]),
        ("reproduce table5", ["table5", "table5-t2t"]),
    ],
)
def test_the_shell_completes_verbs_names_and_options_without_torch(words, names):
    words = f"diffwindow {words}"
    asked = {
        "_DIFFWINDOW_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = [sys.executable, "-c", COMPLETE]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names


def test_only_translators_are_exported(run, runs, tmp_path):
    code, out, err = run("export", runs / "plain", "--out", tmp_path / "onnx")
    assert (code, out) == (2, "")
    assert "holds a classifier, which does not export" in err
    assert not (tmp_path / "onnx").exists()


@pytest.mark.slow
def test_a_translator_is_exported_with_its_tokenizer(run, runs, tmp_path):
    code, out, _ = run("export", runs / "translator", "--out", tmp_path / "onnx")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        str(tmp_path / "onnx" / name) for name in ("encoder.onnx", "step.onnx", "tokenizer.json")
    ]


def test_a_file_is_no_folder_for_an_export(run, runs, tmp_path):
    (tmp_path / "onnx").touch()
    code, out, err = run("export", runs / "translator", "--out", tmp_path / "onnx")
    assert (code, out) == (2, "")
    assert f"{tmp_path / 'onnx'} is not a folder; choose another place to write" in err


def test_a_hub_that_does_not_answer_is_one_sentence(run, runs, monkeypatch):
    errors = pytest.importorskip("huggingface_hub.errors")
    from diffwindow.hf import hub

    def refuse(*_, **__):
        raise errors.HTTPError("Connection refused")

    monkeypatch.setattr(hub, "push_run", refuse)
    code, out, err = run("push", runs / "plain", "user/name")
    assert (code, out) == (2, "")
    assert err.startswith(f"diffwindow: {runs / 'plain'} was not pushed to user/name: Connection refused; ")


def test_the_command_has_its_name_under_python_m_too():
    # completion is installed for this name
    command = [sys.executable, "-m", "diffwindow", "export"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split()[:3]) == (2, ["Usage:", "diffwindow", "export"])
