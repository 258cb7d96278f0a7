"""The server of `view --serve`: a page that shows what a model attends to in any sentence."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from diffwindow.view.page import page_html


class RequestError(Exception):
    """A request that is refused: the status and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def check_host(request: Request, hosts: Sequence[str]) -> None:
    """Refuse a request for another host, or one that a page of another site sends."""
    name = _without_port(request.headers.get("host", ""))
    if name not in hosts:
        raise RequestError(421, f"this server is not {name!r}; open it as {hosts[0]}")
    origin = request.headers.get("origin")
    if origin is not None and _without_port(origin.partition("://")[2]) not in hosts:
        raise RequestError(403, "requests from other sites are refused")


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


async def read_text(request: Request, limits: Limits) -> str:
    """Read the sentence of a request: a JSON object with a text, of bounded size and in bounded time."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, "send application/json")
    try:
        async with asyncio.timeout(limits.read_time):
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body:
                    raise RequestError(413, f"a request may have {limits.body:,} bytes")
    except ClientDisconnect:
        # nobody reads the answer
        raise RequestError(400, "the request broke off") from None
    except TimeoutError:
        raise RequestError(408, f"the request took more than {limits.read_time:g} seconds") from None
    try:
        asked = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise RequestError(400, "the request is not JSON in UTF-8") from None
    text = asked.get("text") if isinstance(asked, dict) else None
    if not isinstance(text, str) or set(asked) != {"text"}:
        raise RequestError(400, 'send {"text": "a sentence"}')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(400, "the text holds half a character") from None
    return text.strip()


LOG = logging.getLogger(__name__)
Event = dict[str, Any]
# returns the events of a text: a page, and before it the steps of a translation
Compute = Callable[[str], Iterator[Event]]


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
        """Return the answer for a text, old or new; refuse it if too many are under way."""
        if (known := self._answers.get(text)) is not None:
            self._answers.move_to_end(text)
            return known
        if sum(not answer.done for answer in self._answers.values()) >= self.limits.waiting:
            raise RequestError(503, "too many sentences are being computed; try again in a moment")
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

        def add(event: Event) -> None:
            line = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8") + b"\n"
            loop.call_soon_threadsafe(answer.add, line)

        try:
            for event in self._compute(text):
                if self._closed:
                    raise TimeoutError("the server is stopping")
                if loop.time() > deadline:
                    raise TimeoutError(f"this took more than {self.limits.compute_time:g} seconds")
                add(event)
        except (ValueError, TimeoutError) as error:
            failure = 422 if isinstance(error, ValueError) else 504
            add({"error": str(error)})
        except Exception:
            failure = 500
            LOG.exception("the model failed on a text of %d characters", len(text))
            add({"error": "the model failed; the server's log says why"})
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


HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
RETRY = {**HEADERS, "Retry-After": "1"}


def bounded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with limits on connections and the time of the head of a request."""
    refusal = JSONResponse({"error": "too many connections; try again in a moment"}, 503, headers=RETRY)

    class BoundedProtocol(H11Protocol):
        """Close a connection on which no request begins in time, or which sends something other than HTTP."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._arm()

        def data_received(self, data: bytes) -> None:
            """Start the clock again when the head of a further request begins."""
            if self._waiting() and self._deadline is None:
                self._arm()
            # uvicorn would refuse it with a plain text
            full = len(self.connections) > limits.connections
            self.app = refusal if full else self.config.loaded_app
            super().data_received(data)
            if not self._waiting():
                self._disarm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Answer what is not HTTP, unless another answer is under way, and close the connection."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = b'{"error": "the request is not valid HTTP"}'
                headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
                headers.append(("Connection", "close"))
                head = h11.Response(status_code=400, reason=b"Bad Request", headers=headers)
                events = (head, h11.Data(data=body), h11.EndOfMessage())
                self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
            self.transport.close()

        def _waiting(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _arm(self) -> None:
            self._deadline = self.loop.call_later(limits.read_time, self._expire)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _expire(self) -> None:
            self._deadline = None
            if self._waiting():
                self.transport.close()

    return BoundedProtocol


LOCAL = ("localhost", "127.0.0.1", "[::1]")
DEFAULT_LIMITS = Limits()


def create_app(
    compute: Compute, *, label: str, title: str, hosts: Sequence[str] = LOCAL, limits: Limits = DEFAULT_LIMITS
) -> Starlette:
    """Make the application: the page at `/`, answers at `/attention`, and `/health`.

    `label` names the field that people type in. Requests for a host that is not in `hosts` are refused, so
    that a page of another site cannot reach the server under a name of its own.
    """
    answers = Answers(compute, limits)
    html = page_html({"title": title, "runs": [], "notices": [], "live": {"label": label}})

    async def page(request: Request) -> Response:
        check_host(request, hosts)
        return HTMLResponse(html, headers=HEADERS)

    async def health(request: Request) -> Response:
        check_host(request, hosts)
        return JSONResponse({"status": "ok", "model": title}, headers=HEADERS)

    async def attention(request: Request) -> Response:
        check_host(request, hosts)
        return await answer_request(request, answers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, answers.close)

    routes = [Route("/", page), Route("/health", health), Route("/attention", attention, methods=["POST"])]
    handlers: dict[Any, Any] = {RequestError: _refuse, **dict.fromkeys((404, 405, 500), _refuse)}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    # a redirection would lead to whatever host a request names
    app.router.redirect_slashes = False
    return app


async def answer_request(request: Request, answers: Answers) -> Response:
    """Return the events of a sentence, a line of JSON each, as they become known."""
    answer = answers.ask(await read_text(request, answers.limits))
    seconds = answers.limits.compute_time
    try:
        async with asyncio.timeout(seconds):
            first: Event = json.loads((await anext(answer.follow())).partition(b"\n")[0])
    except TimeoutError:
        raise RequestError(504, f"the answer took more than {seconds:g} seconds") from None
    if "error" in first:
        # the status is known when the thread has left the answer
        async for _ in answer.follow():
            pass
        raise RequestError(answer.failure or 500, first["error"])
    return StreamingResponse(answer.follow(), media_type="application/x-ndjson", headers=HEADERS)


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer a request that is refused, has no endpoint, or whose endpoint failed."""
    status = error.status if isinstance(error, RequestError) else getattr(error, "status_code", 500)
    path = request.url.path if len(request.url.path) <= 80 else f"{request.url.path[:80]}…"
    reason = {404: f"there is no {path}", 405: f"{request.method} is not for this address"}
    said = str(error) if isinstance(error, RequestError) else reason.get(status, "the server failed")
    return JSONResponse({"error": said}, status, headers=RETRY if status == 503 else HEADERS)


def allowed_hosts(host: str) -> tuple[str, ...]:
    """Return the names that a server on this address answers to.

    >>> allowed_hosts("192.168.1.5")
    ('192.168.1.5', 'localhost', '127.0.0.1', '[::1]')
    >>> allowed_hosts("FE80::1")[0]
    '[fe80::1]'
    """
    name = f"[{host}]".lower() if ":" in host else host.lower()
    return LOCAL if name in LOCAL else (name, *LOCAL)


def bound_socket(host: str, port: int) -> socket.socket:
    """Take a port, or any free one for 0."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ValueError(f"cannot serve on {host}, port {port}: {reason}; choose another") from None


def serve(app: Starlette, listening: socket.socket, *, limits: Limits = DEFAULT_LIMITS) -> None:
    """Run the application until Ctrl-C or SIGTERM; requests under way may finish for some seconds."""
    uvicorn.Server(server_config(app, limits)).run(sockets=[listening])


def server_config(app: Starlette, limits: Limits = DEFAULT_LIMITS) -> uvicorn.Config:
    """Return uvicorn's settings: plain HTTP, bounded connections and idle time, a quiet log."""
    return uvicorn.Config(
        app,
        http=bounded_protocol(limits),
        ws="none",
        # not of what clients send
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.read_time),
        timeout_graceful_shutdown=5,
    )
