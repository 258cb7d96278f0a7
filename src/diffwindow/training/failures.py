"""What stops a run, as a sentence: a bad loss, too little memory, a full disk, a signal, a lost process."""

from __future__ import annotations

import errno
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch
from safetensors import SafetensorError

_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


class TrainingError(RuntimeError):
    """A run that cannot go on, and why, in one sentence."""


class Interrupted(Exception):  # noqa: N818
    """A run that was asked to stop and saved; `code` is what the process should exit with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def is_bad(loss: float, max_loss: float) -> bool:
    """Say whether a loss a unit is not a number, infinite, or above the ceiling."""
    return not math.isfinite(loss) or loss > max_loss


def bad_loss(update: int, losses: Sequence[float], rows: Sequence[np.ndarray], max_loss: float) -> str:
    """Name the update, the first bad batch in it and its rows."""
    number = next((i for i, loss in enumerate(losses) if is_bad(loss, max_loss)), None)
    if number is None:
        return f"the loss of update {update} is bad in a batch of another process"
    shown = ", ".join(map(str, rows[number][:8])) + (", …" if len(rows[number]) > 8 else "")
    return (
        f"the loss of update {update} is {losses[number]:g} in batch {number + 1} of {len(rows)} "
        f"(training rows {shown})"
    )


def is_lost_peer(error: RuntimeError) -> bool:
    """Say whether an error of a collective operation means that another process is gone."""
    text = str(error).lower()
    signs = ("connection closed", "connection reset", "broken pipe", "gloo", "nccl", "timed out")
    return isinstance(error, torch.distributed.DistError) or any(sign in text for sign in signs)


@contextmanager
def explained(max_tokens: int, last_good: Callable[[], str]) -> Iterator[None]:
    """Turn running out of memory or disk, or losing the right to write, into a sentence with its remedy."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise TrainingError(
            f"out of memory with train.max_tokens={max_tokens}; lower train.max_tokens and raise "
            "train.accumulate by the same factor to keep the updates as they are"
        ) from error
    except OSError as error:
        if error.errno not in _WRITING:
            raise
        raise TrainingError(
            f"cannot write {error.filename or 'the run'}: {error.strerror}; {last_good()}"
        ) from error
    except SafetensorError as error:
        raise TrainingError(f"cannot write the checkpoint: {error}; {last_good()}") from error


class Stop:
    """Remember that a signal asked the run to stop; a second one stops at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def catching_signals() -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM for a while, so that the loop can save before it ends."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
