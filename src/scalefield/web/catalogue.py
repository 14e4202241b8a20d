"""Titles of the methods on the page, with one sentence each."""

from __future__ import annotations

from typing import Any

from scalefield.methods import METHODS
from scalefield.web.edits import QUICK_METHODS

METHOD_TEXTS: dict[str, tuple[str, str]] = {
    "field": (
        "Gaussian process",
        "Corrects the relative depth smoothly towards your measurements; every value has a range.",
    ),
    "basis": (
        "Learned basis maps",
        "Weights maps that a network learned for such scenes; the method of the paper.",
    ),
    "median": ("One scale", "Multiplies the relative depth by one factor for the whole photo."),
    "global": ("One scale and shift", "Fits one factor and one offset for the whole photo."),
    "piecewise": ("Scale by depth range", "Fits a factor and an offset for near, middle and far."),
    "grid": ("Scale on a grid", "Fits factors on a coarse grid and blends between them."),
    "region": ("Scale by region", "Fits every region of similar colour by itself."),
    "lwlr": ("Local fits", "Fits factor and offset at every pixel, near measurements first."),
    "knn": ("Nearest measurements", "Fits every pixel to the few measurements nearest to it."),
    "log_kernel": ("Smooth scale", "Blends the measurements' factors smoothly over the photo."),
    "interpolate": ("Measurements only", "Interpolates between measurements, without the photo."),
}


def method_entries() -> list[dict[str, Any]]:
    """Name, title, sentence and speed of every method, in the order of `METHODS`."""
    entries = []
    for name, method in METHODS.items():
        documented = (method.__doc__ or name).splitlines()[0]
        title, about = METHOD_TEXTS.get(name, (name, documented))
        quick = name in QUICK_METHODS
        entries.append({"name": name, "title": title, "about": about, "quick": quick})
    return entries
