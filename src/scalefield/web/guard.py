"""The border of the server: who may speak to it, how much they may say, what the page may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
BODY_SECONDS = 120.0
"""A body that takes longer to arrive is given up."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Answers only to its own names, and only to its own page; adds the security headers.

    The Host check stops pages that rebind their name to this address, the Origin and Fetch
    Metadata checks stop pages elsewhere that merely send requests here. Programs that are no
    browser send neither and pass.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 403, or let through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self.refusal(Headers(scope=scope))
        if refusal:
            await JSONResponse({"error": refusal}, 403)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def refusal(self, headers: Headers) -> str:
        """Why this request is not answered; empty if it is."""
        host = headers.get("host", "")
        if host_name(host) not in self.hosts:
            return "this server does not answer to that Host; open it by the address it printed"
        origin = headers.get("origin")
        # The port counts too: another server on this machine is another site.
        if origin is not None and origin_host(origin) != host.lower():
            return "this server answers only to its own page; the Origin is another site"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "this server answers only to its own page; the request comes from another site"
        return ""


def host_name(host: str) -> str:
    """`name:port` without the port; IPv6 addresses keep their brackets."""
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdigit() else host.lower()


def origin_host(origin: str) -> str:
    """Name and port of an Origin; empty for one that is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class Bodies:
    """Request bodies, each limited and all together limited, so that none can fill the memory.

    Only bytes that have come count: a client that sends slowly takes nothing from the others.
    """

    def __init__(self, most_together: int) -> None:
        self.most_together, self.held = most_together, 0

    @asynccontextmanager
    async def read(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The whole body, which counts until the block ends; or 413, 408, 503."""
        too_large = HTTPException(413, f"that is more than the {limit / 2**20:g} MiB taken here")
        promised = request.headers.get("content-length", "0")
        if not promised.isdecimal() or int(promised) > limit:
            raise too_large
        chunks: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    async for chunk in request.stream():
                        size += len(chunk)
                        self.held += len(chunk)
                        chunks.append(chunk)
                        if size > limit:
                            raise too_large
                        if self.held > self.most_together:
                            raise HTTPException(503, "too many uploads at once; try again soon")
            except TimeoutError:
                raise HTTPException(408, "the upload took too long and was given up") from None
            yield b"".join(chunks)
        finally:
            self.held -= size
