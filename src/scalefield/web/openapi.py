"""The OpenAPI document of the API of the server, written by hand; a test compares the routes."""

from __future__ import annotations

from typing import Any

import scalefield
from scalefield.defaults import METHOD_NAME
from scalefield.methods import METHODS
from scalefield.web.exports import FILES
from scalefield.web.uploads import Limits

JSON = "application/json"
OCTETS = "application/octet-stream"
PACKED = (
    "Metric depth of photographs from a few measured points. Packed bodies are: uint32 length of "
    "the header, JSON header (padded with spaces to a multiple of 4 bytes), then for each of its "
    '"maps" {name, shape, low, high} as many uint16: low + q · (high − low) / 65534, where 65535 '
    "is a hole. All little-endian."
)
RECOVER = (
    "A client that disconnects has its work cancelled. The header has, for each anchor, "
    "residual_log or the reason it was not used; others, the depth that the other anchors expect "
    "there and by how many of their standard deviations they are contradicted; suspects; weights; "
    "warnings (code, text). log_scale is on the generator's grid for basis (bilinear between cell "
    "centres), at display size for other methods; std_log, its standard deviation, on the grid, if "
    "the method has one. depth = exp(log_mde_depth + log_scale), held within limits_m."
)


def document(limits: Limits) -> dict[str, Any]:
    """The OpenAPI 3.1 document; `tests/web` compares it with the routes."""
    one, name = _path("id"), _path("name")
    session = {"200": _answer("The session", _ref("Session"))}
    refusals = {
        "400": _refusal("Bad input, in a sentence"),
        "404": _refusal("The session is no longer held"),
        "503": _refusal("Busy; try again in a moment"),
    }
    started = {"202": session["200"], **refusals, "413": _refusal("Too large")}
    packed = {"200": _octets("A packed body: header and maps"), **refusals}
    picture = {"200": {"description": "JPEG", "content": {"image/jpeg": {}}}, **refusals}
    edit = {"required": True, "content": {JSON: {"schema": _ref("Edit")}}}
    measure = {"content": {JSON: {"schema": _ref("Measure")}}}
    photograph = _upload(f"A JPEG, PNG, WebP, BMP or HEIC of ≤ {limits.pixels} pixels")
    kind = {**_query("kind", "what it holds"), "required": True}
    endings = "file name; its ending (.npy, .npz, .png, .exr, .pfm) gives the format"
    own_depth = [
        kind | {"schema": {"enum": ["depth", "disparity"]}},
        _query("name", endings),
        _query("resize", "true allows another size than the photograph's"),
        _query("key", "the array or channel, where the file holds several"),
    ]
    page = "The page; ?token= sets the cookie for a server with a token"
    able = _answer("What this server can do", {"type": "object"})
    of_sessions = {
        "": _get("State and progress", {**session, **refusals})
        | {
            "delete": {
                "summary": "Forget the session",
                "responses": {"204": {"description": "Forgotten"}, **refusals},
            }
        },
        "/photo.jpg": _get("The photograph at display size", picture),
        "/maps": _get("log D_MDE at display size; of a sample also log_truth", packed),
        "/basis": _get(
            "The basis maps, on the generator's grid",
            packed,
            parameters=[_query("method", "basis or field; basis if not said")],
        ),
        "/depth": {
            "put": {
                "summary": "Relative depth of your own in place of the estimator's",
                "parameters": own_depth,
                "requestBody": _upload("The file"),
                "responses": started,
            }
        },
        "/recover": _post(
            "The log-scale field for these anchors", packed, edit, description=RECOVER
        ),
        "/suggest": _post(
            "The pixels to measure next, best first; anchors may be empty",
            {"200": _answer("Pixels", _ref("Suggestions")), **refusals},
            edit,
        ),
        "/measure": _post(
            "Metric depth at pixels of the photograph, in JSON",
            {"200": _answer("Depths in metres", _ref("Depths")), **refusals},
            measure,
        ),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "scalefield web",
            "version": scalefield.__version__,
            "description": PACKED,
        },
        "paths": {
            "/": _get(page, {"200": {"description": "HTML"}}),
            "/openapi.json": _get("This document", {"200": _answer("OpenAPI", {})}),
            "/api": _get("Methods, samples, limits and colour tables", {"200": able}),
            "/api/sessions": _post(
                "Start a session with a photograph; the estimator runs once",
                started,
                photograph,
                parameters=[_query("name", "file name, for display")],
            ),
            "/api/samples/{name}": _post(
                "Start a session with a bundled sample", started, parameters=[name]
            ),
            "/api/samples/{name}/photo": _get(
                "The photograph of a bundled sample", picture, parameters=[name]
            ),
            **{
                f"/api/sessions/{{id}}{path}": {"parameters": [one], **operations}
                for path, operations in of_sessions.items()
            },
            "/api/sessions/{id}/files/{name}": {
                "parameters": [one, name | {"schema": {"enum": list(FILES)}}],
                **_post(
                    "A file of the photograph's size; clouds want fov_deg",
                    {"200": _octets("The file"), **refusals},
                    edit,
                ),
            },
        },
        "components": {"schemas": _schemas(limits)},
    }


def _schemas(limits: Limits) -> dict[str, Any]:
    number, integer, string = ({"type": t} for t in ("number", "integer", "string"))
    pixel = {"u": {**number, "description": "to the right"}, "v": {**number, "description": "down"}}
    edit = {
        "anchors": {"type": "array", "maxItems": limits.anchors, "items": _ref("Anchor")},
        "method": {"enum": list(METHODS), "default": METHOD_NAME},
        "size": {
            "enum": ["full", "preview"],
            "default": "full",
            "description": "for /recover: preview gives a quicker result on a coarser grid, "
            "where the method has one; the size in the answer states which it is",
        },
        "fov_deg": {**number, "description": "horizontal field of view, for clouds"},
        "max_points": {
            **number,
            "description": "points of a cloud at most",
            "maximum": limits.export_points,
        },
    }
    depths = {"type": "array", "items": {"type": ["number", "null"]}}
    spot = {
        **pixel,
        "std_log": {**number, "description": "of log-depth there, now"},
        "removes": {**number, "description": "share of the uncertainty it removes"},
    }
    anchor = {
        **pixel,
        "depth_m": {**number, "exclusiveMinimum": 0},
        "sigma_m": {
            **number,
            "exclusiveMinimum": 0,
            "description": "standard deviation of depth_m; optional",
        },
    }
    points = {"type": "array", "maxItems": limits.anchors, "items": _ref("Point")}
    error = {
        "error": {**string, "description": "a sentence to show to the user"},
        "code": {**string, "description": "the same for every case of its kind"},
        "choices": {"type": "array", "items": string},
    }
    recovered = {
        "depth_m": depths,
        "std_log": {**depths, "description": "of log-depth, where the method gives it"},
        "report": {"type": "object"},
    }
    texts = ("id", "name", "step", "error", "fov_source", "sample", "relative_depth", "kind")
    counts = ("width", "height", "display_width", "display_height", "revision")
    session = {
        **dict.fromkeys(texts, string),
        "state": {"enum": ["waiting", "working", "ready", "failed"]},
        "progress": {**number, "minimum": 0, "maximum": 1},
        **dict.fromkeys(counts, integer),
        "fov_deg": {"type": ["number", "null"]},
    }
    suggestions = {"type": "array", "items": _object(spot)}
    return {
        "Error": _object(error, "error", "code"),
        "Anchor": _object(anchor, "u", "v", "depth_m") | {"additionalProperties": False},
        "Point": _object(pixel, "u", "v") | {"additionalProperties": False},
        "Edit": _object(edit, "anchors"),
        "Measure": _object({**edit, "points": points}, "anchors", "points"),
        "Depths": _object(recovered, "depth_m", "report"),
        "Suggestions": _object({"suggestions": suggestions}),
        "Session": _object(session, "id", "state", "width", "height"),
    }


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    listed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **listed}


def _get(summary: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"get": {"summary": summary, **more, "responses": responses}}


def _post(
    summary: str, responses: dict[str, Any], body: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    request = {} if body is None else {"requestBody": body}
    return {"post": {"summary": summary, **more, **request, "responses": responses}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _octets(description: str) -> dict[str, Any]:
    return {"description": description, "content": {OCTETS: {}}}


def _refusal(description: str) -> dict[str, Any]:
    return _answer(description, _ref("Error"))


def _upload(description: str) -> dict[str, Any]:
    return {"description": description, "required": True, "content": {OCTETS: {}}}


def _query(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
