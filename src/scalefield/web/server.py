"""Request handlers of `scalefield web`; the routes are in `app`."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response

import scalefield
from scalefield import samples
from scalefield.anchors import Anchors
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError
from scalefield.export.preview import NEAR_TO_FAR, SMALL_TO_LARGE
from scalefield.inputs import from_array
from scalefield.io import image_bytes
from scalefield.mde import MODELS, MDEOutput
from scalefield.measurements import OBJECTS
from scalefield.methods import METHODS
from scalefield.web import wire
from scalefield.web.edits import (
    QUICK_METHODS,
    apply_edit,
    optional_number,
    parse_edit,
    suggestions,
)
from scalefield.web.exports import CloudOptions, export
from scalefield.web.guard import Bodies
from scalefield.web.measuring import measure, parse_question
from scalefield.web.pool import Pool
from scalefield.web.sessions import Session, Sessions
from scalefield.web.uploads import (
    Limits,
    read_anchor_table,
    read_depth,
    read_length,
    read_photo,
)

STATIC = Path(__file__).parent / "static"
TEXT_BYTES = 2**20
"""Of JSON and of tables."""
FEW_ANCHORS = 300
"""With more anchors `field` takes seconds and runs on the thread for slow work."""
SAMPLE_FOV_DEG = {"room": 62.73}
"""2·atan(320 / 525): 640 pixels wide, rendered with a focal length of 525 pixels."""

METHOD_TITLES = {
    "field": "Gaussian process",
    "basis": "Learned patterns",
    "global": "One scale and shift",
    "median": "One scale",
    "piecewise": "Scale by depth range",
    "grid": "Scale on a grid",
    "region": "Scale by region",
    "lwlr": "Local fits",
    "knn": "Nearest measurements",
    "log_kernel": "Smooth scale",
    "interpolate": "Measurements only",
    "poisson": "Gradients of the depth",
    "bilateral_grid": "Scale by place and depth",
    "superpixel_graph": "Scale on a graph of regions",
}
"""Titles of the methods on the page; the sentence about each is the first of its docstring."""
MAIN_METHODS = {
    "field": "Corrects the depth smoothly towards what you measured, and knows where it is unsure.",
    "basis": "Corrects the depth by patterns that were learned from many photos.",
    "global": "One scale and one shift for the whole photo.",
}
"""Methods that the page lists first, in plain words; the others are under "More methods"."""

T = TypeVar("T")


class Server:
    """The handlers, and what they share: sessions, bodies in flight, two pools of threads.

    Photographs, exports and methods that work on every pixel share one thread, on which clients
    take turns; the small solve has its own two, so that an edit never waits for a photograph.
    Work whose client has left is cancelled.
    """

    def __init__(self, limits: Limits, address: str = "") -> None:
        self.limits, self.address = limits, address
        self.sessions = Sessions(limits.sessions, limits.session_bytes)
        self.bodies = Bodies(4 * limits.upload_bytes)
        self.heavy = Pool(1, limits.waiting_jobs, cancellable=True)
        self.quick = Pool(2, limits.waiting_edits)
        self.tasks: set[asyncio.Task[None]] = set()

    async def page(self, request: Request) -> Response:
        """The page."""
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def info(self, request: Request) -> Response:
        """Methods, samples, limits and colour tables of this server."""
        return JSONResponse(
            {
                "version": scalefield.__version__,
                "estimator": MDE_NAME,
                "estimator_licence": MODELS[MDE_NAME].weights_licence,
                "method": METHOD_NAME,
                "methods": method_entries(),
                "samples": list(samples.SAMPLES),
                "address": self.address,
                "objects": {name: value_m for name, (value_m, _) in OBJECTS.items()},
                "limits": {
                    "upload_bytes": self.limits.upload_bytes,
                    "pixels": self.limits.pixels,
                    "anchors": self.limits.anchors,
                    "export_points": self.limits.export_points,
                },
                "colours": {
                    "near_to_far": NEAR_TO_FAR.tolist(),
                    "small_to_large": SMALL_TO_LARGE.tolist(),
                },
            }
        )

    async def address_code(self, request: Request) -> Response:
        """The address of the page for other devices, as a QR code."""
        if not self.address:
            raise HTTPException(404, "only this machine can open the page; start it with --host")
        code = io.BytesIO()
        address_code(self.address).save(code, kind="svg", scale=6)
        return Response(code.getvalue(), media_type="image/svg+xml")

    async def length(self, request: Request) -> Response:
        """The metres of a length as people type it."""
        return JSONResponse({"length_m": read_length(await self.json(request))})

    async def create(self, request: Request) -> Response:
        """A session for the photograph in the body."""
        async with self.bodies.read(request, self.limits.upload_bytes) as data:
            photo = await self.while_connected(
                request, self.heavy, lambda: read_photo(data, self.limits)
            )
        name = plain_name(request.query_params.get("name", ""), "photo.jpg")
        source = "EXIF" if photo.fov_deg else ""
        session = Session(name, photo.pixels, photo.fov_deg, source, client=client_of(request))
        return self.start(session)

    async def create_sample(self, request: Request) -> Response:
        """A session for a bundled sample, which also has its true depth and some anchors."""
        name = request.path_params["name"]
        sample = await self.heavy.run(lambda: samples.load(name), client_of(request))
        session = Session(
            f"{name}.jpg", sample.image, SAMPLE_FOV_DEG[name], "sample", name, sample.depth_m
        )
        session.client = client_of(request)
        return self.start(session, anchors=anchor_rows(sample.anchors))

    async def sample_photo(self, request: Request) -> Response:
        """The photograph of a bundled sample, as a file."""
        name = request.path_params["name"]
        path = (await self.quick.run(lambda: samples.load(name))).image_path
        return FileResponse(path, media_type="image/jpeg")

    def start(self, session: Session, **more: Any) -> Response:
        """Keep the session and let the estimator run; 202, because it takes a moment."""
        self.heavy.check()
        self.reserve(session)
        self.sessions.add(session)
        self.background(session, session.prepare)
        return JSONResponse({**session.describe(), **more}, 202)

    def reserve(self, session: Session) -> None:
        """Free the memory that work on this session takes; refuse it where that is not enough."""
        height, width = session.shape
        needed = session.nbytes + self.limits.work_bytes_per_pixel * height * width
        limit = self.limits.session_bytes
        if needed > limit:
            raise InputError(
                f"work on {height * width / 1e6:.1f} megapixels takes about "
                f"{needed / 2**30:.1f} GB, and this server may use {limit / 2**30:g}; "
                "make the photograph smaller, or start the server with more --max-memory-gb"
            )
        self.sessions.trim(needed - session.nbytes)

    def background(self, session: Session, work: Callable[[], None]) -> None:
        """Run on the heavy thread after the response."""
        running = self.heavy.run(work, session.client)

        async def go() -> None:
            await running
            self.sessions.trim()

        task = asyncio.create_task(go())
        self.tasks.add(task)  # a task without a reference may be garbage-collected
        task.add_done_callback(self.tasks.discard)

    async def while_connected(self, request: Request, pool: Pool, work: Callable[[], T]) -> T:
        """The work's result; `ClientDisconnect` as soon as the client has left, work cancelled."""
        task = asyncio.ensure_future(pool.run(work, client_of(request)))
        left = asyncio.ensure_future(disconnection(request))
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientDisconnect
            return task.result()
        finally:
            left.cancel()
            task.cancel()

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
            return image_bytes(small, "JPEG", quality=90)

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

        key = query.get("key") or None

        def read(data: bytes) -> MDEOutput:
            suffix = PurePosixPath(name).suffix.lower()
            disparity = kind == "disparity"
            values = read_depth(data, suffix, self.limits, key, disparity=disparity)
            return from_array(values, kind, session.image, resize=resize == "true")

        async with self.bodies.read(request, self.limits.upload_bytes) as data:
            output = await self.while_connected(request, self.heavy, lambda: read(data))
        self.heavy.check()
        session.wait()
        self.background(session, lambda: session.prepare(output, name, key))
        return JSONResponse(session.describe(), 202)

    async def table(self, request: Request) -> Response:
        """The anchors of a table, for the session's photograph."""
        session = self.session(request)
        async with self.bodies.read(request, TEXT_BYTES) as data:
            read = partial(read_anchor_table, data, session.shape, self.limits)
            anchors = await self.while_connected(request, self.quick, read)
        return JSONResponse({"anchors": anchor_rows(anchors)})

    async def recover(self, request: Request) -> Response:
        """ℓ for these anchors: on the generator's grid for basis, else at display size."""
        session, edit = self.session(request), parse_edit(await self.json(request), self.limits)
        small = edit.method in QUICK_METHODS and len(edit.anchors) <= FEW_ANCHORS
        pool = self.quick if small else self.heavy
        if not small:
            self.reserve(session)
        work = partial(apply_edit, session, edit)
        return octets(await self.while_connected(request, pool, lambda: wire.pack(*work())))

    async def suggest(self, request: Request) -> Response:
        """The pixels to measure next, given the present anchors."""
        session, edit = self.session(request), parse_edit(await self.json(request), self.limits)
        search = partial(suggestions, session, edit.anchors)
        spots = await self.while_connected(request, self.quick, search)
        return JSONResponse({"suggestions": spots})

    async def measure(self, request: Request) -> Response:
        """Depth at pixels, and lengths, heights and areas between them, in plain JSON."""
        session, body = self.session(request), await self.json(request)
        edit = parse_edit(body, self.limits)
        question = parse_question(body, edit, session.shape, self.limits)
        count = len(edit.anchors) + len(edit.known)
        small = edit.method == "field" and 0 < count <= FEW_ANCHORS
        if not small:
            self.reserve(session)
        work, pool = partial(measure, session, question), self.quick if small else self.heavy
        return JSONResponse(await self.while_connected(request, pool, work))

    async def file(self, request: Request) -> Response:
        """One exported file."""
        session, body = self.session(request), await self.json(request)
        edit, name = parse_edit(body, self.limits), request.path_params["name"]
        options = CloudOptions(
            fov_deg=edit.fov_deg,
            max_points=self.max_points(optional_number(body, "max_points")),
        )
        self.reserve(session)
        work = partial(export, session, edit, name, options)
        data, media_type = await self.while_connected(request, self.heavy, work)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type=media_type, headers=headers)

    def max_points(self, wanted: float | None) -> int:
        """The points that a cloud may have: what is wanted, within this server's limit."""
        limit = self.limits.export_points
        if wanted is not None and not wanted >= 1:
            raise InputError(f"max_points must be 1 or more, found {wanted:g}")
        return limit if wanted is None else int(min(wanted, limit))

    async def json(self, request: Request) -> Any:
        """The body as JSON; NaN and infinities are no JSON."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip()
        if media_type != "application/json":
            raise HTTPException(415, "wanted content-type: application/json")
        async with self.bodies.read(request, TEXT_BYTES) as data:
            try:
                return json.loads(data, parse_constant=_no_number)
            except (ValueError, RecursionError) as e:
                raise InputError(f"the body is not JSON ({e})") from None


def method_entries() -> list[dict[str, Any]]:
    """Name, title, description and speed of every method, the usual ones first."""
    return [
        {
            "name": name,
            "title": METHOD_TITLES.get(name, name),
            "about": MAIN_METHODS.get(name, (method.__doc__ or name).splitlines()[0]),
            "quick": name in QUICK_METHODS,
            "main": name in MAIN_METHODS,
        }
        for name in dict.fromkeys([*METHOD_TITLES, *METHODS])
        if (method := METHODS.get(name))
    ]


def address_code(address: str) -> Any:
    """The address as a QR code."""
    import segno

    return segno.make_qr(address, error="m")


async def disconnection(request: Request) -> None:
    """Returns when the client has closed the connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def client_of(request: Request) -> str:
    """Identity for fair scheduling: an address or, on this machine, one tab of a browser."""
    host = request.client.host if request.client else ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = True  # no address: a test, or a socket of this machine
    return f"{host} {request.headers.get('x-scalefield-client', '')[:40]}" if local else host


def anchor_rows(anchors: Anchors) -> list[dict[str, float]]:
    """Anchors for JSON, without the sigma_m that are not known."""
    names = ("u", "v", "depth_m", "sigma_m")
    columns = {n: getattr(anchors, n).tolist() for n in names if getattr(anchors, n) is not None}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return [{name: x for name, x in row.items() if not math.isnan(x)} for row in rows]


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
