"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess


def end_with_parent() -> None:
    """Call in a worker of `multiprocessing`: it then ends as its parent is gone, even by SIGKILL.

    A worker holds one end of a pipe whose other end closes with the parent. A thread waits for that: unlike
    the kernel's parent-death signal, it is portable, and the parent's thread that started the worker may end.
    """
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_after, args=(parent,), name="parent watch", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
