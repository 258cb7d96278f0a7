"""Worker processes: they end with their parent, however it ends, and are interrupted by it alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess


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
