"""Point clouds in PLY, PCD, BIN, NPZ and NPY files, and their projection to anchors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from scalefield.anchors import Anchors
from scalefield.errors import InputError, Notice, one_line, size_text
from scalefield.geometry.camera import (
    SEE_THROUGH_MARGIN,
    SEE_THROUGH_WINDOW,
    Camera,
    depth_map,
    remove_see_through,
    transform,
)
from scalefield.io import read_bytes, read_npy, read_npz
from scalefield.io.disk import check_memory

MOST_COLUMNS = 64
"""Numbers of a point at most; an array of more columns is a map."""
MOST_NEGATIVE = 0.05
"""Share of points whose reflectance may be negative, as by the noise of some sensors."""
CLOUD_SUFFIXES = (".ply", ".pcd", ".bin", ".npz", ".npy")


@dataclass(frozen=True)
class SeeThrough:
    """When a point counts as hidden behind a nearer one; see `geometry.remove_see_through`."""

    window: tuple[int, int] = SEE_THROUGH_WINDOW
    """Rows and columns around a point in which a nearer one hides it; wider for sparser clouds."""
    margin: float = SEE_THROUGH_MARGIN
    """How much farther than the nearest, as a fraction, it must be."""

    def __post_init__(self) -> None:
        if min(self.window) < 1 or not self.margin > 0:
            raise InputError(
                "see-through must have a window of 1×1 pixels or more and a margin above zero, "
                f"found {self.window} and {self.margin:g}"
            )


def anchors_from_points(
    points_m: Float64[np.ndarray, "n 3"],
    camera: Camera,
    shape: tuple[int, int],
    *,
    camera_from_points: Float64[np.ndarray, "4 4"] | None = None,
    see_through: SeeThrough | None = SeeThrough(),
) -> Anchors:
    """The visible points as anchors in row order: the nearest one in each pixel.

    `camera_from_points` maps the cloud's frame into the camera's. Points behind a nearer surface
    are removed unless `see_through` is None.
    """
    if camera_from_points is not None:
        points_m = transform(points_m, camera_from_points)
    depth_m = depth_map(*camera.project(points_m), shape)
    if see_through is not None:
        depth_m = remove_see_through(depth_m, see_through.window, see_through.margin)
    return Anchors.from_map(depth_m)


def read_points(path: str | Path, *, bin_columns: int = 4) -> Float64[np.ndarray, "n 3"]:
    """x, y, z of the finite points of a `.ply`, `.pcd`, `.bin`, `.npz` or `.npy` file.

    A `.bin` is little-endian float32 without a header, `bin_columns` numbers a point: 4 for KITTI
    (x, y, z, reflectance), 5 for nuScenes. An `.npz` has an array `points`, a `.npy` is one; its
    first three columns are taken.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".ply":
            points = _read_ply(path)
        case ".pcd":
            points = _read_pcd(path)
        case ".bin":
            points = _read_bin(path, bin_columns)
        case ".npz":
            points = _columns(path, read_npz(path, required=("points",))["points"])
        case ".npy":
            points = _columns(path, read_npy(path))
        case suffix:
            raise InputError(
                f"{path}: points are read from {', '.join(CLOUD_SUFFIXES)}, not {suffix!r}"
            )
    points = points.astype(np.float64)
    points = points[np.isfinite(points).all(axis=1)]  # organised clouds mark gaps with NaN
    if not len(points):
        raise InputError(f"{path}: holds no point with finite coordinates")
    return points


def _message(error: Exception) -> str:
    """The message of an error; a bare key or index is preceded by the name of the error."""
    return one_line(error if isinstance(error, ValueError) else repr(error))


def _columns(path: Path, values: np.ndarray) -> np.ndarray:
    if values.ndim != 2 or values.shape[1] < 3 or values.dtype.kind not in "fiu":
        raise InputError(
            f"{path}: points must be numbers of shape (n, 3 or more), found {values.dtype} of "
            f"shape {values.shape}"
        )
    if values.shape[1] > MOST_COLUMNS:
        raise InputError(
            f"{path}: an array of {size_text(values.shape)} is a depth map and no list of points; "
            "`scalefield anchors` takes it as --depth"
        )
    return values[:, :3]


def _read_bin(path: Path, columns: int) -> np.ndarray:
    data = read_bytes(path)
    if columns < 3:
        raise InputError(f"{path}: a point has three columns or more, and not {columns}")
    if len(data) % (4 * columns):
        raise InputError(
            f"{path}: {len(data)} bytes are not a whole number of points with {columns} float32 "
            "each"
        )
    values = np.frombuffer(data, "<f4").reshape(-1, columns)
    negative = float(np.mean(values[:, 3] < 0)) if columns > 3 and len(values) else 0.0
    if negative > MOST_NEGATIVE:  # coordinates are, where points have another number of columns
        warnings.warn(
            f"{path}: the fourth of {columns} numbers is negative in {100 * negative:.0f} % of the "
            "points, and so hardly a reflectance; are there as many numbers in a point?",
            Notice,
            stacklevel=3,
        )
    return values[:, :3]


_PLY_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2",
    "int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8",
}  # fmt: skip
_PLY_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "ascii"}


@dataclass(frozen=True)
class _Element:
    """An element of a PLY header: `count` records of named, typed properties; lists have no
    type."""

    name: str
    count: int
    properties: list[tuple[str, str]]

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"{self.count} of {self.name}")

    def record(self, order: str) -> np.dtype:
        if any(not kind for _, kind in self.properties):
            raise ValueError(f"a list in {self.name}, which is the vertices or before them")
        return np.dtype([(name, order + kind) for name, kind in self.properties])


def _read_ply(path: Path) -> np.ndarray:
    """x, y, z of the vertices; other elements are skipped."""
    data = read_bytes(path)
    head, separator, body = data.partition(b"end_header")
    if not (separator and data.startswith(b"ply")):
        raise InputError(f"{path}: not a PLY file")
    body = body[body.find(b"\n") + 1 :]
    try:
        order, elements = _ply_header(head.decode("ascii", errors="replace"))
        names = [element.name for element in elements]
        if "vertex" not in names:
            raise InputError(f"{path}: has no element called vertex")
        before, vertex = elements[: names.index("vertex")], elements[names.index("vertex")]
        has = [name for name, _ in vertex.properties]
        if not {"x", "y", "z"} <= set(has):
            raise InputError(
                f"{path}: its vertices have no x, y, z, only {one_line(', '.join(has))}"
            )
        if order == "ascii":
            lines = body.decode("ascii", errors="replace").splitlines()
            skipped = sum(e.count for e in before)
            return _text_points(lines[skipped:], has, vertex.count, "vertices")
        skipped = sum(e.count * e.record(order).itemsize for e in before)
        vertices = np.frombuffer(body, vertex.record(order), vertex.count, skipped)
        return np.stack([vertices[axis] for axis in "xyz"], axis=1)
    except InputError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, OverflowError) as e:
        raise InputError(f"{path}: not a readable PLY file ({_message(e)})") from None


def _ply_header(head: str) -> tuple[str, list[_Element]]:
    """The byte order ("ascii" for text) and the elements in their order."""
    order, elements = "", []
    for words in (line.split() for line in head.splitlines()):
        match words:
            case ["format", name, *_]:
                order = _PLY_ORDERS[name]
            case ["element", name, count]:
                elements.append(_Element(name, int(count), []))
            case ["property", "list", _, _, name]:
                elements[-1].properties.append((name, ""))
            case ["property", kind, name]:
                elements[-1].properties.append((name, _PLY_TYPES[kind]))
    if not order:
        raise ValueError("no line format")
    return order, elements


def _text_points(lines: list[str], names: list[str], count: int, what: str) -> np.ndarray:
    """x, y, z of `count` lines of numbers whose columns have these names."""
    if len(lines) < count:
        raise ValueError(f"{count} {what} wanted, {len(lines)} found")
    columns = [names.index(axis) for axis in "xyz"]
    rows = (line.split() for line in lines[:count])
    return np.array([[float(row[i]) for i in columns] for row in rows]).reshape(-1, 3)


def _read_pcd(path: Path) -> np.ndarray:
    """x, y, z of a PCD file: ascii, binary or binary_compressed."""
    data = read_bytes(path)
    header: dict[str, list[str]] = {}
    start = 0
    while "DATA" not in header:
        end = data.find(b"\n", start)
        if end < 0 or start > 10_000:
            raise InputError(f"{path}: not a PCD file: its header has no line DATA")
        words = data[start:end].decode("ascii", errors="replace").split()
        if words and not words[0].startswith("#"):
            header[words[0].upper()] = words[1:]
        start = end + 1
    try:
        names, n = header["FIELDS"], int(header["POINTS"][0])
        counts = [int(count) for count in header.get("COUNT", ["1"] * len(names))]
        if n < 0 or min(counts, default=1) < 1 or sum(counts) > len(data):
            raise ValueError(f"{n} points of {sum(counts)} numbers in {len(data)} bytes")
        kinds = [
            {"F": "<f", "I": "<i", "U": "<u"}[kind] + size
            for kind, size in zip(header["TYPE"], header["SIZE"], strict=True)
        ]
        if not {"x", "y", "z"} <= set(names):
            raise InputError(
                f"{path}: its points have no x, y, z, only {one_line(', '.join(names))}"
            )
        fields = list(zip(names, kinds, counts, strict=True))
        match header["DATA"]:
            case ["ascii"]:
                lines = data[start:].decode("ascii", errors="replace").splitlines()
                columns = [name for name, _, count in fields for _ in range(count)]
                return _text_points(lines, columns, n, "points")
            case ["binary"]:
                return _pcd_binary(data[start:], fields, n)
            case ["binary_compressed"]:
                return _pcd_compressed(data[start:], fields, n)
            case other:
                raise ValueError(f"no PCD data of kind {' '.join(other)!r}")
    except InputError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, OverflowError) as e:
        raise InputError(f"{path}: not a readable PCD file ({_message(e)})") from None


_Fields = list[tuple[str, str, int]]
"""Name, type and count of each field of a PCD; padding bytes are fields called "_"."""


def _pcd_binary(body: bytes, fields: _Fields, n: int) -> np.ndarray:
    names = [name for name, _, _ in fields]
    record = np.dtype([(f"{i}", kind, (count,)) for i, (_, kind, count) in enumerate(fields)])
    points = np.frombuffer(body, record, n)
    return np.stack([points[f"{names.index(axis)}"][:, 0] for axis in "xyz"], axis=1)


def _pcd_compressed(data: bytes, fields: _Fields, n: int) -> np.ndarray:
    """One field after the other, each for all points, under LZF."""
    packed, unpacked = np.frombuffer(data, "<u4", 2).tolist()
    size = sum(np.dtype(kind).itemsize * count for _, kind, count in fields) * n
    if unpacked != size:
        raise ValueError(f"{size} bytes of points wanted, {unpacked} promised")
    check_memory(f"{n} points", 2 * size + 24 * n, len(data))
    values = lzf_decompress(data[8 : 8 + packed], unpacked)
    axes: dict[str, np.ndarray] = {}
    at = 0
    for name, kind, count in fields:
        axes[name] = np.frombuffer(values, kind, n * count, at)[:n]
        at += np.dtype(kind).itemsize * count * n
    return np.stack([axes[axis] for axis in "xyz"], axis=1)


def lzf_decompress(data: bytes, size: int) -> bytes:
    """Decompressed LZF data: runs of literal bytes, and copies of earlier bytes."""
    out = bytearray()
    at = 0
    while at < len(data):
        control = data[at]
        at += 1
        if control < 32:
            run = data[at : at + control + 1]
            if len(run) <= control:
                raise ValueError("LZF data end inside a run")
            out += run
            at += control + 1
        else:
            length = control >> 5
            if length == 7:
                length += data[at]
                at += 1
            distance = ((control & 31) << 8 | data[at]) + 1
            at += 1
            if distance > len(out):
                raise ValueError("LZF data point before their beginning")
            for _ in range(length + 2):  # a copy may overlap what it writes
                out.append(out[-distance])
        if len(out) > size:
            raise ValueError("LZF data are longer than promised")
    if len(out) != size:
        raise ValueError(f"LZF data give {len(out)} bytes, {size} were promised")
    return bytes(out)
