"""The command as a whole: its version, its help, and what they load."""

import subprocess
import sys

from typer.testing import CliRunner

import diffwindow
from diffwindow.cli import app


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output == f"diffwindow {diffwindow.__version__}\n"
    assert result.exit_code == 0


def test_help_loads_nothing_heavy():
    code = "import sys; from diffwindow.cli import app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not {"torch", "numpy", "matplotlib", "pydantic", "tokenizers"} & set(loaded.split())
