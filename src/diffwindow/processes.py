"""Worker processes that end with their parent, and work that ranks share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.process import BaseProcess
from typing import TypeVar

import torch.distributed as dist


def end_with_parent() -> None:
    """End this worker of `multiprocessing` when its parent is gone, even by SIGKILL.

    A thread waits for the pipe to the parent to close. Unlike the kernel's parent-death signal, this is
    portable, and works if the parent's thread that started the worker has ended.
    """
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_after, args=(parent,), name="parent watch", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def leave_terminal_signals_to_parent() -> None:
    """Put this worker into a process group of its own, so that Ctrl-C reaches its parent alone."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()


def interrupt_workers() -> None:
    """Send SIGINT to the worker processes of this one."""
    for worker in multiprocessing.active_children():
        if worker.pid is not None:
            os.kill(worker.pid, signal.SIGINT)


T = TypeVar("T")
R = TypeVar("R")
_sharing: ContextVar[bool] = ContextVar("sharing", default=False)


@contextmanager
def sharing() -> Iterator[None]:
    """Share work among the processes of torch.distributed, if any; every process must enter this."""
    token = _sharing.set(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
    try:
        yield
    finally:
        _sharing.reset(token)


def sharers() -> int:
    """Return how many processes share the work."""
    return dist.get_world_size() if _sharing.get() else 1


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of each item, in order; inside `sharing`, a process works on every n-th item.

    >>> each(len, ["one", "three"])
    [3, 5]
    """
    if sharers() == 1:
        return [work(item) for item in items]
    rank, size = dist.get_rank(), dist.get_world_size()
    own = [work(item) for number, item in enumerate(items) if number % size == rank]
    parts: list[list[R]] = [[] for _ in range(size)]
    dist.all_gather_object(parts, own)
    return [parts[number % size][number // size] for number in range(sum(map(len, parts)))]
