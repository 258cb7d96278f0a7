"""lossy_stderr(): keep running when stderr cannot be written to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class LossyStream:
    """A text stream that drops what cannot be written."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream if that is possible."""
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lossy_stderr() -> Iterator[None]:
    """Inside the context, drop what cannot be written to stderr: it may be closed, or its disk full."""
    _reserve_descriptors()
    before = sys.stderr
    sys.stderr = cast(TextIO, LossyStream(before))
    try:
        yield
    finally:
        sys.stderr = before
        _drop_unwritten(before)


def _drop_unwritten(stream: TextIO | None) -> None:
    """Flush a stream, or drop its content: a flush that fails at exit would change the exit code."""
    if stream is None:
        return
    try:
        stream.flush()
    except ValueError:
        # closed
        return
    except OSError:
        if stream is cast(TextIO, sys.__stderr__):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _reserve_descriptors() -> None:
    """Open the null device in place of each standard stream that is closed.

    Otherwise the next file that is opened, such as a log, would get its number and its output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # takes the lowest free number, which is this one
            os.open(os.devnull, os.O_RDWR)
