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
