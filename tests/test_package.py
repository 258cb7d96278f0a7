"""What importing the package loads, and what it offers."""

import subprocess
import sys

import diffwindow

HEAVY = ["transformers", "starlette", "uvicorn", "onnx", "onnxruntime", "onnxscript", "triton", "datasets"]


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_loads_no_optional_package_and_not_torch_either():
    loaded = run("import sys, diffwindow; print(*(name.split('.')[0] for name in sys.modules))").split()
    assert not {*HEAVY, "torch", "matplotlib", "beartype"} & set(loaded)


def test_using_the_attention_loads_no_optional_package():
    # torch itself looks for some of them; what counts is what we add to it.
    code = (
        "import sys, torch; before = set(sys.modules); import diffwindow; diffwindow.WindowAttention(8, 2);"
    )
    loaded = run(code + "print(*(name.split('.')[0] for name in set(sys.modules) - before))").split()
    assert not {*HEAVY, "matplotlib", "beartype"} & set(loaded)


def test_every_public_name_is_there():
    for name in diffwindow.__all__:
        assert getattr(diffwindow, name).__name__ == name
        assert name in dir(diffwindow)
