"""A server on this machine: type a sentence and see its windows."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from diffwindow.extras import require
from diffwindow.inference.live import Answer, Answers, BusyError, Compute, Event, Limits
from diffwindow.view.page import page_html

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from uvicorn import Config

LOCAL = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DEFAULT_LIMITS = Limits()


class RequestError(Exception):
    """A request that is refused: the status and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def create_app(
    compute: Compute, *, label: str, title: str, hosts: Sequence[str] = LOCAL, limits: Limits = DEFAULT_LIMITS
) -> Starlette:
    """Make the application: the page at `/`, answers at `/attention`, and `/health`.

    `label` names the field that people type in. Requests for a host that is not in `hosts` are refused, so
    that a page of another site cannot reach the server under a name of its own.
    """
    require("starlette")
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route

    answers = Answers(compute, limits)
    page = page_html({"title": title, "runs": [], "notices": [], "live": {"label": label}})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, answers.close)

    def refused(error: RequestError) -> JSONResponse:
        headers = {**HEADERS, "Retry-After": "1"} if error.status == 503 else HEADERS
        return JSONResponse({"error": str(error)}, error.status, headers=headers)

    def checked(
        handle: Callable[[Request], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                _check_host(request, hosts)
                return await handle(request)
            except RequestError as error:
                return refused(error)

        return endpoint

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers=HEADERS)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "model": title}, headers=HEADERS)

    async def attention(request: Request) -> Response:
        text = await _read_text(request, limits)
        try:
            answer = answers.ask(text)
        except BusyError:
            raise RequestError(503, "too many sentences are being computed; try again in a moment") from None
        first = await _first_line(answer, limits.compute_time)
        if "error" in first:
            # the status is known when the thread has left the answer
            await answer.finished()
            raise RequestError(answer.failure or 500, first["error"])
        return StreamingResponse(answer.follow(), media_type="application/x-ndjson", headers=HEADERS)

    async def unknown(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        reason = {404: f"there is no {request.url.path}", 405: f"{request.method} is not for this address"}
        return refused(RequestError(status, reason.get(status, "the server failed")))

    routes = [
        Route("/", checked(show)),
        Route("/health", checked(health)),
        Route("/attention", checked(attention), methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {404: unknown, 405: unknown, 500: unknown}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def _check_host(request: Request, hosts: Sequence[str]) -> None:
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


async def _read_text(request: Request, limits: Limits) -> str:
    """Read the sentence of a request: a JSON object with a text, of bounded size and in bounded time."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RequestError(415, "send application/json")
    try:
        async with asyncio.timeout(limits.read_time):
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body:
                    raise RequestError(413, f"a request may have {limits.body:,} bytes")
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


async def _first_line(answer: Answer, seconds: float) -> Event:
    """Wait for the first event of an answer."""
    try:
        async with asyncio.timeout(seconds):
            first: Event = json.loads(await anext(answer.follow()))
            return first
    except TimeoutError:
        raise RequestError(504, f"the answer took more than {seconds:g} seconds") from None


def allowed_hosts(host: str) -> tuple[str, ...]:
    """Return the names that a server on this address answers to.

    >>> allowed_hosts("192.168.1.5")
    ('192.168.1.5', 'localhost', '127.0.0.1', '[::1]')
    """
    name = f"[{host}]" if ":" in host else host.lower()
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
    require("uvicorn")
    import uvicorn

    uvicorn.Server(server_config(app, limits)).run(sockets=[listening])


def server_config(app: Starlette, limits: Limits = DEFAULT_LIMITS) -> Config:
    """Return uvicorn's settings: plain HTTP, bounded connections and idle time, a quiet log."""
    import uvicorn

    from diffwindow.inference.connection import bounded_protocol

    return uvicorn.Config(
        app,
        http=bounded_protocol(limits.read_time),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=int(limits.read_time),
        timeout_graceful_shutdown=5,
    )
