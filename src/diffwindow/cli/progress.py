"""Progress on stderr: bars with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 10.0
Report = Callable[[str, float], None]


@contextmanager
def shown(*, wanted: bool = True) -> Iterator[Report]:
    """Give a function (stage, fraction done) that shows how far each stage is."""
    if not wanted:
        yield lambda stage, fraction: None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {}

        def report(stage: str, fraction: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=fraction)

        yield report


def _lines() -> Report:
    started: dict[str, float] = {}
    last = time.monotonic()

    def report(stage: str, fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        begin = started.setdefault(stage, now)
        if now - last < LINE_SECONDS:
            return
        last = now
        left = (now - begin) * (1 - fraction) / fraction if fraction else float("inf")
        print(f"{stage}: {fraction:.0%}, {left:.0f} s left", file=sys.stderr, flush=True)

    return report
