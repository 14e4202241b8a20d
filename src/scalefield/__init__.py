"""Metric depth from relative monocular depth and a few measured points.

import scalefield as sf
r = sf.recover("photo.jpg", sf.Anchors.read("anchors.csv"))
r.depth_m
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalefield.defaults import VERSION

if TYPE_CHECKING:
    from scalefield.anchors import Anchors as Anchors
    from scalefield.api import Stream as Stream
    from scalefield.api import recover as recover
    from scalefield.api import suggest as suggest
    from scalefield.basis.realtime import Live as Live
    from scalefield.errors import InputError as InputError
    from scalefield.field.realtime import LiveField as LiveField
    from scalefield.geometry.camera import Camera as Camera
    from scalefield.huggingface import recover_from_pipeline as recover_from_pipeline
    from scalefield.mde.output import MDEOutput as MDEOutput
    from scalefield.measurements import Area as Area
    from scalefield.measurements import CameraHeight as CameraHeight
    from scalefield.measurements import Depth as Depth
    from scalefield.measurements import EqualDepth as EqualDepth
    from scalefield.measurements import Footprint as Footprint
    from scalefield.measurements import Height as Height
    from scalefield.measurements import Interval as Interval
    from scalefield.measurements import KnownObject as KnownObject
    from scalefield.measurements import Length as Length
    from scalefield.measurements import Order as Order
    from scalefield.measurements import Path as Path
    from scalefield.measurements import Plane as Plane
    from scalefield.measurements import Slant as Slant
    from scalefield.measurements import Tilt as Tilt
    from scalefield.methods import METHODS as METHODS
    from scalefield.recovery import Recovery as Recovery
    from scalefield.report import Report as Report
    from scalefield.scene.solver import Scene as Scene

__version__ = VERSION

MEASUREMENTS = ("Area", "CameraHeight", "Depth", "EqualDepth", "Footprint", "Height", "Interval",
                "KnownObject", "Length", "Order", "Path", "Plane", "Slant", "Tilt")  # fmt: skip

# Importing torch takes a second, which `scalefield --help` must not: names load on first use.
_HOME = {
    "Anchors": "anchors",
    "InputError": "errors",
    "MDEOutput": "mde.output",
    "METHODS": "methods",
    "Recovery": "recovery",
    "Report": "report",
    "Scene": "scene.solver",
    "Camera": "geometry.camera",
    "Live": "basis.realtime",
    "LiveField": "field.realtime",
    "Stream": "api",
    "recover": "api",
    "recover_from_pipeline": "huggingface",
    "suggest": "api",
    **dict.fromkeys(MEASUREMENTS, "measurements"),
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalefield' has no attribute {name!r}")
    return getattr(import_module(f"scalefield.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
