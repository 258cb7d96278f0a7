"""Files: atomic writes that leave the old content or the new, JSON, locks, hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

# errors of a disk, which Python raises without the name of the file
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# the lock file of a folder; it is never removed, because then two processes could hold it
LOCK = ".lock"


@contextmanager
def replacing(path: Path, *, follow_link: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write; on success, flush it to disk and rename it to `path`.

    If `path` is a link, the link is replaced, so that nothing outside its folder changes. With `follow_link`,
    for paths that users name, the file behind it is replaced.
    """
    # before the link is followed: that of /dev/stdout to a pipe leads nowhere
    if path.exists() and not path.is_file() and (follow_link or not path.is_symlink()):
        raise ValueError(f"{path} is not a regular file; choose another place to write")
    named, path = path, path.resolve() if follow_link else path.parent.resolve() / path.name
    check_folder_place(path.parent)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with naming(named, temporary):
        try:
            temporary.unlink(missing_ok=True)
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(target: Path, temporary: Path | None = None) -> Iterator[None]:
    """Name `target` in errors of the disk that name no file, and instead of `temporary`, a file or folder."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _DISK:
            error.filename = str(target)
        elif temporary is not None and str(error.filename).startswith(str(temporary)):
            rest = str(error.filename).removeprefix(str(temporary))
            error.filename, error.filename2 = f"{target}{rest}", None
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and those around it; raise if a file stands in their place."""
    check_folder_place(folder)
    folder.mkdir(parents=True, exist_ok=True)


def check_folder_place(folder: Path) -> None:
    """Raise if a file stands where a folder, or one around it, is to be."""
    nearest = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if os.path.lexists(nearest) and not nearest.is_dir():
        raise ValueError(f"{nearest} is not a folder; choose another place to write")


def write_atomically(path: Path, content: bytes, *, follow_link: bool = False) -> None:
    """Write a whole file, or leave the old one; `follow_link` is that of `replacing`."""
    with replacing(path, follow_link=follow_link) as temporary:
        temporary.write_bytes(content)


def remove_temporaries(folder: Path, names: Sequence[str] = ("*",)) -> None:
    """Remove what killed processes left of files and folders with these names, which may be patterns.

    No other process may be writing them, and a folder that holds files of others needs their names.
    """
    endings = (".tmp", ".*.tmp", ".old")
    for path in {path for name in names for ending in endings for path in folder.glob(f".{name}{ending}")}:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def open_within(path: Path, mode: str) -> IO[bytes]:
    """Open a file to write in place; raise if it is a link, which may lead out of its folder."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is not a regular file; move it away")
    return open(path, mode, opener=_without_links)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def check_regular(path: Path) -> None:
    """Raise if something other than a file is at `path`: reading a pipe may never end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file; put the file itself there")


def check_inside(folder: Path) -> None:
    """Raise if a folder to write to is a link, which may lead out of the folder that holds it."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link; put the folder itself there, or link {folder.parent} instead")


def finite(value: Any) -> Any:
    """Return plain data with None for NaN and infinities, which JSON does not have.

    >>> finite({"loss": float("nan"), "lr": [0.5, float("inf")]})
    {'loss': None, 'lr': [0.5, None]}
    """
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, with null for NaN and infinities."""
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, f"{to_json(value, indent=2)}\n".encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise a ValueError that names the file if it holds anything else."""
    check_regular(path)
    return parse_json(path.read_bytes(), path)


def parse_json(content: str | bytes, place: Path) -> dict[str, Any]:
    """Parse a JSON object; raise a ValueError that names its place if it is anything else."""
    try:
        value = json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place} is damaged: it holds a {type(value).__name__}, not an object")
    return value


@contextmanager
def lock_folder(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Lock a folder inside the context; raise if another process keeps it locked for `wait` seconds.

    On a file system without locks, do nothing.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise ValueError(
            f"another process is at work in {folder}; wait for it, or choose another folder"
        ) from None
    except NotImplementedError:
        pass
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            raise
    try:
        yield
    finally:
        lock.release()


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk, so that it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
