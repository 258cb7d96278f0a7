"""Compile the C++ kernels once, keep them in a cache, and load them.

`DIFFWINDOW_KERNELS` is `auto` (use them where they can be built), `require` (an error where they cannot)
or `off`; `DIFFWINDOW_CACHE` says where compiled kernels are kept.
"""

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fvisibility=hidden", "-fno-math-errno")
COMPILERS = ("g++", "c++", "clang++")
MODES = ("auto", "require", "off")


class KernelsUnavailableError(RuntimeError):
    """Say in one sentence why there are no compiled kernels, and what to do."""


def mode() -> str:
    """Read `DIFFWINDOW_KERNELS`."""
    value = os.environ.get("DIFFWINDOW_KERNELS", "auto")
    if value not in MODES:
        raise ValueError(f"DIFFWINDOW_KERNELS={value!r} is not one of {', '.join(MODES)}")
    return value


@functools.cache
def load() -> ctypes.CDLL:
    """Give the compiled kernels, building them if this machine has not yet; raise if there are none."""
    if mode() == "off":
        raise KernelsUnavailableError("DIFFWINDOW_KERNELS=off forbids compiled kernels")
    path = library_path()
    if not path.exists():
        build(path)
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        # A file that some accident cut short: once more from the sources.
        path.unlink(missing_ok=True)
        build(path)
        return ctypes.CDLL(str(path))


@functools.cache
def why_not() -> str | None:
    """Say why there are no compiled kernels, or None; warn once where a user would want to know."""
    try:
        load()
    except KernelsUnavailableError as error:
        if mode() == "require":
            raise
        if mode() == "auto":
            warnings.warn(f"window attention runs on the slower reference: {error}", stacklevel=2)
        return str(error)
    return None


def compiler() -> str | None:
    """Find a C++ compiler: `$CXX`, or the first of the usual names."""
    names = (os.environ["CXX"],) if "CXX" in os.environ else COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


@functools.cache
def compiler_version(path: str) -> str:
    """Give the first line of a compiler's `--version`."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def cache_dir() -> Path:
    """Say where compiled kernels are kept."""
    chosen = os.environ.get("DIFFWINDOW_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen or f"{base}/diffwindow").expanduser() / "kernels"


def library_path() -> Path:
    """Name the library after all that it depends on: sources, flags, compiler, torch and processor."""
    found = compiler()
    parts = [*FLAGS, torch.__version__, platform.platform(), *cpu_features()]
    parts += [found or "", compiler_version(found) if found else ""]
    parts += [path.name + path.read_text() for path in sorted(SOURCES.iterdir())]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return cache_dir() / f"window-{key[:16]}.so"


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """List what this processor can do, as the operating system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return (platform.machine(), platform.processor())
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return tuple(sorted(flags.partition(":")[2].split()))


def build(path: Path, flags: tuple[str, ...] = FLAGS) -> None:
    """Compile the sources into `path`; of processes that want it at once, one compiles, the others wait."""
    found = compiler()
    if found is None:
        raise KernelsUnavailableError(
            "no C++ compiler was found; install g++ (apt install g++) or set CXX, "
            "or set DIFFWINDOW_KERNELS=off to silence this"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelsUnavailableError(
            f"the cache {path.parent} cannot be written ({error}); set DIFFWINDOW_CACHE"
        ) from error
    with _lock(path.with_suffix(".lock")):
        if not path.exists():
            _compile(found, path, flags)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(found: str, path: Path, flags: tuple[str, ...]) -> None:
    print("diffwindow: compiling the CPU kernels, once, some ten seconds …", file=sys.stderr, flush=True)
    start = time.monotonic()
    units = sorted(SOURCES.glob("*.cpp"))
    openmp, libraries = _openmp(found)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        objects = [f"{scratch}/{unit.stem}.o" for unit in units]
        commands = [
            [found, *flags, *openmp, "-c", str(unit), "-o", target]
            for unit, target in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, commands))
        target = f"{scratch}/{path.name}"
        _run([found, *flags, "-shared", *objects, *libraries, "-o", target])
        with open(target, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(target, path)
    print(f"diffwindow: compiled in {time.monotonic() - start:.1f} s: {path}", file=sys.stderr, flush=True)


def _openmp(found: str) -> tuple[list[str], list[str]]:
    """Give the flags to compile and link with the OpenMP runtime that torch has loaded, not a second one."""
    runtimes = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if not runtimes or "clang" in compiler_version(found):
        return [], []
    return ["-fopenmp"], [str(runtimes[0]), f"-Wl,-rpath,{runtimes[0].parent}"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        raise KernelsUnavailableError(
            f"compiling the kernels failed ({error.strip()}); set DIFFWINDOW_KERNELS=off to silence this"
        )
