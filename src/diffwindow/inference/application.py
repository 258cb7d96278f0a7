"""The application of the live page: what it serves, and how it refuses; needs the package starlette."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from diffwindow.inference.live import Answer, Answers, BusyError, Event
from diffwindow.inference.live_requests import RequestError, check_host, read_text

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Endpoint = Callable[[Request], Awaitable[Response]]


class Endpoints:
    """What is served: the page, the server's health, and the attention of a sentence."""

    def __init__(self, answers: Answers, *, page: str, title: str) -> None:
        self._answers = answers
        self._page = page
        self._title = title

    async def page(self, _: Request) -> Response:
        """Return the page."""
        return HTMLResponse(self._page, headers=HEADERS)

    async def health(self, _: Request) -> Response:
        """Return that the server runs, and its model."""
        return JSONResponse({"status": "ok", "model": self._title}, headers=HEADERS)

    async def attention(self, request: Request) -> Response:
        """Return the events of a sentence, a line of JSON each, as they become known."""
        limits = self._answers.limits
        text = await read_text(request, limits)
        try:
            answer = self._answers.ask(text)
        except BusyError:
            raise RequestError(503, "too many sentences are being computed; try again in a moment") from None
        first = await _first_event(answer, limits.compute_time)
        if "error" in first:
            # the status is known when the thread has left the answer
            await answer.finished()
            raise RequestError(answer.failure or 500, first["error"])
        return StreamingResponse(answer.follow(), media_type="application/x-ndjson", headers=HEADERS)


def application(answers: Answers, endpoints: Endpoints, hosts: Sequence[str]) -> Starlette:
    """Return the application; it answers to the names in `hosts`, and closes `answers` when it ends."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, answers.close)

    routes = [
        Route("/", _checked(endpoints.page, hosts)),
        Route("/health", _checked(endpoints.health, hosts)),
        Route("/attention", _checked(endpoints.attention, hosts), methods=["POST"]),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((404, 405, 500), _unknown)
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def _checked(endpoint: Endpoint, hosts: Sequence[str]) -> Endpoint:
    """Return an endpoint that refuses requests of other sites, and answers with what is wrong."""

    async def checked(request: Request) -> Response:
        try:
            check_host(request, hosts)
            return await endpoint(request)
        except RequestError as error:
            return _refusal(error)

    return checked


def _refusal(error: RequestError) -> JSONResponse:
    headers = {**HEADERS, "Retry-After": "1"} if error.status == 503 else HEADERS
    return JSONResponse({"error": str(error)}, error.status, headers=headers)


async def _unknown(request: Request, error: Exception) -> Response:
    """Answer a request that has no endpoint, or whose endpoint failed."""
    status = getattr(error, "status_code", 500)
    reason = {404: f"there is no {request.url.path}", 405: f"{request.method} is not for this address"}
    return _refusal(RequestError(status, reason.get(status, "the server failed")))


async def _first_event(answer: Answer, seconds: float) -> Event:
    """Wait for the first event of an answer."""
    try:
        async with asyncio.timeout(seconds):
            lines = await anext(answer.follow())
            first: Event = json.loads(lines.partition(b"\n")[0])
            return first
    except TimeoutError:
        raise RequestError(504, f"the answer took more than {seconds:g} seconds") from None
