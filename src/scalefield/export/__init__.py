"""A recovery in the files that other tools open: the formats by name.

This module imports nothing heavy, so that the help of the command line names the formats at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalefield.errors import InputError, require_package

if TYPE_CHECKING:
    from scalefield.export.view import View

GLB_POINTS = 500_000
"""Points of a GLB, 24 bytes each, unless a number is given: a file that a phone opens."""


@dataclass(frozen=True)
class Format:
    """An output format of `scalefield recover`."""

    files: tuple[str, ...]
    """Names of its files."""
    write: Callable[[View, Path], None]
    """Writes a view; it is given the path of the first file."""
    needs_camera: bool = False
    """Whether the camera must be known."""
    package: tuple[str, str, str] | None = None
    """Optional package that it needs, the extra that installs it, and the purpose for messages."""


FORMATS = {
    "ply": Format(("cloud.ply",), lambda view, path: view.cloud().write(path), needs_camera=True),
    "glb": Format(
        ("cloud.glb",), lambda view, path: view.cloud(GLB_POINTS).write(path), needs_camera=True
    ),
    "exr": Format(
        ("depth.exr",),
        lambda view, path: view.write_depth(path),
        package=("OpenEXR", "exr", "writing OpenEXR files"),
    ),
    "pfm": Format(("depth.pfm",), lambda view, path: view.write_depth(path)),
    "normals": Format(
        ("normals.png", "normals.npy"),
        lambda view, path: view.write_normals(path),
        needs_camera=True,
    ),
    "rrd": Format(
        ("recording.rrd",),
        lambda view, path: view.write_recording(path),
        needs_camera=True,
        package=("rerun", "rerun", "writing a rerun recording"),
    ),
}
"""The formats by name."""


def write_formats(folder: Path, formats: Sequence[str], view: View) -> list[str]:
    """Write the view in each of the formats; returns the files' names."""
    check_formats(formats)
    for name in formats:
        FORMATS[name].write(view, folder / FORMATS[name].files[0])
    return format_files(formats)


def format_files(formats: Sequence[str]) -> list[str]:
    """Names of the files that formats have."""
    return [file for name in formats for file in FORMATS[name].files]


def check_formats(formats: Sequence[str]) -> None:
    """Refuse unknown formats, and those whose optional package is not installed."""
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"no format {name!r}; there are {', '.join(FORMATS)}")
        if (package := FORMATS[name].package) is not None:
            require_package(*package)
