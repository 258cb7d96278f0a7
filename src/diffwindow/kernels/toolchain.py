"""The compiler, and instructions that kernels may use. Standard library only: wheels need no torch."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

X86 = ("x86_64", "amd64")
_V3 = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
# Spelled out, because older compilers do not know -march=x86-64-v3.
_V3_FLAGS = ("-mavx2", "-mbmi", "-mbmi2", "-mf16c", "-mfma", "-mlzcnt", "-mmovbe")
_V4_FLAGS = (*_V3_FLAGS, "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512f", "-mavx512vl")


@dataclass(frozen=True)
class Level:
    """A set of instructions: the features a processor must have, and the flags for a compiler."""

    name: str
    features: frozenset[str] = frozenset()
    flags: tuple[str, ...] = ()


# Best first.
X86_LEVELS = (
    Level("x86-64-v4", _V4, (*_V4_FLAGS, "-mtune=skylake-avx512")),
    Level("x86-64-v3", _V3, (*_V3_FLAGS, "-mtune=haswell")),
)


@functools.cache
def features() -> frozenset[str]:
    """Return the processor's features as Linux names them; none where it cannot be asked."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.partition(":")[2].split())


def levels() -> tuple[Level, ...]:
    """Return the levels that this processor supports, best first; the last runs on any of its family."""
    machine = platform.machine().lower()
    special = X86_LEVELS if machine in X86 else ()
    return (*(level for level in special if level.features <= features()), Level(machine))


def wheel_levels() -> tuple[Level, ...]:
    """Return the levels that a wheel built on this machine carries, whatever this processor supports."""
    machine = platform.machine().lower()
    return X86_LEVELS if machine in X86 else (Level(machine),)


SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno")
COMPILERS = ("g++", "c++", "clang++")


class KernelsUnavailableError(RuntimeError):
    """Say in one sentence why there are no compiled kernels, and what to do."""


def compiler() -> list[str] | None:
    """Return the command of a C++ compiler: `$CXX`, arguments included, or the first usual name."""
    chosen = os.environ.get("CXX", "").strip()
    try:
        commands = [shlex.split(chosen)] if chosen else [[name] for name in COMPILERS]
    except ValueError as error:
        raise KernelsUnavailableError(f"CXX={chosen!r} cannot be read ({error})") from None
    return next(([path, *rest] for name, *rest in commands if (path := shutil.which(name))), None)


def required_compiler() -> list[str]:
    """Return the command of a C++ compiler; raise if there is none."""
    command = compiler()
    if command is None:
        raise KernelsUnavailableError(
            "no C++ compiler was found; install g++ (apt install g++) or set CXX, "
            "or set DIFFWINDOW_KERNELS=off to silence this"
        )
    return command


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stdout.partition("\n")[0]


def compiler_version(command: list[str]) -> str:
    """Return the first line of a compiler's `--version`."""
    return _version(tuple(command))


def stem(level: Level) -> str:
    """Name a library after what its machine code depends on: the system, the flags and the sources."""
    parts = [sys.platform, *FLAGS, *level.flags]
    parts += [path.name + path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"window-{level.name}-{key[:16]}"


def compile_library(target: Path, flags: tuple[str, ...]) -> None:
    """Compile the sources with `flags` into `target`."""
    command = required_compiler()
    units = sorted(SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects = [Path(scratch) / f"{unit.stem}.o" for unit in units]
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda pair: _run([*command, *flags, "-c", str(pair[0]), "-o", str(pair[1])], pair[1]),
                    zip(units, objects, strict=True),
                )
            )
        # linked where the objects are, moved only when whole
        library = Path(scratch) / target.name
        _run([*command, *flags, "-shared", *map(str, objects), "-o", str(library)], library)
        library.replace(target)


def _run(command: list[str], result: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise _failed(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines()
        raise _failed(next((line for line in lines if "error" in line), " ".join(lines)[-200:]))
    if not result.is_file():
        raise _failed(f"{command[0]} reported success but wrote no {result.suffix} file")


def _failed(reason: str) -> KernelsUnavailableError:
    return KernelsUnavailableError(
        f"compiling the kernels failed ({reason.strip()}); set DIFFWINDOW_KERNELS=off to silence this"
    )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_name(stem: str, digest: str) -> str:
    """Name a library: what it was built from, then what it contains."""
    return f"{stem}.{digest}.so"
