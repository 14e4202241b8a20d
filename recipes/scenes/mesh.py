"""Polygon meshes with named material slots, as plain arrays. Pure code: Blender is not needed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Mesh:
    """Vertices in metres, polygons, and the material slot of each polygon.

    Builders append parts to one mesh. Each part brings its own vertices, so that edges between
    parts stay sharp.
    """

    vertices: list[np.ndarray] = field(default_factory=list)
    """Arrays of shape (n, 3)."""
    faces: list[tuple[int, ...]] = field(default_factory=list)
    """Indices into the joined vertices, counter-clockwise seen from outside."""
    slots: list[str] = field(default_factory=list)
    """Material slot of each face."""
    smooth: list[bool] = field(default_factory=list)
    """Whether a face is shaded smoothly."""
    count: int = 0
    """Number of vertices."""

    def add(
        self,
        vertices: np.ndarray,
        faces: list[tuple[int, ...]],
        slot: str,
        smooth: bool = False,
    ) -> None:
        """Append a part whose faces index its own vertices."""
        self.vertices.append(np.asarray(vertices, float).reshape(-1, 3))
        self.faces += [tuple(i + self.count for i in face) for face in faces]
        self.slots += [slot] * len(faces)
        self.smooth += [smooth] * len(faces)
        self.count += len(self.vertices[-1])

    def box(self, lo: tuple[float, ...], hi: tuple[float, ...], slot: str) -> None:
        """Append an axis-aligned box between two corners."""
        x0, y0, z0 = np.minimum(lo, hi)
        x1, y1, z1 = np.maximum(lo, hi)
        corners = [(x, y, z) for z in (z0, z1) for y in (y0, y1) for x in (x0, x1)]
        self.add(np.array(corners), list(_BOX_FACES), slot)

    def extrude(
        self, outline: np.ndarray, y0: float, y1: float, slot: str, smooth: bool = False
    ) -> None:
        """Append a prism: an outline of (x, z) points, clockwise seen from -y, from y0 to y1."""
        n = len(outline)
        near = np.column_stack([outline[:, 0], np.full(n, y0), outline[:, 1]])
        far = np.column_stack([outline[:, 0], np.full(n, y1), outline[:, 1]])
        sides = [(i, i + n, (i + 1) % n + n, (i + 1) % n) for i in range(n)]
        self.add(np.concatenate([near, far]), sides, slot, smooth)
        self.add(near, [tuple(range(n))], slot)
        self.add(far, [tuple(range(n - 1, -1, -1))], slot)

    def tube(
        self,
        start: np.ndarray,
        end: np.ndarray,
        radius_start: float,
        radius_end: float,
        slot: str,
        *,
        sides: int = 8,
        caps: bool = True,
    ) -> None:
        """Append a cone or cylinder between two points."""
        start, end = np.asarray(start, float), np.asarray(end, float)
        axis = (end - start) / max(float(np.linalg.norm(end - start)), 1e-9)
        helper = np.array([1.0, 0, 0]) if abs(axis[0]) < 0.9 else np.array([0, 1.0, 0])
        u = np.cross(axis, helper)
        u /= np.linalg.norm(u)
        v = np.cross(axis, u)
        angle = np.arange(sides) * 2 * math.pi / sides
        ring = np.cos(angle)[:, None] * u + np.sin(angle)[:, None] * v
        points = np.concatenate([start + radius_start * ring, end + radius_end * ring])
        around = [(i, (i + 1) % sides, (i + 1) % sides + sides, i + sides) for i in range(sides)]
        self.add(points, around, slot, smooth=True)
        if caps:
            self.add(points[:sides], [tuple(range(sides - 1, -1, -1))], slot)
            self.add(points[sides:], [tuple(range(sides))], slot)

    def arrays(self) -> np.ndarray:
        """All vertices, (n, 3)."""
        return np.concatenate(self.vertices) if self.vertices else np.zeros((0, 3))

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest corner in metres."""
        points = self.arrays()
        return points.min(0), points.max(0)

    def merge(self, other: Mesh, matrix: np.ndarray | None = None) -> None:
        """Append another mesh, moved by a 4×4 matrix."""
        points = other.arrays()
        if matrix is not None:
            points = points @ matrix[:3, :3].T + matrix[:3, 3]
        self.vertices.append(points)
        self.faces += [tuple(i + self.count for i in face) for face in other.faces]
        self.slots += other.slots
        self.smooth += other.smooth
        self.count += len(points)


_BOX_FACES = (
    (0, 2, 3, 1),
    (4, 5, 7, 6),
    (0, 1, 5, 4),
    (2, 6, 7, 3),
    (0, 4, 6, 2),
    (1, 3, 7, 5),
)


def box_mesh(lo: tuple[float, ...], hi: tuple[float, ...], slot: str) -> Mesh:
    """A mesh of one box."""
    mesh = Mesh()
    mesh.box(lo, hi, slot)
    return mesh


def pose(x: float, y: float, z: float, yaw_rad: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """A 4×4 matrix: scale, then turn about z, then move."""
    c, s = math.cos(yaw_rad) * scale, math.sin(yaw_rad) * scale
    return np.array([[c, -s, 0, x], [s, c, 0, y], [0, 0, scale, z], [0, 0, 0, 1.0]])


def box_uv(points: np.ndarray, faces: list[tuple[int, ...]]) -> np.ndarray:
    """Texture coordinates in metres, one per face corner: box projection along the normal."""
    lengths = np.array([len(face) for face in faces])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    out = np.empty((int(lengths.sum()), 2))
    for n in np.unique(lengths):
        chosen = np.flatnonzero(lengths == n)
        corners = points[np.array([faces[i] for i in chosen])]
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        axes = np.array([(1, 2), (0, 2), (0, 1)])[np.argmax(np.abs(normal), axis=1)]
        at = starts[chosen][:, None] + np.arange(n)
        out[at] = np.take_along_axis(corners, axes[:, None, :], axis=2)
    return out
