"""Coloured point clouds: PLY for 3D software, GLB for browsers and phones."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, UInt8

from scalefield.errors import InputError
from scalefield.geometry.camera import Camera, depth_edges, normals, unproject
from scalefield.io import write_atomic


@dataclass(frozen=True, eq=False, repr=False)
class PointCloud:
    """Points in the camera's frame (x right, y down, z forward), in metres."""

    points_m: Float32[np.ndarray, "n 3"]
    colours: UInt8[np.ndarray, "n 3"]
    normals: Float32[np.ndarray, "n 3"]
    std_log: Float32[np.ndarray, " n"] | None = None
    """Standard deviation of each point's log-depth, where it is known."""

    @classmethod
    def of(
        cls,
        depth_m: Float[np.ndarray, "h w"],
        camera: Camera,
        image: UInt8[np.ndarray, "h w 3"],
        std_log: Float[np.ndarray, "h w"] | None = None,
        *,
        max_points: int | None = None,
    ) -> PointCloud:
        """The pixels of known depth, without those at `geometry.depth_edges`.

        Of more than `max_points` pixels, every second, third, … in both directions is taken.
        """
        if max_points is not None:
            if max_points < 1:
                raise InputError(f"max_points must be 1 or more, found {max_points}")
            step = math.ceil(math.sqrt(depth_m.size / max_points))
            kept = slice(step // 2, None, step)
            camera = camera.every_nth(step, step // 2)
            depth_m, image = depth_m[kept, kept], image[kept, kept]
            std_log = None if std_log is None else std_log[kept, kept]
        points, facing = unproject(depth_m, camera), normals(depth_m, camera)
        kept = np.isfinite(points).all(axis=-1) & ~depth_edges(depth_m)
        if not kept.any():
            raise InputError("no pixel has a depth that could become a point")
        facing = np.nan_to_num(facing[kept])  # pixels without neighbours have none
        return cls(
            points[kept].astype(np.float32),
            image[kept],
            facing.astype(np.float32),
            None if std_log is None else std_log[kept].astype(np.float32),
        )

    def write(self, path: str | Path) -> None:
        """Write `.ply` or `.glb`."""
        match Path(path).suffix.lower():
            case ".ply":
                write_ply(path, self)
            case ".glb":
                write_glb(path, self)
            case suffix:
                raise InputError(f"{path}: points are written as .ply or .glb, not {suffix!r}")

    def __repr__(self) -> str:
        near, far = self.points_m[:, 2].min(), self.points_m[:, 2].max()
        return f"PointCloud({len(self.points_m)} points, {near:.2f} … {far:.2f} m)"


def write_ply(
    path: str | Path,
    cloud: PointCloud,
    frame: str = "metres; camera at the origin: x right, y down, z forward",
) -> None:
    """Binary PLY: position, normal, colour and, if known, std_log; `frame` becomes its comment."""
    columns = {
        **{axis: cloud.points_m[:, i] for i, axis in enumerate("xyz")},
        **{f"n{axis}": cloud.normals[:, i] for i, axis in enumerate("xyz")},
        **{name: cloud.colours[:, i] for i, name in enumerate(("red", "green", "blue"))},
    }
    if cloud.std_log is not None:
        columns["std_log"] = cloud.std_log
    kinds = {name: "uchar" if c.dtype == np.uint8 else "float" for name, c in columns.items()}
    record = [(name, "u1" if kind == "uchar" else "<f4") for name, kind in kinds.items()]
    vertices = np.empty(len(cloud.points_m), record)
    for name, column in columns.items():
        vertices[name] = column
    header = [
        "ply",
        "format binary_little_endian 1.0",
        f"comment {frame}",
        f"element vertex {len(vertices)}",
        *(f"property {kind} {name}" for name, kind in kinds.items()),
        "end_header\n",
    ]
    write_atomic(path, "\n".join(header).encode() + vertices.tobytes())


# Numbers of the glTF 2.0 specification.
_FLOAT, _ARRAY_BUFFER, _POINTS = 5126, 34962, 0


def write_glb(path: str | Path, cloud: PointCloud) -> None:
    """Binary glTF 2.0: points with colours, y up and z towards the viewer as glTF has it."""
    positions = cloud.points_m * np.array([1, -1, -1], np.float32)
    # Floats: some readers fail on 16-bit colours, and 8 bits of linear light are too few.
    binary = b"".join(a.astype("<f4").tobytes() for a in (positions, _linear(cloud.colours)))
    size = len(binary) // 2
    primitive = {"attributes": {"POSITION": 0, "COLOR_0": 1}, "mode": _POINTS, "material": 0}
    vectors = {"componentType": _FLOAT, "count": len(positions), "type": "VEC3"}
    ends = {"min": positions.min(axis=0).tolist(), "max": positions.max(axis=0).tolist()}
    scene = {
        "asset": {"version": "2.0", "generator": "scalefield"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "extensionsUsed": ["KHR_materials_unlit"],  # a photograph is lit already
        "materials": [{"extensions": {"KHR_materials_unlit": {}}}],
        "meshes": [{"primitives": [primitive]}],
        "accessors": [{"bufferView": 0, **vectors, **ends}, {"bufferView": 1, **vectors}],
        "bufferViews": [
            {"buffer": 0, "byteOffset": 0, "byteLength": size, "target": _ARRAY_BUFFER},
            {"buffer": 0, "byteOffset": size, "byteLength": size, "target": _ARRAY_BUFFER},
        ],
        "buffers": [{"byteLength": len(binary)}],
    }
    text = json.dumps(scene, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)  # chunks are whole words; `binary` is one by its records
    chunks = struct.pack("<I4s", len(text), b"JSON") + text
    chunks += struct.pack("<I4s", len(binary), b"BIN\0") + binary
    write_atomic(path, struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks)


def _linear(srgb: UInt8[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """sRGB as linear light, which is what glTF's vertex colours are."""
    levels = np.arange(256) / 255
    curve = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return curve[srgb]
