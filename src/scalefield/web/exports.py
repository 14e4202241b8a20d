"""Exported files as bytes, with the values of `scalefield.recover`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from scalefield.errors import InputError
from scalefield.export.cloud import PointCloud, write_glb, write_ply
from scalefield.geometry.camera import Camera
from scalefield.io import write_depth_png, write_npz
from scalefield.web.edits import Edit, full_recovery
from scalefield.web.sessions import Session

OCTETS = "application/octet-stream"
PNG_UNITS = (1000.0, 256.0, 100.0, 10.0)
"""Units per metre of depth.png: millimetres, or the finest that holds the farthest pixel."""


FILES = ("depth.png", "depth.npz", "cloud.ply", "cloud.glb", "recover.py")


@dataclass(frozen=True)
class CloudOptions:
    """Options of a point cloud."""

    fov_deg: float | None = None
    """Horizontal field of view of the photograph."""
    max_points: int = 2_000_000
    """Points of the cloud at most; the photograph's pixels are thinned evenly."""


def export(session: Session, edit: Edit, name: str, options: CloudOptions) -> tuple[bytes, str]:
    """The bytes and the media type of one file."""
    match name:
        case "depth.png":
            depth_m = full_recovery(session, edit).depth_m
            return depth_png(depth_m), "image/png"
        case "depth.npz":
            maps = full_recovery(session, edit).maps()
            return _through_disk(name, lambda path: write_npz(path, **maps)), OCTETS
        case "cloud.ply":
            cloud = point_cloud(session, edit, options)
            return _through_disk(name, lambda path: write_ply(path, cloud)), OCTETS
        case "cloud.glb":
            cloud = point_cloud(session, edit, options)
            return _through_disk(name, lambda path: write_glb(path, cloud)), "model/gltf-binary"
        case "recover.py":
            return python_lines(session, edit).encode(), "text/x-python; charset=utf-8"
        case _:
            raise InputError(f"no file {name[:40]!r}; there are {', '.join(FILES)}")


def point_cloud(session: Session, edit: Edit, options: CloudOptions) -> PointCloud:
    """The recovered depth as points; pixels are thinned evenly to the limit."""
    if options.fov_deg is None:
        raise InputError("a point cloud needs fov_deg, the horizontal field of view")
    camera = Camera.from_fov(options.fov_deg, session.shape)
    depth_m = full_recovery(session, edit).depth_m
    return PointCloud.of(depth_m, camera, session.image, max_points=options.max_points)


def depth_png(depth_m: Float32[np.ndarray, "h w"]) -> bytes:
    """A 16-bit PNG whose scale is in its metadata."""
    farthest = float(np.nanmax(depth_m))
    units = next((u for u in PNG_UNITS if farthest * u <= 65535), PNG_UNITS[-1])
    return _through_disk("depth.png", lambda path: write_depth_png(path, depth_m, units))


def python_lines(session: Session, edit: Edit) -> str:
    """A Python script that reproduces this result from the photograph."""
    given = {n: getattr(edit.anchors, n) for n in ("u", "v", "depth_m", "sigma_m")}
    columns = {name: values.tolist() for name, values in given.items() if values is not None}
    listed = ",\n".join(f"    {name}={values!r}" for name, values in columns.items())
    listed = listed.replace("nan", 'float("nan")')  # an anchor without a sigma_m
    before: list[str] = []
    photo, lines = repr(session.name), ["import scalefield as sf"]
    if session.sample:
        lines.append("from scalefield import samples")
        photo = f"samples.load({session.sample!r}).image"
    arguments = [photo, "anchors", f"method={edit.method!r}"]
    if session.own_depth:
        lines += ["from pathlib import Path", "from scalefield.io import read_map"]
        zero = ", zero_is_far=True" if session.relative.output.affine else ""
        key = "" if session.depth_key is None else f", key={session.depth_key!r}"
        arguments += [
            f"mde_depth=read_map(Path({session.own_depth!r}){key}{zero})",
            f"kind={session.relative.output.kind!r}",
            "resize=True",
        ]
    if edit.known:
        written = ",\n".join(f"    {each.as_dict()!r}" for each in edit.known)
        before = [f"known = [\n{written},\n]"]
        arguments += ["measurements=known", f"fov_deg={edit.fov_deg!r}"]
    return "\n".join(
        [
            *lines,
            "",
            f"anchors = sf.Anchors(\n{listed},\n)",
            *before,
            f"r = sf.recover({', '.join(arguments)})",
            "r.depth_m  # float32 metres, of the photograph's size",
            "",
        ]
    )


def _through_disk(name: str, write: Callable[[Path], object]) -> bytes:
    """The bytes that a writer of the package puts into a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        write(path)
        return path.read_bytes()
