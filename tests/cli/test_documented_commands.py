"""The commands that the guides show, and mistakes in them, on trained models."""

import shlex
from pathlib import Path

import pytest

DOCUMENTED = [
    line
    for line in (Path(__file__).parents[2] / "docs/guides/evaluation.md").read_text().splitlines()
    if line.startswith("diffwindow ") and line != "diffwindow demo"
]


@pytest.mark.parametrize("line", DOCUMENTED)
def test_documented_commands_run(run, runs, tmp_path, monkeypatch, line):
    text = "the young doctor found the lamp ."
    (tmp_path / "runs").symlink_to(runs)
    (tmp_path / "text.txt").write_text(f"{text}\n")
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(line.partition(" < ")[0])
    code, out, err = run(*arguments, typed=text)
    assert code == 0, err
    assert out or (tmp_path / "translated.txt").read_text()


def test_mistakes_are_one_sentence_and_code_2(run, runs):
    for arguments in (
        ("evaluate", runs / "nowhere"),
        ("evaluate", runs / "plain", "--data", runs / "translator/data"),
        ("evaluate", runs / "plain", "--split", "tset"),
        ("evaluate", runs / "plain", "--device", "tpu7"),
        ("translate", runs / "plain"),
        ("translate", runs / "translator", "--nbest", "9"),
        ("translate", runs / "translator", "--input", runs / "nothing.txt"),
        ("generate", runs / "plain"),
        ("generate", runs / "language", "--temperature", "0", "--samples", "2"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("diffwindow: "), arguments
        assert err.count("\n") == 1, err
