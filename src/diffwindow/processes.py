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
from typing import Protocol, TypeVar


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


class Sharers(Protocol):
    """The processes that share work, and the number of this one among them."""

    @property
    def rank(self) -> int: ...  # noqa: D102

    @property
    def size(self) -> int: ...  # noqa: D102

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""


_sharing: ContextVar[Sharers | None] = ContextVar("sharing", default=None)


@contextmanager
def sharing(processes: Sharers) -> Iterator[None]:
    """Share work among processes; every one of them must enter this."""
    token = _sharing.set(processes)
    try:
        yield
    finally:
        _sharing.reset(token)


def sharers() -> int:
    """Return how many processes share the work."""
    processes = _sharing.get()
    return processes.size if processes else 1


def each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of each item, in order; inside `sharing`, a process works on every n-th item.

    >>> each(len, ["one", "three"])
    [3, 5]
    """
    processes = _sharing.get()
    if processes is None or processes.size == 1:
        return [work(item) for item in items]
    rank, size = processes.rank, processes.size
    own = [work(item) for number, item in enumerate(items) if number % size == rank]
    parts = processes.gather(own)
    return [parts[number % size][number // size] for number in range(sum(map(len, parts)))]
