"""Progress on stderr: bars with the time left in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LINE_SECONDS = 10.0
REFRESH_SECONDS = 0.2


class Progress:
    """Show nothing; subclasses show something."""

    def __call__(self, stage: str, fraction: float, detail: str = "") -> None:
        """Show how far a stage is, from 0 to 1, with a text about it."""

    def note(self, text: str) -> None:
        """Print a line that belongs to no stage."""

    def close(self) -> None:
        """Stop showing."""


SILENT = Progress()


@contextmanager
def show_progress(*, wanted: bool = True) -> Iterator[Progress]:
    """Yield what shows progress on stderr, or nothing unless `wanted`."""
    progress = Progress() if not wanted else _Bars() if sys.stderr.isatty() else _Lines()
    try:
        yield progress
    finally:
        progress.close()


class _Bars(Progress):
    """One bar per stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
        times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[detail]}"))
        self._bars = Progress(*columns, *times, console=Console(stderr=True))
        self._tasks: dict[str, Any] = {}
        self._fractions: dict[str, float] = {}
        self._drawn = 0.0

    def __call__(self, stage: str, fraction: float, detail: str = "") -> None:
        if stage not in self._tasks:
            # other processes of a run never get here, and show no bars
            self._bars.start()
            self._tasks[stage] = self._bars.add_task(stage, total=1.0, detail="")
        elif fraction < self._fractions[stage]:
            self._bars.reset(self._tasks[stage])
        self._fractions[stage] = fraction
        if detail or fraction >= 1.0 or time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._bars.update(self._tasks[stage], completed=fraction)
            if detail:
                self._bars.update(self._tasks[stage], detail=detail)

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bars.stop()


class _Lines(Progress):
    """A line per detail, and one every ten seconds where there is none."""

    def __init__(self) -> None:
        # the time and the fraction at the start of each stage
        self._starts: dict[str, tuple[float, float]] = {}
        self._last = time.monotonic()

    def __call__(self, stage: str, fraction: float, detail: str = "") -> None:
        now = time.monotonic()
        began, first = self._starts.setdefault(stage, (now, fraction))
        if fraction >= 1.0:
            del self._starts[stage]
        if detail:
            self.note(f"{stage}: {detail}")
        elif now - self._last >= LINE_SECONDS:
            progressed = fraction - first
            left = f", {(now - began) * (1 - fraction) / progressed:.0f} s left" if progressed > 0 else ""
            self.note(f"{stage}: {fraction:.0%}{left}")

    def note(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=sys.stderr, flush=True)
