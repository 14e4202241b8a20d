"""What `scalefield web` does at each address; the routes to it are in `app`."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

import scalefield
from scalefield import samples
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError
from scalefield.export.preview import NEAR_TO_FAR, SMALL_TO_LARGE
from scalefield.inputs import from_array
from scalefield.mde import MODELS, MDEOutput
from scalefield.methods import METHODS
from scalefield.web import wire
from scalefield.web.edits import (
    QUICK_METHODS,
    apply_edit,
    full_recovery,
    parse_edit,
    parse_points,
    suggestions,
)
from scalefield.web.exports import export
from scalefield.web.guard import Bodies
from scalefield.web.openapi import document
from scalefield.web.pool import Pool
from scalefield.web.sessions import Session, Sessions
from scalefield.web.uploads import Limits, read_depth, read_photo

STATIC = Path(__file__).parent / "static"
JSON_BYTES = 2**20
FEW_ANCHORS = 300
"""With more of them `field` works for seconds, which is no small solve any more."""
SAMPLE_FOV_DEG = {"room": 62.73}
"""2·atan(320 / 525): 640 pixels wide, rendered with a focal length of 525 pixels."""


class Server:
    """The handlers, and what they share: sessions, bodies in flight, two pools of threads.

    Photographs, exports and methods that work on every pixel share one thread; the small solve
    has its own two, so that an edit never waits for a photograph.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sessions = Sessions(limits.sessions, limits.session_bytes)
        self.bodies = Bodies(4 * limits.upload_bytes)
        self.heavy = Pool(1, limits.waiting_jobs)
        self.quick = Pool(2, limits.waiting_edits)
        self.tasks: set[asyncio.Task[None]] = set()

    async def page(self, request: Request) -> Response:
        """The page."""
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def openapi(self, request: Request) -> Response:
        """The description of this API."""
        return JSONResponse(document(self.limits))

    async def info(self, request: Request) -> Response:
        """What this server can do, and what the page needs to draw."""
        return JSONResponse(
            {
                "version": scalefield.__version__,
                "estimator": MDE_NAME,
                "estimator_licence": MODELS[MDE_NAME].weights_licence,
                "method": METHOD_NAME,
                "methods": [
                    {"name": name, "about": (method.__doc__ or "").splitlines()[0]}
                    for name, method in METHODS.items()
                ],
                "samples": list(samples.SAMPLES),
                "limits": {
                    "upload_bytes": self.limits.upload_bytes,
                    "pixels": self.limits.pixels,
                    "anchors": self.limits.anchors,
                },
                "colours": {
                    "near_to_far": NEAR_TO_FAR.tolist(),
                    "small_to_large": SMALL_TO_LARGE.tolist(),
                },
            }
        )

    async def create(self, request: Request) -> Response:
        """A session for the photograph in the body."""
        async with self.bodies.read(request, self.limits.upload_bytes) as data:
            photo = await self.heavy.run(lambda: read_photo(data, self.limits))
        name = plain_name(request.query_params.get("name", ""), "photo.jpg")
        source = "EXIF" if photo.fov_deg else ""
        return self.start(Session(name, photo.pixels, photo.fov_deg, source))

    async def create_sample(self, request: Request) -> Response:
        """A session for a bundled sample, which also has its true depth and some anchors."""
        name = request.path_params["name"]
        sample = await self.heavy.run(lambda: samples.load(name))
        session = Session(
            f"{name}.jpg", sample.image, SAMPLE_FOV_DEG[name], "sample", name, sample.depth_m
        )
        anchors = zip(sample.anchors.u, sample.anchors.v, sample.anchors.depth_m, strict=True)
        listed = [{"u": u, "v": v, "depth_m": d} for u, v, d in anchors]
        return self.start(session, anchors=listed)

    def start(self, session: Session, **more: Any) -> Response:
        """Keep the session and let the estimator run; 202, because it takes a moment."""
        self.heavy.check()
        self.sessions.add(session)
        self.background(session.prepare)
        return JSONResponse({**session.describe(), **more}, 202)

    def background(self, work: Callable[[], None]) -> None:
        """Run on the heavy thread after the response."""
        running = self.heavy.run(work)

        async def go() -> None:
            await running
            self.sessions.trim()

        task = asyncio.create_task(go())
        self.tasks.add(task)  # a task that nobody holds may be collected
        task.add_done_callback(self.tasks.discard)

    def session(self, request: Request) -> Session:
        """The session that the path names."""
        return self.sessions.get(request.path_params["id"])

    async def show(self, request: Request) -> Response:
        """State and progress of a session."""
        return JSONResponse(self.session(request).describe())

    async def drop(self, request: Request) -> Response:
        """Forget a session."""
        self.sessions.drop(request.path_params["id"])
        return Response(status_code=204)

    async def photo(self, request: Request) -> Response:
        """The photograph at display size."""
        session = self.session(request)

        def encode() -> bytes:
            rows, columns = session.display
            image = Image.fromarray(session.image)
            small = image.resize((len(columns), len(rows)), Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            small.save(buffer, "JPEG", quality=90)
            return buffer.getvalue()

        return Response(await self.quick.run(encode), media_type="image/jpeg")

    async def maps(self, request: Request) -> Response:
        """log D_MDE at display size and, for a sample, the log of its true depth."""
        session = self.session(request)

        def encode() -> bytes:
            output = session.relative.output
            log_depth = session.shown(output.mde_depth.double().log())
            shown = {"log_mde_depth": np.where(session.shown(output.valid), log_depth, np.nan)}
            if session.truth_m is not None:
                rows, columns = session.display
                shown["log_truth"] = np.log(session.truth_m[rows[:, None], columns])
            return wire.pack(session.describe(), shown)

        return octets(await self.quick.run(encode))

    async def basis(self, request: Request) -> Response:
        """The basis maps E of `basis`, or the linear modes of `field`, on the generator's grid."""
        session, name = self.session(request), request.query_params.get("method", "basis")
        if name not in QUICK_METHODS:
            raise InputError(f"only {' and '.join(QUICK_METHODS)} have basis maps")

        def encode() -> bytes:
            relative = session.relative
            maps = relative.field.maps.modes
            if name == "basis":
                maps = relative.basis[1].basis_maps
            header = {"method": name, "revision": relative.revision}
            return wire.pack(header, {"basis_maps": maps[0].numpy()})

        return octets(await self.quick.run(encode))

    async def bring_depth(self, request: Request) -> Response:
        """Relative depth of the client's own, in place of the estimator's."""
        session, query = self.session(request), request.query_params
        name = plain_name(query.get("name", ""), "depth.npy")
        kind: Any = query.get("kind")
        resize = query.get("resize", "false").lower()
        if resize not in ("true", "false"):
            raise InputError(f"resize is true or false, found {resize[:40]!r}")

        def read(data: bytes) -> MDEOutput:
            values = read_depth(data, PurePosixPath(name).suffix.lower(), self.limits)
            return from_array(values, kind, session.image, resize=resize == "true")

        async with self.bodies.read(request, self.limits.upload_bytes) as data:
            output = await self.heavy.run(lambda: read(data))
        self.heavy.check()
        session.wait()
        self.background(lambda: session.prepare(output, name))
        return JSONResponse(session.describe(), 202)

    async def recover(self, request: Request) -> Response:
        """ℓ for these anchors: on the generator's grid for basis, else at display size."""
        session, edit = self.session(request), parse_edit(await self.json(request), self.limits)
        small = edit.method in QUICK_METHODS and len(edit.anchors) <= FEW_ANCHORS
        pool = self.quick if small else self.heavy
        return octets(await pool.run(lambda: wire.pack(*apply_edit(session, edit))))

    async def suggest(self, request: Request) -> Response:
        """Where to measure next, given the anchors there are."""
        session, edit = self.session(request), parse_edit(await self.json(request), self.limits)
        found = await self.quick.run(lambda: suggestions(session, edit.anchors))
        return JSONResponse({"suggestions": found})

    async def measure(self, request: Request) -> Response:
        """Metric depth at some pixels, in plain JSON."""
        session, body = self.session(request), await self.json(request)
        edit = parse_edit(body, self.limits)
        where = parse_points(body, session.shape, self.limits)

        def work() -> dict[str, Any]:
            recovery = full_recovery(session, edit)
            values = recovery.depth_m[where].tolist()
            depths = [None if np.isnan(value) else value for value in values]
            return {"depth_m": depths, "report": recovery.report.as_dict()}

        return JSONResponse(await self.heavy.run(work))

    async def file(self, request: Request) -> Response:
        """One of the files to take home."""
        session, body = self.session(request), await self.json(request)
        edit, name = parse_edit(body, self.limits), request.path_params["name"]
        said = body.get("fov_deg")
        if isinstance(said, bool) or not isinstance(said, int | float | None):
            raise InputError("fov_deg must be a number")
        fov_deg = None if said is None else float(min(max(said, -1e9), 1e9))  # integers are endless
        data, media_type = await self.heavy.run(lambda: export(session, edit, name, fov_deg))
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type=media_type, headers=headers)

    async def json(self, request: Request) -> Any:
        """The body as JSON; NaN and infinities are no JSON."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip()
        if media_type != "application/json":
            raise HTTPException(415, "wanted content-type: application/json")
        async with self.bodies.read(request, JSON_BYTES) as data:
            try:
                return json.loads(data, parse_constant=_no_number)
            except (ValueError, RecursionError) as e:
                raise InputError(f"the body is not JSON ({e})") from None


def plain_name(name: str, otherwise: str) -> str:
    """The last part of a client's file name, for display and for lines of Python; never opened."""
    last = PurePosixPath(name.replace("\\", "/")).name
    printable = "".join(c for c in last if c.isprintable())[-120:]
    return printable if printable.strip(". ") else otherwise


def octets(data: bytes) -> Response:
    """A body in the format of `wire`."""
    return Response(data, media_type="application/octet-stream")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")
