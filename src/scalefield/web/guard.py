"""Access control and limits: hosts, origins, tokens, sizes of bodies, security headers."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
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


TOKEN_COOKIE = "scalefield_token"
TOKEN_WANTED = "this server requires a token; open the address with ?token=… that it printed"
TOKEN_PAGE = (
    "This page opens by the whole address that <code>scalefield web</code> printed, with "
    "<code>?token=…</code> at its end."
)
log = logging.getLogger(__name__)


class Guard:
    """Answers only requests for its own host names, from its own page and, if set, with its token.

    The Host check stops pages that rebind their name to this address, the Origin and Fetch
    Metadata checks stop pages elsewhere that merely send requests here. Programs that are no
    browser send neither and pass. A link on another page may open this one: a navigation to "/".

    With a `token`, requests must carry it as a cookie, which opening `/?token=…` sets, or as
    `Authorization: Bearer …`.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...], token: str = "") -> None:
        self.app, self.hosts = app, frozenset(host.lower() for host in hosts)
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 401 or 403, or let through; an unforeseen error becomes a 500 in JSON."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self.answer(scope)
        try:
            await (answer or self.app)(scope, receive, send_with_headers)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            failed = {"error": "the server failed; its log has the reason", "code": "failed"}
            await JSONResponse(failed, 500)(scope, receive, send_with_headers)

    def answer(self, scope: Scope) -> Response | None:
        """The refusal of this request, or the redirection that takes a token; None to go on."""
        headers = Headers(scope=scope)
        refusal = self.refusal(headers, navigation=is_navigation(scope, headers))
        if refusal:
            return JSONResponse({"error": refusal, "code": "refused"}, 403)
        if not self.token:
            return None
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self.matches(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(TOKEN_COOKIE, self.token, httponly=True, samesite="lax")
            return answer
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self.matches(bearer) or self.matches(cookie_token(headers.get("cookie", ""))):
            return None
        if "text/html" in headers.get("accept", ""):
            return HTMLResponse(f"<!doctype html><title>scalefield</title><p>{TOKEN_PAGE}", 401)
        return JSONResponse({"error": TOKEN_WANTED, "code": "token"}, 401)

    def matches(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def refusal(self, headers: Headers, *, navigation: bool = False) -> str:
        """Why this request is refused; empty if it is accepted."""
        host = headers.get("host", "")
        if host_name(host) not in self.hosts:
            return "this server does not answer to that Host; open it by the address it printed"
        origin = headers.get("origin")
        # The port counts too: another server on this machine is another site.
        if origin is not None and origin_host(origin) != host.lower():
            return "this server answers only to its own page; the Origin is another site"
        own = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
        if not own and not navigation:
            return "this server answers only to its own page; the request comes from another site"
        return ""


def is_navigation(scope: Scope, headers: Headers) -> bool:
    """Whether the request follows a link to the page."""
    return (
        scope["method"] == "GET"
        and scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def cookie_token(header: str) -> str:
    """The token in a Cookie header; empty if there is none."""
    try:
        cookie = SimpleCookie(header).get(TOKEN_COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""


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
    """Request bodies with a limit for each and for all together.

    Only bytes that have arrived count: a client that sends slowly takes nothing from the others.
    """

    def __init__(self, most_together: int) -> None:
        self.most_together, self.held = most_together, 0

    @asynccontextmanager
    async def read(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The whole body, which counts until the block ends; or 413, 408, 503."""
        too_large = HTTPException(413, f"that is more than the {limit / 2**20:g} MiB taken here")
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > limit:
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
