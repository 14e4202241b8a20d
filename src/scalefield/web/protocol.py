"""HTTP/1.1 connections with a time limit for headers and the guard's headers on every answer."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from scalefield.web.guard import HEADERS

HEADER_SECONDS = 15.0
"""A request whose headers are not complete by then is given up."""
MOST_CONNECTIONS = 512
"""Connections held at once; further ones are closed at once."""


class GuardedProtocol(H11Protocol):
    """Uvicorn's protocol, which has no limit for the time that headers take to arrive."""

    header_seconds: float = HEADER_SECONDS
    most_connections: int = MOST_CONNECTIONS
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.close()
            return
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop the clock when headers are complete; start it when a next request begins."""
        super().handle_events()
        waiting = self.conn.their_state is h11.IDLE
        if not waiting:
            self._stop_waiting()
        elif self.conn.trailing_data[0] and self._header_timer is None:
            self._wait_for_headers()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, with the guard's headers."""
        body = msg.encode("ascii", "replace")
        reason = b"Bad Request"
        fields = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        fields += [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        fields += [(b"content-length", str(len(body)).encode())]
        for event in (
            h11.Response(status_code=400, headers=fields, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait_for_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()
