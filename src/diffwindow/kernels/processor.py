"""Which instructions the kernels may use. Standard library only: wheels are built without torch."""

from __future__ import annotations

import functools
import platform
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
