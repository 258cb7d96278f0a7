"""Load the compiled kernels: those of the wheel, those of the user's cache, or freshly compiled ones.

`DIFFWINDOW_KERNELS` is `auto` (use them where possible), `require` (raise where they are not available)
or `off`; `DIFFWINDOW_CACHE` says where compiled kernels are kept.
"""

import ctypes
import functools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from filelock import FileLock

from diffwindow.kernels import processor, storage
from diffwindow.kernels.processor import Level
from diffwindow.kernels.toolchain import FLAGS, KernelsUnavailableError, compile_library, stem

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
    best = processor.levels()[0]
    library = _first(path for level in processor.levels() for path in storage.intact(PACKAGED, stem(level)))
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
        storage.check_private(folder)
        yield from filter(storage.trusted, storage.intact(folder, stem(level)))


def build(folder: Path, level: Level, *, unusable: Sequence[Path] = ()) -> Path:
    """Compile a level's library into the cache; of several processes, one compiles and the others wait.

    `unusable` are libraries there that this system cannot load.
    """
    storage.make_private(folder)
    storage.check_private(folder)
    name = stem(level)
    with FileLock(folder / f"{name}.lock"):
        built = next((path for path in cached(folder, level) if path not in unusable), None)
        if built is not None:
            return built
        print("diffwindow: compiling the CPU kernels, once, about 15 seconds …", file=sys.stderr, flush=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            library = Path(scratch) / f"{name}.so"
            compile_library(library, (*FLAGS, *level.flags))
            path = storage.keep(library, folder, name)
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
