"""Write files so that a crash leaves the old content or the new, never a mixture; read them with care."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write; when that went well, flush it to disk and rename it over `path`.

    Where `path` is a link, the file behind it is replaced.
    """
    path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file; choose another place to write")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a file that holds none is an error that names it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds a {type(value).__name__}, not an object")
    return value


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a folder to this process for a while; one that another process has is an error.

    A file system without such locks goes without.
    """
    # not everywhere, and reading a model needs no lock
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is at work in {folder}; wait for it, or choose another --out"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                raise
        yield
    finally:
        os.close(descriptor)


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, so that a write or a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hash a file of any size in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
