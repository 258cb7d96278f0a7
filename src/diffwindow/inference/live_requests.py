"""Requests to the live page's server: which are refused, and the sentence of one that is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffwindow.inference.live import Limits

if TYPE_CHECKING:
    from starlette.requests import Request


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
    from starlette.requests import ClientDisconnect

    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
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
