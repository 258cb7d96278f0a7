"""The command as a whole: its version, its help, and what they load."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import diffwindow
from diffwindow.cli import app


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output == f"diffwindow {diffwindow.__version__}\n"
    assert result.exit_code == 0


HELP = """
import sys
from diffwindow.cli import main
sys.argv = ["diffwindow", "--help"]
try:
    main()
except SystemExit:
    assert not {"torch", "numpy", "matplotlib", "pydantic", "tokenizers"} & set(sys.modules)
"""


def test_help_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "describe" in done.stdout


WRONG = """
import sys
from diffwindow.cli import main
sys.argv = ["diffwindow", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert end.code == 2
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "agrement"], "did you mean 'agreement'?"),
        (["train", "agreement", "train.max_update=3"], "did you mean 'train.max_updates'?"),
        (["train", "agreement", "train"], "is not key=value"),
        (["train", "sst2", "--data", "nowhere"], "--data nowhere: there is no such folder"),
        (["train", "sst2", "--sed", "3"], "No such option"),
        (["evaluate", "nowhere"], "there is no folder nowhere"),
        (["average", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_a_wrong_command_fails_before_torch_is_imported(words, message):
    command = [sys.executable, "-c", WRONG, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
    )
    assert done.returncode == 0, done.stderr
    assert message in done.stderr
