"""A server on this machine: type a sentence and see its windows."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diffwindow.extras import require
from diffwindow.inference.live import Answers, Compute, Limits
from diffwindow.view.page import page_html

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Config

LOCAL = ("localhost", "127.0.0.1", "[::1]")
DEFAULT_LIMITS = Limits()


def create_app(
    compute: Compute, *, label: str, title: str, hosts: Sequence[str] = LOCAL, limits: Limits = DEFAULT_LIMITS
) -> Starlette:
    """Make the application: the page at `/`, answers at `/attention`, and `/health`.

    `label` names the field that people type in. Requests for a host that is not in `hosts` are refused, so
    that a page of another site cannot reach the server under a name of its own.
    """
    require("starlette")
    from diffwindow.inference.application import Endpoints, application

    answers = Answers(compute, limits)
    page = page_html({"title": title, "runs": [], "notices": [], "live": {"label": label}})
    return application(answers, Endpoints(answers, page=page, title=title), hosts)


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
