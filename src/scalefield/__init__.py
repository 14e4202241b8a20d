"""Metric depth from relative monocular depth and a few measured points.

import scalefield as sf
r = sf.recover("photo.jpg", sf.Anchors.read("anchors.csv"))
r.depth_m
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalefield.anchors import Anchors as Anchors
    from scalefield.api import recover as recover
    from scalefield.errors import InputError as InputError
    from scalefield.mde.output import MDEOutput as MDEOutput
    from scalefield.methods import METHODS as METHODS
    from scalefield.recovery import Recovery as Recovery
    from scalefield.recovery import Report as Report
    from scalefield.suggestion import suggest as suggest

__version__ = "0.1.0"

# Torch takes a second to import, and `scalefield --help` should not: names load when first used.
_HOME = {
    "Anchors": "anchors",
    "InputError": "errors",
    "MDEOutput": "mde.output",
    "METHODS": "methods",
    "Recovery": "recovery",
    "Report": "recovery",
    "recover": "api",
    "suggest": "suggestion",
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'scalefield' has no attribute {name!r}")
    return getattr(import_module(f"scalefield.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
