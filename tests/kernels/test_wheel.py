"""A wheel that carries compiled kernels: where it is installed, nothing is compiled."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from diffwindow.kernels import toolchain
from samples.kernel_marks import NEEDS_COMPILER

ROOT = Path(__file__).parents[2]
RUN = """
import torch
from diffwindow import WindowAttention
from diffwindow.kernels import build, doctor
x = torch.randn(1, 4, 8)
WindowAttention(8, num_heads=2, impl="cpu")(x, x, x, need_weights=False)
torch.set_num_threads(2)
print(doctor.status())
"""


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


# a build environment has hatchling alone
CLEAN = """
import sys
sys.modules |= dict.fromkeys(("torch", "numpy", "filelock", "jaxtyping", "pydantic"))
sys.path.insert(0, "src")
from diffwindow.kernels import toolchain
for name in {names}:
    getattr(toolchain, name)
"""


def test_a_wheel_is_built_without_any_package():
    used = set(re.findall(r"toolchain\.(\w+)", (ROOT / "hatch_build.py").read_text()))
    assert "compile_library" in used
    subprocess.run([sys.executable, "-I", "-c", CLEAN.format(names=used)], cwd=ROOT, check=True)


@pytest.mark.slow
@NEEDS_COMPILER
def test_a_wheel_with_kernels_needs_no_compiler(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    run(*build, DIFFWINDOW_BUILD_KERNELS="1")
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert len(libraries) == len(toolchain.wheel_levels())

    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", code).strip())
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), str(wheel))
    # after the installed package, the packages of the tests' environment
    (packages / "others.pth").write_text("\n".join([sysconfig.get_path("purelib"), *_borrowed()]))
    said = run(python, "-c", RUN, PATH="", CXX="", DIFFWINDOW_CACHE=str(tmp_path / "cache"))
    assert said.startswith(f"ready on 2 threads, from the package: {packages}/diffwindow/kernels/lib/window-")
    assert not (tmp_path / "cache").exists()


def _borrowed() -> list[str]:
    """Return further folders that hold this environment's packages."""
    return [path for path in sys.path if path.endswith("site-packages")]


@pytest.mark.slow
def test_a_plain_wheel_is_pure_python(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    run(*build, CXX="/no/such/compiler", DIFFWINDOW_BUILD_KERNELS="0")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
