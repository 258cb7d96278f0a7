"""Compiling the kernels: once, into a cache, safely, and what happens when it cannot be done."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diffwindow.kernels import build, doctor, toolchain
from samples.kernel_marks import NEEDS_COMPILER

LEVEL = toolchain.levels()[0]

CALL = """
import warnings
import torch
from diffwindow import ops
x = torch.ones(1, 1, 4, 8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        ops.window_attention(x, x, x, ops.Boundaries(x, x, x, x))
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
@NEEDS_COMPILER
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


@pytest.fixture
def good() -> Path:
    """Return the library of the user's own cache."""
    return Path(build.load()._name)


@pytest.fixture
def cache(tmp_path, good, monkeypatch, forget) -> Path:
    """Return an empty cache of our own, with a compiler that quickly writes a good library."""
    monkeypatch.setenv("DIFFWINDOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "compile_library", lambda target, flags: shutil.copy(good, target))
    return build.cache_dir()


@pytest.fixture
def no_compiler(monkeypatch):
    """Fail where anything would be compiled."""
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setattr(build, "compile_library", toolchain.compile_library)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_bit(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


@NEEDS_COMPILER
@pytest.mark.parametrize("damage", [cut, flip_a_bit, lambda _: b""])
def test_a_damaged_library_is_not_loaded_but_built_again(cache, damage):
    path = build.build(cache, LEVEL)
    path.write_bytes(damage(path.read_bytes()))
    assert build.load()._name == str(path)
    assert [path] == list(build.intact(cache, toolchain.stem(LEVEL)))


@NEEDS_COMPILER
def test_a_library_that_cannot_be_loaded_is_built_again(cache):
    cache.mkdir(parents=True, mode=0o700)
    foreign = cache / "foreign"
    foreign.write_bytes(b"for another system")
    build.keep(foreign, cache, toolchain.stem(LEVEL))
    assert build.load().dw_forward is not None


@NEEDS_COMPILER
def test_folders_and_files_are_open_to_their_user_only(cache):
    old = os.umask(0)
    try:
        path = build.build(cache, LEVEL)
    finally:
        os.umask(old)
    assert [folder.stat().st_mode & 0o777 for folder in (cache, cache.parent)] == [0o700, 0o700]
    assert path.stat().st_mode & 0o777 == 0o644


@NEEDS_COMPILER
@pytest.mark.parametrize("place", ["kernels", "."], ids=["the folder", "the folder above"])
def test_a_library_that_another_user_could_have_planted_is_not_loaded(cache, place):
    build.build(cache, LEVEL)
    (cache.parent / place).chmod(0o777)
    with pytest.raises(build.KernelsUnavailableError, match=r"others can write to .*chmod go-w"):
        build.load()


@NEEDS_COMPILER
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", ["folder", "file"])
def test_a_library_of_another_user_is_not_loaded(cache, place, no_compiler):
    path = build.keep(_copy_of(cache), cache, toolchain.stem(LEVEL))
    os.chown(cache if place == "folder" else path, 12345, 12345)
    with pytest.raises(build.KernelsUnavailableError, match=r"belongs to another user|no C\+\+ compiler"):
        build.load()


@NEEDS_COMPILER
def test_links_in_the_cache_are_not_followed(cache, good, tmp_path, no_compiler):
    cache.mkdir(parents=True, mode=0o700)
    (cache / toolchain.file_name(toolchain.stem(LEVEL), toolchain.digest_of(good))).symlink_to(good)
    with pytest.raises(build.KernelsUnavailableError, match=r"no C\+\+ compiler"):
        build.load()


@NEEDS_COMPILER
def test_a_planted_lock_does_not_truncate_its_target(cache, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("not yours")
    cache.mkdir(parents=True, mode=0o700)
    (cache / f"{toolchain.stem(LEVEL)}.lock").symlink_to(precious)
    with pytest.raises(build.KernelsUnavailableError, match="lock"):
        build.load()
    assert precious.read_text() == "not yours"


@NEEDS_COMPILER
def test_a_linked_folder_is_refused(cache, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.parent.mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(build.KernelsUnavailableError, match="kernels is a link"):
        build.load()


@NEEDS_COMPILER
def test_a_read_only_cache_falls_back(cache, monkeypatch):
    cache.mkdir(parents=True, mode=0o700)

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Read-only file system", str(folder))

    monkeypatch.setattr(build, "make_private", refuse)
    _check_fallback(monkeypatch, "Read-only file system")


def test_a_cache_in_the_place_of_a_file_falls_back(tmp_path, monkeypatch, forget):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIFFWINDOW_CACHE", str(tmp_path / "file"))
    _check_fallback(monkeypatch, "set DIFFWINDOW_CACHE to a folder")


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/bin/true", "reported success but wrote no .o file"),
        ("/bin/false", "compiling the kernels failed"),
        ("g++ 'unbalanced", "cannot be read"),
        ("/no/such/compiler", "install g"),
    ],
)
def test_a_compiler_that_does_not_compile_falls_back(compiler, reason, tmp_path, monkeypatch, forget):
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("DIFFWINDOW_CACHE", str(tmp_path))
    _check_fallback(monkeypatch, reason)


def _check_fallback(monkeypatch, reason: str) -> None:
    """Expect the reference with one warning by default, and an error where kernels are required."""
    with pytest.warns(UserWarning, match="slower reference"):
        said = build.why_not()
    assert reason in said
    # warnings are errors here, so a second one would raise
    assert build.why_not() == said
    build.why_not.cache_clear()
    monkeypatch.setenv("DIFFWINDOW_KERNELS", "require")
    with pytest.raises(build.KernelsUnavailableError):
        build.why_not()


@NEEDS_COMPILER
def test_a_cached_library_outlives_compiler_torch_and_system(cache, monkeypatch, no_compiler):
    path = build.keep(_copy_of(cache), cache, toolchain.stem(LEVEL))
    monkeypatch.setattr(torch, "__version__", "9.9")
    monkeypatch.setattr(platform, "platform", lambda: "another kernel")
    monkeypatch.setattr(toolchain, "features", lambda: LEVEL.features | {"a_new_mitigation"})
    assert build.load()._name == str(path)


def _copy_of(cache: Path) -> Path:
    build.load.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DIFFWINDOW_CACHE")
        good = build.load()._name
    build.load.cache_clear()
    cache.mkdir(parents=True, mode=0o700)
    return Path(shutil.copy(good, cache / "copy"))


def test_the_name_follows_flags_and_sources(tmp_path, monkeypatch):
    names = {toolchain.stem(level) for level in (*toolchain.X86_LEVELS, toolchain.Level("other"))}
    assert len(names) == 3
    shutil.copytree(toolchain.SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(toolchain, "SOURCES", tmp_path / "csrc")
    assert toolchain.stem(LEVEL) == toolchain.stem(LEVEL)
    (tmp_path / "csrc" / "vec.h").write_text("// changed")
    assert toolchain.stem(LEVEL) not in names


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (toolchain.X86_LEVELS[0].features | {"amx_bf16"}, ["x86-64-v4", "x86-64-v3", "x86_64"]),
        (toolchain.X86_LEVELS[1].features, ["x86-64-v3", "x86_64"]),
        (toolchain.X86_LEVELS[0].features - {"fma"}, ["x86_64"]),
    ],
)
def test_levels_need_every_feature(features, expected, monkeypatch):
    monkeypatch.setattr(toolchain, "features", lambda: frozenset(features))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert [level.name for level in toolchain.levels()] == expected


def test_cxx_is_read_as_people_write_it(tmp_path, monkeypatch):
    for name in ("ccache", "my compiler"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "ccache g++ -O2")
    assert toolchain.compiler() == [str(tmp_path / "ccache"), "g++", "-O2"]
    monkeypatch.setenv("CXX", f"'{tmp_path}/my compiler' -pipe")
    assert toolchain.compiler() == [f"{tmp_path}/my compiler", "-pipe"]
    monkeypatch.setenv("CXX", " ")
    assert toolchain.compiler() is None


def test_without_a_compiler_the_reference_serves_with_one_warning(tmp_path):
    done = python(CALL, CXX="/no/such/compiler", DIFFWINDOW_CACHE=str(tmp_path))
    impl, *warnings = done.stdout.strip().split("|")
    assert impl == "reference"
    assert len(warnings) == 1
    assert "install g++" in warnings[0]


def test_off_forbids_them_without_a_warning():
    done = python(CALL, DIFFWINDOW_KERNELS="off")
    assert done.stdout == "reference\n", done.stderr


def test_an_unknown_mode_is_an_error(monkeypatch):
    monkeypatch.setenv("DIFFWINDOW_KERNELS", "perhaps")
    with pytest.raises(ValueError, match="DIFFWINDOW_KERNELS='perhaps' is not one of auto, require, off"):
        build.mode()


@NEEDS_COMPILER
def test_sources_that_do_not_compile_are_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "broken.cpp").write_text("int f( {\n")
    monkeypatch.setattr(toolchain, "SOURCES", tmp_path / "csrc")
    with pytest.raises(build.KernelsUnavailableError, match=r"compiling the kernels failed .*broken.cpp"):
        toolchain.compile_library(tmp_path / "broken.so", toolchain.FLAGS)


ONE_RUNTIME = """
import sys
import torch
from diffwindow.kernels import build
torch.set_num_threads(2)
print(build.load()._name, build.load().dw_count_threads(2), torch.__file__)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1].rpartition("/")[2]})
"""


@NEEDS_COMPILER
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc lists the loaded libraries")
def test_one_library_serves_two_environments_with_the_runtime_of_each(tmp_path, good):
    def move(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy(source, target)

    shutil.copytree(Path(torch.__file__).parent, tmp_path / "torch", copy_function=move)
    here = python(ONE_RUNTIME)
    there = python(ONE_RUNTIME, PYTHONPATH=str(tmp_path), CXX="/no/such/compiler")
    for done, home in ((here, Path(torch.__file__).parent), (there, tmp_path / "torch")):
        library, runtimes = done.stdout.splitlines()
        assert library == f"{good} 2 {home / '__init__.py'}", done.stderr
        assert runtimes.startswith(f"{home}/lib/libgomp"), "not the runtime of this torch"
        assert " " not in runtimes, "a second OpenMP runtime"


@pytest.mark.parametrize("compiler", ["g++", "clang++", "ccache g++ -O2"])
def test_every_compiler_gives_threads(compiler, tmp_path, monkeypatch):
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"no {compiler}")
    sources = tmp_path / "csrc"
    sources.mkdir()
    for path in (*toolchain.SOURCES.glob("*.h"), toolchain.SOURCES / "threads.cpp"):
        shutil.copy(path, sources)
    monkeypatch.setattr(toolchain, "SOURCES", sources)
    monkeypatch.setenv("CXX", compiler)
    toolchain.compile_library(tmp_path / "threads.so", toolchain.FLAGS)
    alone = ctypes.CDLL(str(tmp_path / "threads.so"))
    assert alone.dw_count_threads(ctypes.c_int64(3)) == 1
    assert build.open_library(tmp_path / "threads.so").dw_count_threads(ctypes.c_int64(3)) == 3


def test_doctor_says_what_a_report_needs(monkeypatch):
    report = doctor.report()
    assert report["torch"] == torch.__version__
    assert set(report) >= {"compiler", "processor", "python", "threads"}
    if toolchain.compiler():
        assert report["CPU kernels"].startswith("ready on 1 thread, compiled on this machine: ")
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        assert doctor.status().startswith("ready on 2 threads, ")
