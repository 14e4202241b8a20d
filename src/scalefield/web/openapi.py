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


def document(limits: Limits) -> dict[str, Any]:
    """The OpenAPI 3.1 document; `tests/web` compares it with the routes."""
    one = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    session = _answer("The session", _ref("Session"))
    refusals = {
        "400": _refusal("Bad input, in a sentence"),
        "404": _refusal("The session is no longer held"),
        "503": _refusal("Busy; try again in a moment"),
    }
    started = {"202": session, **refusals, "413": _refusal("Too large")}
    packed = {"200": _octets("A packed body: header and maps"), **refusals}
    edit = {"required": True, "content": {JSON: {"schema": _ref("Edit")}}}
    on_session = {"parameters": [one]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "scalefield web",
            "version": scalefield.__version__,
            "description": "Metric depth of photographs from a few measured points. Packed bodies "
            "are: uint32 length of the header, JSON header (padded with spaces to a multiple of 4 "
            'bytes), then for each of its "maps" {name, shape, low, high} as many uint16: '
            "low + q · (high − low) / 65534, where 65535 is a hole. All little-endian.",
        },
        "paths": {
            "/": {
                "get": {
                    "summary": "The page; ?token= sets the cookie for a server with a token",
                    "responses": {"200": {"description": "HTML"}},
                }
            },
            "/openapi.json": {
                "get": {"summary": "This document", "responses": {"200": _answer("OpenAPI", {})}}
            },
            "/api": {
                "get": {
                    "summary": "Methods, samples, limits and colour tables",
                    "responses": {"200": _answer("What this server can do", {"type": "object"})},
                }
            },
            "/api/sessions": {
                "post": {
                    "summary": "Start a session with a photograph; the estimator runs once",
                    "parameters": [_query("name", "file name, for display")],
                    "requestBody": _upload(
                        f"A JPEG, PNG, WebP, BMP or HEIC of ≤ {limits.pixels} pixels"
                    ),
                    "responses": started,
                }
            },
            "/api/samples/{name}": {
                "post": {
                    "summary": "Start a session with a bundled sample",
                    "parameters": [{**one, "name": "name"}],
                    "responses": started,
                }
            },
            "/api/samples/{name}/photo": {
                "get": {
                    "summary": "The photograph of a bundled sample",
                    "parameters": [{**one, "name": "name"}],
                    "responses": {
                        "200": {"description": "JPEG", "content": {"image/jpeg": {}}},
                        **refusals,
                    },
                }
            },
            "/api/sessions/{id}": {
                **on_session,
                "get": {"summary": "State and progress", "responses": {"200": session, **refusals}},
                "delete": {
                    "summary": "Forget the session",
                    "responses": {"204": {"description": "Forgotten"}, **refusals},
                },
            },
            "/api/sessions/{id}/photo.jpg": {
                **on_session,
                "get": {
                    "summary": "The photograph at display size",
                    "responses": {
                        "200": {"description": "JPEG", "content": {"image/jpeg": {}}},
                        **refusals,
                    },
                },
            },
            "/api/sessions/{id}/maps": {
                **on_session,
                "get": {
                    "summary": "log D_MDE at display size; of a sample also log_truth",
                    "responses": packed,
                },
            },
            "/api/sessions/{id}/basis": {
                **on_session,
                "get": {
                    "summary": "The basis maps, on the generator's grid",
                    "parameters": [_query("method", "basis or field; basis if not said")],
                    "responses": packed,
                },
            },
            "/api/sessions/{id}/depth": {
                **on_session,
                "put": {
                    "summary": "Relative depth of your own in place of the estimator's",
                    "parameters": [
                        {**_query("kind", "what it holds"), "required": True}
                        | {"schema": {"enum": ["depth", "disparity"]}},
                        _query(
                            "name",
                            "file name; its ending (.npy, .npz, .png, .exr, .pfm) gives the format",
                        ),
                        _query("resize", "true allows another size than the photograph's"),
                        _query("key", "the array or channel, where the file holds several"),
                    ],
                    "requestBody": _upload("The file"),
                    "responses": started,
                },
            },
            "/api/sessions/{id}/recover": {
                **on_session,
                "post": {
                    "summary": "The log-scale field for these anchors",
                    "description": "A client that disconnects has its work cancelled. The header "
                    "has, for each anchor, residual_log or the reason it was not used; "
                    "others, the depth that the other anchors expect there and by "
                    "how many of their standard deviations they are contradicted; suspects; "
                    "weights; warnings (code, text). log_scale is on the generator's grid for "
                    "basis (bilinear between cell centres), at display size for other methods; "
                    "std_log, its standard deviation, on the grid, if the method has one. "
                    "depth = exp(log_mde_depth + log_scale), held within limits_m.",
                    "requestBody": edit,
                    "responses": packed,
                },
            },
            "/api/sessions/{id}/suggest": {
                **on_session,
                "post": {
                    "summary": "The pixels to measure next, best first; anchors may be empty",
                    "requestBody": edit,
                    "responses": {
                        "200": _answer("Pixels", _ref("Suggestions")),
                        **refusals,
                    },
                },
            },
            "/api/sessions/{id}/measure": {
                **on_session,
                "post": {
                    "summary": "Metric depth at pixels of the photograph, in JSON",
                    "requestBody": {"content": {JSON: {"schema": _ref("Measure")}}},
                    "responses": {"200": _answer("Depths in metres", _ref("Depths")), **refusals},
                },
            },
            "/api/sessions/{id}/files/{name}": {
                "parameters": [
                    one,
                    {**one, "name": "name"} | {"schema": {"enum": list(FILES)}},
                ],
                "post": {
                    "summary": "A file of the photograph's size; clouds want fov_deg",
                    "requestBody": edit,
                    "responses": {"200": _octets("The file"), **refusals},
                },
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
    return {
        "Error": {
            "type": "object",
            "properties": {
                "error": {**string, "description": "a sentence to show to the user"},
                "code": {**string, "description": "the same for every case of its kind"},
                "choices": {"type": "array", "items": string},
            },
            "required": ["error", "code"],
        },
        "Anchor": {
            "type": "object",
            "properties": {
                **pixel,
                "depth_m": {**number, "exclusiveMinimum": 0},
                "sigma_m": {
                    **number,
                    "exclusiveMinimum": 0,
                    "description": "standard deviation of depth_m; optional",
                },
            },
            "required": ["u", "v", "depth_m"],
            "additionalProperties": False,
        },
        "Point": {
            "type": "object",
            "properties": pixel,
            "required": ["u", "v"],
            "additionalProperties": False,
        },
        "Edit": {"type": "object", "properties": edit, "required": ["anchors"]},
        "Measure": {
            "type": "object",
            "properties": {
                **edit,
                "points": {"type": "array", "maxItems": limits.anchors, "items": _ref("Point")},
            },
            "required": ["anchors", "points"],
        },
        "Depths": {
            "type": "object",
            "properties": {
                "depth_m": depths,
                "std_log": {**depths, "description": "of log-depth, where the method gives it"},
                "report": {"type": "object"},
            },
            "required": ["depth_m", "report"],
        },
        "Suggestions": {
            "type": "object",
            "properties": {
                "suggestions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            **pixel,
                            "std_log": {**number, "description": "of log-depth there, now"},
                            "removes": {
                                **number,
                                "description": "share of the uncertainty it removes",
                            },
                        },
                    },
                }
            },
        },
        "Session": {
            "type": "object",
            "properties": {
                **dict.fromkeys(
                    ("id", "name", "step", "error", "fov_source", "sample", "relative_depth",
                     "kind"), string
                ),
                "state": {"enum": ["waiting", "working", "ready", "failed"]},
                "progress": {**number, "minimum": 0, "maximum": 1},
                **dict.fromkeys(
                    ("width", "height", "display_width", "display_height", "revision"), integer
                ),
                "fov_deg": {"type": ["number", "null"]},
            },
            "required": ["id", "state", "width", "height"],
        },
    }  # fmt: skip


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
