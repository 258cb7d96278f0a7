"""The command line, called as people do."""

import io
import sys

import pytest

from diffwindow.cli import main
from samples.trained_runs import train_runs


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line; return its exit code, stdout and stderr."""

    def call(*arguments, typed=""):
        monkeypatch.setattr(sys, "argv", ["diffwindow", *map(str, arguments)])
        read = typed if isinstance(typed, bytes) else typed.encode("utf-8", "surrogateescape")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(read)))
        with pytest.raises(SystemExit) as done:
            main()
        return done.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Train a translator, two classifiers and a language model for a moment each."""
    return train_runs(tmp_path_factory.mktemp("runs"))
