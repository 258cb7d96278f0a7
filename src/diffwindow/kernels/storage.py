"""Keep compiled libraries in a folder that only its user can write, each under the digest of its content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


class UntrustedFolderError(OSError):
    """Somebody else could put code into a folder that libraries are loaded from; the message says who."""


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_name(stem: str, digest: str) -> str:
    """Name a library: what it was built from, then what it contains."""
    return f"{stem}.{digest}.so"


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
