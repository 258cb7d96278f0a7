"""Errors of the command line: one sentence on stderr, an exit code, no traceback."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path

from diffwindow.cli.library import data_lines, training_failures
from diffwindow.extras import is_optional, missing_error

OUT_OF_MEMORY = "out of memory; use a smaller model or smaller batches"
WORKER_DIED = (
    "a worker died, probably out of memory; prepare the corpus with fewer --workers; the same command resumes"
)


@contextmanager
def report_errors() -> Iterator[None]:
    """Print a mistake, a missing extra or a lack of memory as one line on stderr and exit with 2."""
    try:
        yield
    except UnicodeEncodeError as error:
        text = f"{error.object[error.start]!a} cannot be written as {error.encoding}; set PYTHONUTF8=1"
    except (ValueError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            # a file is named where it is written
            place = error.filename or ("stdout" if error.errno == errno.ENOSPC else None)
            text = f"{place}: {error.strerror}" if place else error.strerror
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not is_optional(package):
            raise
        text = str(missing_error(package))
    except MemoryError:
        text = OUT_OF_MEMORY
    except BrokenExecutor:
        text = WORKER_DIED
    except RuntimeError as error:
        # of a verb that processes share; after training, it was reported before
        if isinstance(error, training_failures.LostProcessError):
            print(f"diffwindow: {error}", file=sys.stderr)
            sys.exit(error.code)
        # torch has no exception class for its CPU allocator
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        text = OUT_OF_MEMORY
    else:
        return
    print(f"diffwindow: {shorten(text)}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def report_warnings() -> Iterator[None]:
    """Print warnings as lines on stderr, without the place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"diffwindow: {shorten(text)}", file=sys.stderr)


def shorten(text: str, limit: int = 500) -> str:
    """Return a message as one line, without its middle if it is long.

    >>> shorten("x" * 30 + ": not a number", limit=20)
    'xxxxxxxxxx … a number'
    """
    line = " ".join(text.split())
    return (
        line if len(line) <= limit else f"{line[: limit // 2]} … {line[len(line) - limit // 2 + 2 :].strip()}"
    )


def check_folder(folder: Path) -> None:
    """Raise if there is no such run or model folder, before anything heavy is imported."""
    if not folder.exists():
        raise ValueError(f"there is no folder {folder}; give that of a run or of a model")


@contextmanager
def report_interrupt(outcome: str) -> Iterator[None]:
    """On Ctrl-C, print what became of the work and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"diffwindow: interrupted; {outcome}", file=sys.stderr)
        sys.exit(130)


@contextmanager
def name_data_option() -> Iterator[None]:
    """Add the name of the option to the error about a missing folder of raw files."""
    try:
        yield
    except data_lines.NoFolderError as error:
        raise ValueError(f"{error}: --data DIR, or $DIFFWINDOW_DATA") from None


@contextmanager
def report_training_errors() -> Iterator[None]:
    """Print why a run stopped; exit with 1, or with the code of the signal that stopped it."""
    try:
        with report_interrupt("the same command resumes"), name_data_option():
            yield
    except training_failures.TrainingError as error:
        print(f"diffwindow: {error}", file=sys.stderr)
        sys.exit(error.code)
    except training_failures.Interrupted as interruption:
        if os.environ.get("RANK", "0") == "0":
            print(f"diffwindow: {interruption}", file=sys.stderr)
        sys.exit(interruption.code)
