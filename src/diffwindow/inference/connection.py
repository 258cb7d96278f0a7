"""Connections: one that sends no complete request is closed, one that sends no HTTP is told so in JSON."""

from __future__ import annotations

import asyncio
from typing import Any


def bounded_protocol(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with a limit on the time that the head of a request may take."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):
        """Close a connection on which no request begins in time, or which sends something other than HTTP."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Start the clock of the first request."""
            super().connection_made(transport)
            self._arm()

        def data_received(self, data: bytes) -> None:
            """Start the clock again when the head of a further request begins."""
            if self._waiting() and self._deadline is None:
                self._arm()
            super().data_received(data)
            if not self._waiting():
                self._disarm()

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop the clock."""
            self._disarm()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Answer what is not HTTP, unless another answer is under way, and close the connection."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = b'{"error": "the request is not valid HTTP"}'
                headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
                events = (
                    h11.Response(
                        status_code=400, reason=b"Bad Request", headers=[*headers, ("Connection", "close")]
                    ),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                )
                self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
            self.transport.close()

        def _waiting(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _arm(self) -> None:
            self._deadline = self.loop.call_later(seconds, self._expire)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _expire(self) -> None:
            self._deadline = None
            if self._waiting():
                self.transport.close()

    return BoundedProtocol
