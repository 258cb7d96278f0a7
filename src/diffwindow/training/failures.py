"""What can stop a run: a bad loss, too little memory, a full disk, a signal, a lost process."""

from __future__ import annotations

import errno
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch
from torch.distributed import is_torchelastic_launched

_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


# the exit code after another process was lost: EX_TEMPFAIL of sysexits.h, "try again later"
LOST_CODE = 75


class TrainingError(RuntimeError):
    """A run cannot continue; the message says why, and `code` is the exit code of the process."""

    code = 1


class LostProcessError(TrainingError):
    """Another process of the run is lost; the message names its host. The same command goes on."""

    code = LOST_CODE


class Interrupted(Exception):  # noqa: N818
    """A signal stopped the run after it saved; `code` is the exit code of the process."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def is_bad(loss: float, max_loss: float) -> bool:
    """Return whether a loss per unit is NaN, infinite or above `max_loss`."""
    return not math.isfinite(loss) or loss > max_loss


def bad_loss(update: int, losses: Sequence[float], rows: Sequence[np.ndarray], max_loss: float) -> str:
    """Return a sentence that names the update, its first bad batch, and the rows of that batch."""
    number = next((i for i, loss in enumerate(losses) if is_bad(loss, max_loss)), None)
    if number is None:
        return f"the loss of update {update} is bad in a batch of another process"
    shown = ", ".join(map(str, rows[number][:8])) + (", …" if len(rows[number]) > 8 else "")
    return (
        f"the loss of update {update} is {losses[number]:g} in batch {number + 1} of {len(rows)} "
        f"(training rows {shown})"
    )


def is_lost_peer(error: RuntimeError) -> bool:
    """Return whether an error of a collective operation means that another process died."""
    text = str(error).lower()
    signs = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl", "timed out")
    return isinstance(error, torch.distributed.DistError) or any(sign in text for sign in signs)


def first_sentence(text: str) -> str:
    """Return the first sentence of a message without its full stop: some say too much.

    >>> first_sentence("[pair.cc:534] Connection closed by peer [127.0.0.1]:80. Who did this?")
    '[pair.cc:534] Connection closed by peer [127.0.0.1]:80'
    """
    return re.split(r"[.!?](?:\s|$)|\n", text.strip(), maxsplit=1)[0]


@contextmanager
def translate_exceptions(max_tokens: int, last_good: Callable[[], str]) -> Iterator[None]:
    """Raise a TrainingError with a remedy when memory, disk space or a permission is missing."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise TrainingError(
            f"out of memory with train.max_tokens={max_tokens}; lower train.max_tokens and raise "
            "train.accumulate by the same factor to keep the size of an update"
        ) from error
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        raise TrainingError(
            f"{error.filename or 'the run folder'}: {error.strerror}; {last_good()}"
        ) from error


class StopNowError(Exception):
    """A signal asked the run to stop, in the middle of work that can be done again."""


class StopRequest:
    """The signal that asked the run to stop, or 0; a second signal raises KeyboardInterrupt.

    Not under torchrun, which passes on a signal that Slurm has sent to all processes already.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._at_once = False
        # another process may get its signal a moment earlier, so that this one gets it twice
        self._relayed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal and not self._relayed and not is_torchelastic_launched():
            raise KeyboardInterrupt
        self._relayed = self._relayed and not self.signal
        self.signal = number
        if self._at_once:
            raise StopNowError

    def relay(self, number: int) -> None:
        """Send this process a signal that another process of the run got."""
        if not self.signal and not self._relayed:
            self._relayed = True
            os.kill(os.getpid(), number)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise StopNowError inside the context as soon as a signal comes, or if one has come already."""
        self._at_once = True
        try:
            if self.signal:
                raise StopNowError
            yield
        finally:
            self._at_once = False


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Let SIGINT and SIGTERM make a request inside the context, so that the run can save before it stops."""
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
