"""Answers to requests for attention: each computed once, in one thread, and shared by all who ask."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

LOG = logging.getLogger(__name__)
Event = dict[str, Any]
# returns the events of a text: a page, and before it the steps of a translation
Compute = Callable[[str], Iterator[Event]]


class BusyError(Exception):
    """Too many answers are under way."""


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Sizes are in bytes and times in seconds. `waiting` bounds the answers not yet complete, and `kept` the
    bytes of complete ones that are remembered.
    """

    body: int = 16_384
    tokens: int = 128
    read_time: float = 5.0
    compute_time: float = 60.0
    waiting: int = 32
    connections: int = 512
    kept: int = 64_000_000


@dataclass
class Answer:
    """The lines of one answer, as they become known; any number of clients may follow it."""

    lines: list[bytes] = field(default_factory=list)
    done: bool = False
    # the HTTP status of what went wrong, if anything did
    failure: int | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, line: bytes) -> None:
        """Append a line and wake those who follow."""
        self.lines.append(line)
        self._wake()

    def finish(self, failure: int | None) -> None:
        """Mark the answer as complete."""
        self.done, self.failure = True, failure
        self._wake()

    async def follow(self) -> AsyncIterator[bytes]:
        """Yield all lines, from the first on, until the answer is complete; those known by now together."""
        place = 0
        while True:
            changed = self.changed
            # one write each time: the loop learns between two writes that a client has gone
            if known := self.lines[place:]:
                place += len(known)
                yield b"".join(known)
            if self.done and place == len(self.lines):
                return
            await changed.wait()

    async def finished(self) -> None:
        """Wait until the answer is complete."""
        async for _ in self.follow():
            pass

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def size(self) -> int:
        """Count the bytes of all lines."""
        return sum(map(len, self.lines))


class Answers:
    """The answers of a model: a text is computed once, however many ask for it at the same time or later."""

    def __init__(self, compute: Compute, limits: Limits) -> None:
        self._compute = compute
        self.limits = limits
        # a model runs in one thread: torch has threads of its own
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="diffwindow")
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._closed = False

    def ask(self, text: str) -> Answer:
        """Return the answer for a text, old or new; raise BusyError if too many are under way."""
        if (known := self._answers.get(text)) is not None:
            self._answers.move_to_end(text)
            return known
        if sum(not answer.done for answer in self._answers.values()) >= self.limits.waiting:
            raise BusyError
        answer = self._answers[text] = Answer()
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._thread, self._run, text, answer, loop)
        return answer

    def close(self) -> None:
        """Stop computing; what is under way ends at its next step."""
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, text: str, answer: Answer, loop: asyncio.AbstractEventLoop) -> None:
        """Compute an answer, in the thread; every change of it happens in the loop."""
        failure = None
        deadline = loop.time() + self.limits.compute_time
        try:
            for event in self._compute(text):
                if self._closed:
                    raise TimeoutError("the server is stopping")
                if loop.time() > deadline:
                    raise TimeoutError(f"this took more than {self.limits.compute_time:g} seconds")
                loop.call_soon_threadsafe(answer.add, _line(event))
        except (ValueError, TimeoutError) as error:
            failure = 422 if isinstance(error, ValueError) else 504
            loop.call_soon_threadsafe(answer.add, _line({"error": str(error)}))
        except Exception:
            failure = 500
            LOG.exception("the model failed on a text of %d characters", len(text))
            loop.call_soon_threadsafe(
                answer.add, _line({"error": "the model failed; the server's log says why"})
            )
        finally:
            loop.call_soon_threadsafe(self._finish, text, answer, failure)

    def _finish(self, text: str, answer: Answer, failure: int | None) -> None:
        answer.finish(failure)
        if failure:
            self._answers.pop(text, None)
        size = sum(known.size for known in self._answers.values())
        for old in [name for name, known in self._answers.items() if known.done]:
            if size <= self.limits.kept:
                break
            size -= self._answers.pop(old).size


def _line(event: Event) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n"
