"""The folder for Hugging Face's `kernels` package: loaded as that package does, beside diffwindow itself."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

from diffwindow import Boundaries, ops
from diffwindow.kernels import build

ROOT = Path(__file__).parents[1]
VARIANT = "torch-stable-abi29-cpu-x86_64-linux"


def make_wheel(folder: Path) -> Path:
    """Make a wheel of the sources, with the library that this session runs on."""
    path = folder / "diffwindow-1-py3-none-manylinux_2_27_x86_64.whl"
    library = Path(build.load()._name)
    with zipfile.ZipFile(path, "w") as wheel:
        for source in (ROOT / "src").rglob("*.*"):
            if source.suffix in (".py", ".cpp", ".h"):
                wheel.write(source, source.relative_to(ROOT / "src"))
        wheel.write(library, f"diffwindow/kernels/lib/{library.name}")
    return path


def load(variant: Path):
    """Import a variant under the name of its metadata, from outside of the path."""
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_folder_holds_the_operations_and_their_kernels(tmp_path):
    command = [sys.executable, ROOT / "hub_kernels.py", make_wheel(tmp_path), "--out", tmp_path / "hub"]
    subprocess.run(command, check=True)
    loaded = load(tmp_path / "hub/build" / VARIANT)
    q, k, v, *pointers = (torch.randn(1, 2, 5, 4) for _ in range(7))
    ours = ops.window_attention(q, k, v, Boundaries(*pointers), impl="cpu")
    theirs = loaded.window_attention(q, k, v, loaded.Boundaries(*pointers), impl="cpu")
    assert torch.equal(ours, theirs)
    package = sys.modules[f"{loaded.__name__}.kernels.build"]
    assert Path(package.load()._name).is_relative_to(tmp_path)
    cuda = json.loads((tmp_path / "hub/build/torch-cuda/metadata.json").read_text())
    assert cuda["backend"] == {"type": "cuda"}


def test_a_wheel_without_libraries_is_an_error(tmp_path):
    wheel = tmp_path / "diffwindow-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(ROOT / "src/diffwindow/ops.py", "diffwindow/ops.py")
    command = [sys.executable, ROOT / "hub_kernels.py", wheel, "--out", tmp_path / "hub"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "build it with DIFFWINDOW_BUILD_KERNELS=1" in done.stderr
