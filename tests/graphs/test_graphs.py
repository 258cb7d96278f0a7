"""`torch.compile(fullgraph=True)` and `torch.export` of a WindowAttention equal eager."""

import subprocess
import sys
from pathlib import Path

import pytest


# in the default suite `test_transforms.py` compiles an attention, and `test_export.py` exports a model
@pytest.mark.slow
def test_graphs_equal_eager():
    script = Path(__file__).with_name("compiled.py")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "graphs equal eager\n"
