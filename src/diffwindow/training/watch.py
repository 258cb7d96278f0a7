"""Watch: notice processes that are lost, say which, and end the waits of this one."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Protocol

from diffwindow.training.failures import LOST_CODE, StopRequest

BEAT_SECONDS = 0.5
TICK_SECONDS = 0.1
# when a collective fails, a process without a beat for this long is the lost one
SILENT_SECONDS = 3.0
# the time for an update to end after a signal, and for the main thread to see that its connections are cut
GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Beat:
    """What a process says of itself twice a second; `left` is why it stopped, if it did.

    `doing` is what it says that it does, `place` the function that its main thread is in.
    """

    host: str
    number: int = 0
    doing: str = "starting"
    place: str = ""
    signal: int = 0
    left: str = ""


class Store(Protocol):
    """A store of torch.distributed, which every process can reach."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read values; wait until all are there."""


class Watch:
    """Beats of all processes, exchanged in a store by one thread, and judged by another.

    If a process is silent for `timeout` seconds, or a signal has come and the main thread is still waiting
    after a grace, `cut` is called, which makes its collectives fail. If nothing can be cut (NCCL), the
    process exits.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float, cut: Callable[[], bool]) -> None:
        self._store = store
        self._rank = rank
        self._timeout = timeout
        self._cut = cut
        self._host = socket.gethostname()
        self._main_thread = threading.get_ident()
        # of this process: what it does, the signal that came, why it stops
        self.now, self._signal, self._left = "starting", 0, ""
        # whether the main thread waits for nobody
        self._free = False
        self._beats = [Beat("a host that has not answered yet")] * size
        # seconds that this process ran, so that one that was suspended does not take the others for lost
        self._clock = 0.0
        self._heard = [0.0] * size
        self._answered = 0.0
        self._request: StopRequest | None = None
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"watch: {work.__name__}", daemon=True)
            for work in (self._exchange, self._judge)
        ]
        for thread in self._threads:
            thread.start()

    def close(self, left: str = "") -> None:
        """Stop watching, and tell the others why this process stops, if there is a reason."""
        self._left = left
        self._closed.set()
        for thread in self._threads:
            # one may wait for a store that does not answer
            thread.join(2 * BEAT_SECONDS)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Do something that the others wait for; meanwhile, no connection is cut."""
        before = self.now, self._free
        self.now, self._free = what, True
        try:
            yield
        finally:
            self.now, self._free = before

    @contextmanager
    def heeding(self, request: StopRequest) -> Iterator[None]:
        """Pass signals on to the other processes, and end a wait in which one comes."""
        self._request = request
        # written by the C handler: Python's own waits until the main thread leaves the collective
        before = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            self._request = None

    def explain(self, reason: str) -> str:
        """Return which process is lost, after a collective failed and one falls silent or says why."""
        self._free = True
        places = self._places()
        end = self._clock + SILENT_SECONDS + 2 * BEAT_SECONDS
        while self._clock < end and not (self._silent(SILENT_SECONDS) or self._stopped()):
            time.sleep(TICK_SECONDS)
        if silent := self._silent(SILENT_SECONDS):
            return self._sentence(silent)
        if stopped := self._stopped():
            beat = self._beats[stopped[0]]
            return f"{self._name(stopped[:1])} stopped: {beat.left}"
        return (
            f"every process answers, but a collective failed ({reason}): one hangs, or takes more than "
            f"train.timeout_seconds={self._timeout:g} for an update; {places}"
        )

    def _exchange(self) -> None:
        """Write the own beat and read those of the others, until closed."""
        keys, values = [str(rank) for rank in range(len(self._beats))], [b""] * len(self._beats)
        number = 0
        # a store that is gone does not answer, which `_judge` sees
        with suppress(RuntimeError):
            while True:
                closed, number = self._closed.is_set(), number + 1
                own = Beat(
                    self._host, number, self.now, place_of(self._main_thread), self._signal, self._left
                )
                self._store.set(str(self._rank), json.dumps(asdict(own)))
                if closed:
                    return
                for rank, value in enumerate(self._store.multi_get(keys)):
                    if value != values[rank]:
                        self._beats[rank], self._heard[rank] = Beat(**json.loads(value)), self._clock
                        values[rank] = value
                self._answered = self._clock
                self._closed.wait(BEAT_SECONDS)

    def _judge(self) -> None:
        """Cut the connections when a process is lost, or when a signal has not stopped this one."""
        # seconds that the main thread waited for others since a signal
        waited, ended = 0.0, False
        while not self._closed.is_set():
            began = time.monotonic()
            if select.select([self._woken], [], [], TICK_SECONDS)[0]:
                numbers = [n for n in self._woken.recv(100) if n in (signal.SIGINT, signal.SIGTERM)]
                self._signal = self._signal or next(iter(numbers), 0)
            passed = min(time.monotonic() - began, 2 * TICK_SECONDS)
            self._clock += passed
            self._relay()
            waited = waited + passed if self._signal and not self._free else 0.0
            if self._free or ended:
                continue
            if waited > GRACE_SECONDS:
                ended = self._end(128 + self._signal, f"stopped by {signal.Signals(self._signal).name}")
            elif silent := self._silent(self._timeout):
                ended = self._end(LOST_CODE, self._sentence(silent))

    def _relay(self) -> None:
        """Make the signal of another process one of this process."""
        numbers = [beat.signal for beat in self._beats if beat.signal]
        if numbers and self._request is not None and not self._signal:
            self._request.relay(numbers[0])

    def _end(self, code: int, sentence: str) -> bool:
        """Cut the connections, or else exit unless the main thread leaves its collective."""
        if self._cut() or self._closed.wait(GRACE_SECONDS) or self._free:
            return True
        print(f"diffwindow: {sentence}; the newest checkpoint counts", file=sys.stderr, flush=True)
        os._exit(code)

    def _silent(self, seconds: float) -> list[int]:
        """Return the processes without a beat for so long: process 0 if its store does not answer."""
        if self._rank and self._clock - self._answered >= seconds:
            return [0]
        return [
            rank
            for rank, beat in enumerate(self._beats)
            if rank != self._rank and not beat.left and self._clock - self._heard[rank] >= seconds
        ]

    def _stopped(self) -> list[int]:
        return [rank for rank, beat in enumerate(self._beats) if beat.left and rank != self._rank]

    def _sentence(self, silent: Sequence[int]) -> str:
        last = self._answered if silent[0] == 0 and self._rank else self._heard[silent[0]]
        doing = self._beats[silent[0]].doing
        return f"lost {self._name(silent)}, last heard from {self._clock - last:.0f} s ago while {doing}"

    def _places(self) -> str:
        """Say where the other processes are, those first that are alone there."""
        ranks: dict[str, list[int]] = {}
        for rank, beat in enumerate(self._beats):
            if rank != self._rank:
                ranks.setdefault(beat.place, []).append(rank)
        fewest_first = sorted(ranks, key=lambda place: len(ranks[place]))
        return ", ".join(f"{self._name(ranks[place])} is in {place}" for place in fewest_first)

    def _name(self, ranks: Sequence[int]) -> str:
        hosts = dict.fromkeys(self._beats[rank].host for rank in ranks)
        numbers = ", ".join(map(str, ranks))
        return f"{' and '.join(hosts)} (process {numbers} of {len(self._beats)})"


def place_of(thread: int) -> str:
    """Return the function that a thread is in, with its file and line."""
    frame = sys._current_frames()[thread]
    return f"{frame.f_code.co_qualname} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def open_sockets() -> set[tuple[int, int]]:
    """Return the descriptor and inode of every socket of this process; none where /dev/fd is missing."""
    found = set()
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
    return found


def shut_down(sockets: set[tuple[int, int]]) -> None:
    """Shut down those of the sockets that are still open and connected, which ends what waits for them."""
    for descriptor, _ in sockets & open_sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            # gloo aborts the process if the socket that listens is shut down
            connection.getpeername()
            connection.shutdown(socket.SHUT_RDWR)
