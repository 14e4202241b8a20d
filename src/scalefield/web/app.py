"""The routes of `scalefield web`: the static page and its JSON API.

GET    /                               the page; ?token= sets the cookie of a server with a token
GET    /api                            methods, samples, limits, colour tables
GET    /api/address.svg                the address of the page for other devices, as a QR code
POST   /api/length                     {text[, unit]} → {length_m}
POST   /api/sessions                   a photograph, ?name= → 202, a session
POST   /api/samples/{name}             → 202, a session with the anchors of a bundled sample
GET    /api/samples/{name}/photo       its photograph
GET    /api/sessions/{id}              the session: its state, sizes, field of view, …
DELETE /api/sessions/{id}              forgets it
GET    /api/sessions/{id}/photo.jpg    the photograph at display size
GET    /api/sessions/{id}/maps         log D_MDE at display size, in the format of wire.py
GET    /api/sessions/{id}/basis        basis maps, ?method=basis or field, in the format of wire.py
PUT    /api/sessions/{id}/depth        a depth file, ?name= &kind=[ &resize= &key=] → 202, a session
POST   /api/sessions/{id}/table        a table of anchors → {anchors}
POST   /api/sessions/{id}/recover      an edit → log-scale and its std, in the format of wire.py
POST   /api/sessions/{id}/suggest      an edit → {suggestions: [{u, v, std_log, removes}, …]}
POST   /api/sessions/{id}/measure      a question → depths and measurements with 90 % intervals
POST   /api/sessions/{id}/files/{name} an edit [with fov_deg, max_points] → one of exports.FILES

An edit is {anchors: [{u, v, depth_m[, sigma_m]}, …][, method][, size: full or preview][, known:
[{kind, points[, value_m]}, …], fov_deg]}, where `known` are measurements besides anchors; depth is
exp(log D_MDE + log-scale) within the answer's limits_m. A question is an edit with points: [{u, v},
…], or measurements: [{kind: distance, path, area or height, points}, …]; its answer is
{depth_m[, low_m, high_m, std_log], measurements: [{value, low, high}, …], report}. An error is
{error: a sentence, code}, with `choices` for a depth file of several arrays and `readings` for a
length with several.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from scalefield.errors import InputError, MissingExtra
from scalefield.io.anchor_tables import TableError
from scalefield.io.lengths import LengthError
from scalefield.web.guard import LOCAL_HOSTS, Guard
from scalefield.web.pool import Busy
from scalefield.web.server import STATIC, Server
from scalefield.web.sessions import Gone
from scalefield.web.uploads import Limits, SeveralArrays


def create_app(
    limits: Limits | None = None,
    hosts: tuple[str, ...] = LOCAL_HOSTS,
    token: str = "",
    address: str = "",
) -> Starlette:
    """The whole server, to be run by any ASGI runner; it answers to `hosts` only.

    With a `token`, it answers only to requests that carry it; see `Guard`. `address` is where other
    devices open the page, which shows it as a QR code.
    """
    server = Server(limits or Limits(), address)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for pool in (server.heavy, server.quick):
            pool.executor.shutdown(wait=False, cancel_futures=True)

    one = "/api/sessions/{id}"
    routes = [
        Route("/", server.page),
        Route("/api", server.info),
        Route("/api/address.svg", server.address_code),
        Route("/api/length", server.length, methods=["POST"]),
        Route("/api/sessions", server.create, methods=["POST"]),
        Route("/api/samples/{name}", server.create_sample, methods=["POST"]),
        Route("/api/samples/{name}/photo", server.sample_photo, methods=["GET"]),
        Route(one, server.show, methods=["GET"]),
        Route(one, server.drop, methods=["DELETE"]),
        Route(f"{one}/photo.jpg", server.photo),
        Route(f"{one}/maps", server.maps),
        Route(f"{one}/basis", server.basis),
        Route(f"{one}/depth", server.bring_depth, methods=["PUT"]),
        Route(f"{one}/table", server.table, methods=["POST"]),
        Route(f"{one}/recover", server.recover, methods=["POST"]),
        Route(f"{one}/suggest", server.suggest, methods=["POST"]),
        Route(f"{one}/measure", server.measure, methods=["POST"]),
        Route(f"{one}/files/{{name}}", server.file, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={
            InputError: _bad_input,
            MissingExtra: _sentence(501, "missing_extra"),
            Gone: _sentence(404, "session_gone"),
            Busy: _sentence(503, "busy"),
            ClientDisconnect: _sentence(400, "disconnected"),
            HTTPException: _http_error,
        },
    )
    app.state.server = server
    return app


def _sentence(status: int, code: str) -> Callable[[Request, Exception], Response]:
    return lambda request, e: JSONResponse({"error": str(e), "code": code}, status)


def _bad_input(request: Request, e: Exception) -> Response:
    """The sentence; for a text or a file with several readings also what may be chosen."""
    body: dict[str, Any] = {"error": str(e), "code": "input"}
    match e:
        case SeveralArrays():
            body |= {"code": "choose_array", "choices": e.names}
        case LengthError():
            body |= {"code": e.code, "readings": e.readings}
        case TableError():
            body["code"] = e.code
    return JSONResponse(body, 400)


def _http_error(request: Request, e: Exception) -> Response:
    status = getattr(e, "status_code", 500)
    body = {"error": str(getattr(e, "detail", e)), "code": f"http_{status}"}
    return JSONResponse(body, status, getattr(e, "headers", None))
