"""Worker processes that end with their parent, however it ends."""

from __future__ import annotations

import multiprocessing
import os
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
