"""Progress of a run on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self

REFRESH_SECONDS = 0.2


class Screen(Protocol):
    """Where a run shows itself."""

    def advance(self, update: int) -> None:
        """Say that an update is done."""

    def show(self, update: int, text: str) -> None:
        """Show a line about an update."""

    def tell(self, text: str) -> None:
        """Tell something that is not about an update."""


class Silent:
    """Show nothing: what processes other than the first do."""

    def advance(self, update: int) -> None:
        """Show nothing."""

    def show(self, update: int, text: str) -> None:
        """Show nothing."""

    def tell(self, text: str) -> None:
        """Show nothing."""


class Terminal:
    """A bar with the time left in a terminal, plain lines in a file."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._bar: Any = None
        self._task: Any = None
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, update: int) -> None:
        """Move the bar, a few times a second at most."""
        if self._bar is not None and time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._bar.update(self._task, completed=update)

    def show(self, update: int, text: str) -> None:
        """Print a line above the bar, or beside the update's number."""
        if self._bar is not None:
            self._bar.update(self._task, completed=update, description=text)
        else:
            self.tell(f"{update}/{self._total}  {text}")

    def tell(self, text: str) -> None:
        """Print a line."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)
