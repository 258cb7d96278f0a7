"""Compile the CPU kernels once, and keep the library in a folder that only its user can write."""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from filelock import FileLock

from diffwindow.kernels import toolchain
from diffwindow.kernels.toolchain import (
    FLAGS,
    KernelsUnavailableError,
    Level,
    compile_library,
    digest_of,
    file_name,
    stem,
)


class UntrustedFolderError(OSError):
    """Somebody else could put code into a folder that libraries are loaded from; the message says who."""


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, open to their user only."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        # another process may have been faster
        place.mkdir(mode=0o700, exist_ok=True)


def check_private(folder: Path) -> None:
    """Raise unless only the user or root owns and can write the folder and each folder above it.

    In a sticky folder such as `/tmp` others can write but not replace what is not theirs.
    """
    if not hasattr(os, "geteuid"):
        return
    for place in (folder, *folder.parents):
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UntrustedFolderError(f"{place} is a link")
        if status.st_uid not in (0, os.geteuid()):
            raise UntrustedFolderError(f"{place} belongs to another user")
        sticky = place != folder and status.st_mode & stat.S_ISVTX
        if status.st_mode & 0o022 and not sticky:
            raise UntrustedFolderError(f"others can write to {place} (chmod go-w changes that)")


def intact(folder: Path, stem: str) -> Iterator[Path]:
    """Yield the libraries of this stem whose content matches their name."""
    for path in sorted(folder.glob(f"{stem}.*.so")):
        # a process that replaces a damaged file may remove it meanwhile
        with suppress(FileNotFoundError):
            if path.is_file() and path.name == file_name(stem, digest_of(path)):
                yield path


def trusted(path: Path) -> bool:
    """Tell whether this is a file, not a link, of the user or root, that nobody else can write."""
    status = path.lstat()
    mine = not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid())
    return stat.S_ISREG(status.st_mode) and mine and not status.st_mode & 0o022


def keep(library: Path, folder: Path, stem: str) -> Path:
    """Move a library into the folder under its digest, and drop the damaged ones of the same stem."""
    library.chmod(0o644)
    with library.open("rb+") as file:
        os.fsync(file.fileno())
    path = folder / file_name(stem, digest_of(library))
    library.replace(path)
    good = set(intact(folder, stem))
    for other in folder.glob(f"{stem}.*.so"):
        if other not in good:
            with suppress(OSError):
                other.unlink()
    return path


MODES = ("auto", "require", "off")
# Where a platform wheel carries its libraries.
PACKAGED = Path(__file__).parent / "lib"


def mode() -> str:
    """Read `DIFFWINDOW_KERNELS`."""
    value = os.environ.get("DIFFWINDOW_KERNELS", "auto")
    if value not in MODES:
        raise ValueError(f"DIFFWINDOW_KERNELS={value!r} is not one of {', '.join(MODES)}")
    return value


@functools.cache
def load() -> ctypes.CDLL:
    """Return the compiled kernels, compiling them if nothing else is there; raise if that is impossible."""
    if mode() == "off":
        raise KernelsUnavailableError("DIFFWINDOW_KERNELS=off forbids compiled kernels")
    best = toolchain.levels()[0]
    library = _first(path for level in toolchain.levels() for path in intact(PACKAGED, stem(level)))
    if library is None:
        try:
            folder = cache_dir()
            tried = list(cached(folder, best))
            library = _first(tried) or open_library(build(folder, best, unusable=tried))
        except OSError as error:
            raise KernelsUnavailableError(
                f"compiled kernels cannot be kept or loaded ({error}); "
                "set DIFFWINDOW_CACHE to a folder that only you can write"
            ) from error
    return library


@functools.cache
def why_not() -> str | None:
    """Return why there are no compiled kernels, or None; warn once where a user would want to know."""
    try:
        load()
    except KernelsUnavailableError as error:
        if mode() == "require":
            raise
        if mode() == "auto":
            warnings.warn(f"window attention runs on the slower reference: {error}", stacklevel=2)
        return str(error)
    return None


@functools.cache
def ready() -> bool:
    """Return whether there are compiled kernels, without a warning: for what is only slower without them."""
    try:
        load()
    except KernelsUnavailableError:
        if mode() == "require":
            raise
        return False
    return True


def cache_dir() -> Path:
    """Return the folder of compiled kernels; links to the cache are followed here, and nowhere below."""
    chosen = os.environ.get("DIFFWINDOW_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(chosen or f"{base}/diffwindow").expanduser().resolve() / "kernels"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def cached(folder: Path, level: Level) -> Iterator[Path]:
    """Yield the intact libraries of a level in the cache; raise if others could have put them there."""
    if folder.is_dir():
        check_private(folder)
        yield from filter(trusted, intact(folder, stem(level)))


def build(folder: Path, level: Level, *, unusable: Sequence[Path] = ()) -> Path:
    """Compile a level's library into the cache; of several processes, one compiles and the others wait.

    `unusable` are libraries there that this system cannot load.
    """
    make_private(folder)
    check_private(folder)
    name = stem(level)
    with FileLock(folder / f"{name}.lock"):
        built = next((path for path in cached(folder, level) if path not in unusable), None)
        if built is not None:
            return built
        toolchain.required_compiler()
        print("diffwindow: compiling the CPU kernels, once, about 15 seconds …", file=sys.stderr, flush=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            library = Path(scratch) / f"{name}.so"
            compile_library(library, (*FLAGS, *level.flags))
            path = keep(library, folder, name)
        print(
            f"diffwindow: compiled in {time.monotonic() - start:.1f} s: {path}", file=sys.stderr, flush=True
        )
    return path


def open_library(path: Path) -> ctypes.CDLL:
    """Load a library and let it start its threads in the OpenMP runtime that torch has loaded."""
    library = ctypes.CDLL(str(path))
    # A lookup by this handle searches torch and the libraries that it was linked with.
    runtime = ctypes.CDLL(torch._C.__file__)
    if start := getattr(runtime, "GOMP_parallel", None):
        library.dw_use_threads(ctypes.cast(start, ctypes.c_void_p))
    return library


def _first(paths: Iterable[Path]) -> ctypes.CDLL | None:
    """Load the first library that this system can load."""
    for path in paths:
        try:
            return open_library(path)
        except OSError:
            # for example built for another C library
            continue
    return None
