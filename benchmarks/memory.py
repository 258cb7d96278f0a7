"""Run a command and measure the memory of all its processes together."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


def _family(pid: int) -> list[int]:
    """Give a process and its descendants."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [pid, *(member for child in text.split() for member in _family(int(child)))]


def _private(pid: int) -> int:
    """Give a process's share of memory in bytes; pages of several processes are divided."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def measured(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, int]:
    """Give (seconds, peak bytes of the process tree, files of the page cache not counted)."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | (environment or {}))
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_private, _family(process.pid))))
        time.sleep(0.1)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - started, peak
