"""Compiling the kernels: once, into a cache, safely, and what happens when it cannot be done."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffwindow.kernels import build, doctor

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")

CALL = """
import warnings
import torch
from diffwindow import ops
x = torch.ones(1, 1, 4, 8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        ops.multiplicative_window_attention(x, x, x, ops.Boundaries(x, x, x, x))
print(ops.choose_impl("auto", x), *[w.message for w in caught if "reference" in str(w.message)], sep="|")
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def forget():
    """Let the library be looked for again, before and after."""
    build.load.cache_clear()
    build.why_not.cache_clear()
    yield
    build.load.cache_clear()
    build.why_not.cache_clear()


@pytest.mark.slow
@needs_compiler
def test_processes_that_start_at_once_compile_once(tmp_path):
    environment = {**os.environ, "DIFFWINDOW_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", CALL]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    results = [process.communicate(timeout=240) for process in started]
    assert [out for out, _ in results] == ["cpu\n"] * 3, results
    assert sum("compiling the CPU kernels" in error for _, error in results) == 1
    assert len(list(tmp_path.glob("kernels/*.so"))) == 1
    assert sorted(path.suffix for path in tmp_path.glob("kernels/*")) == [".lock", ".so"]


@needs_compiler
def test_a_damaged_library_is_built_again(tmp_path, monkeypatch, forget):
    monkeypatch.setenv("DIFFWINDOW_CACHE", str(tmp_path))
    path = build.library_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cut short")
    good = shutil.copy(_built_elsewhere(), tmp_path / "good.so")
    monkeypatch.setattr(build, "_compile", lambda found, path, flags: shutil.copy(good, path))
    assert build.load().dw_forward is not None


def _built_elsewhere() -> Path:
    """Give the library of the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DIFFWINDOW_CACHE")
        path = build.library_path()
        if not path.exists():
            build.build(path)
    return path


def test_without_a_compiler_the_reference_serves_with_one_warning(tmp_path):
    done = python(CALL, CXX="/no/such/compiler", DIFFWINDOW_CACHE=str(tmp_path))
    impl, *warnings = done.stdout.strip().split("|")
    assert impl == "reference"
    assert len(warnings) == 1
    assert "install g++" in warnings[0]


def test_require_makes_a_missing_compiler_an_error(tmp_path):
    environment = {"CXX": "/no/such/compiler", "DIFFWINDOW_CACHE": str(tmp_path)}
    done = python(CALL, DIFFWINDOW_KERNELS="require", **environment)
    assert done.returncode == 1
    assert "no C++ compiler was found; install g++" in done.stderr


def test_off_forbids_them_without_a_warning():
    done = python(CALL, DIFFWINDOW_KERNELS="off")
    assert done.stdout == "reference\n", done.stderr


def test_an_unknown_mode_is_an_error(monkeypatch):
    monkeypatch.setenv("DIFFWINDOW_KERNELS", "perhaps")
    with pytest.raises(ValueError, match="DIFFWINDOW_KERNELS='perhaps' is not one of auto, require, off"):
        build.mode()


@needs_compiler
def test_sources_that_do_not_compile_are_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "broken.cpp").write_text("int f( {\n")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "csrc")
    with pytest.raises(build.KernelsUnavailableError, match=r"compiling the kernels failed .*broken.cpp"):
        build.build(tmp_path / "cache" / "broken.so")


def test_the_library_is_named_after_sources_and_torch(monkeypatch):
    name = build.library_path()
    assert build.library_path() == name
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert build.library_path() != name


@needs_compiler
def test_only_one_openmp_runtime_is_loaded():
    code = CALL + "print({l.split()[-1] for l in open('/proc/self/maps') if 'gomp' in l or 'iomp' in l})"
    loaded = python(code).stdout.splitlines()[-1]
    assert loaded.count(".so") == 1, loaded


def test_doctor_says_what_a_report_needs():
    report = doctor.report()
    assert report["torch"] == torch.__version__
    assert report["CPU kernels"].startswith(("ready: ", "unavailable: "))
    assert set(report) >= {"compiler", "processor", "python", "threads"}
