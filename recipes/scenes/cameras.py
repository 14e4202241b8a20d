"""Camera poses and intrinsics, and the choice of views. Pure code.

Poses are camera-to-world matrices with the axes of computer vision: x right, y down, z along the
optical axis. Blender's cameras look along -z with y up; `to_blender` converts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class View:
    """A camera of a scene."""

    kind: str
    """Name of the way it was placed, such as `hand` or `car`."""
    camera_to_world: np.ndarray
    """4×4, axes x right, y down, z forward; metres."""
    fov_deg: float
    """Horizontal field of view."""
    score: float = 0.0
    """The higher, the earlier it is chosen."""

    @property
    def position(self) -> np.ndarray:
        """Centre of projection in metres."""
        return self.camera_to_world[:3, 3]

    @property
    def forward(self) -> np.ndarray:
        """Direction of the optical axis."""
        return self.camera_to_world[:3, 2]


def intrinsics(width: int, height: int, fov_deg: float) -> tuple[float, float, float, float]:
    """(fx, fy, cx, cy) in pixels, with pixel centres at integers."""
    f = width / 2 / math.tan(math.radians(fov_deg) / 2)
    return f, f, (width - 1) / 2, (height - 1) / 2


def aim(
    position: Sequence[float], yaw_rad: float, pitch_rad: float, roll_rad: float = 0.0
) -> np.ndarray:
    """Camera-to-world matrix: yaw 0 looks along +x, a positive pitch looks up."""
    c, s = math.cos(pitch_rad), math.sin(pitch_rad)
    forward = np.array([c * math.cos(yaw_rad), c * math.sin(yaw_rad), s])
    right = np.array([math.sin(yaw_rad), -math.cos(yaw_rad), 0.0])
    down = np.cross(forward, right)
    cr, sr = math.cos(roll_rad), math.sin(roll_rad)
    matrix = np.eye(4)
    matrix[:3, 0] = cr * right + sr * down
    matrix[:3, 1] = cr * down - sr * right
    matrix[:3, 2] = forward
    matrix[:3, 3] = position
    return matrix


def look_at(
    position: Sequence[float], target: Sequence[float], roll_rad: float = 0.0
) -> np.ndarray:
    """Camera-to-world matrix of a camera at `position` that looks at `target`."""
    d = np.asarray(target, float) - np.asarray(position, float)
    return aim(position, math.atan2(d[1], d[0]), math.atan2(d[2], math.hypot(d[0], d[1])), roll_rad)


def to_blender(camera_to_world: np.ndarray) -> np.ndarray:
    """The same pose for Blender, whose cameras look along -z with y up."""
    return camera_to_world @ np.diag([1.0, -1.0, -1.0, 1.0])


def rays(width: int, height: int, fov_deg: float, columns: int, rows: int) -> np.ndarray:
    """Directions in the camera's frame with z = 1 through a grid of image cells, (n, 3)."""
    t = math.tan(math.radians(fov_deg) / 2)
    u = ((np.arange(columns) + 0.5) / columns * 2 - 1) * t
    v = ((np.arange(rows) + 0.5) / rows * 2 - 1) * t * height / width
    uu, vv = np.meshgrid(u, v)
    return np.stack([uu.ravel(), vv.ravel(), np.ones(uu.size)], axis=-1)


@dataclass(frozen=True)
class Probe:
    """Depth and object of each ray of a coarse grid: what a view would show."""

    depth_m: np.ndarray
    """z depth, infinite where nothing is hit."""
    classes: tuple[str, ...]
    """Class of the object hit, or `sky`."""
    objects: tuple[str, ...]
    """Name of the object hit, or an empty string."""

    @property
    def hit(self) -> np.ndarray:
        """Whether a ray hits a surface."""
        return np.isfinite(self.depth_m)

    def share(self, classes: set[str]) -> float:
        """Share of the rays that hit one of the classes."""
        return sum(cls in classes for cls in self.classes) / len(self.classes)

    def count_objects(self, without: set[str]) -> int:
        """Number of different objects hit whose class is not in `without`."""
        pairs = zip(self.classes, self.objects, strict=True)
        return len({name for cls, name in pairs if name and cls not in without})

    def largest_share(self, without: set[str]) -> float:
        """Share of the rays that hit the most frequent object outside `without`."""
        pairs = zip(self.classes, self.objects, strict=True)
        names = [name for cls, name in pairs if name and cls not in without]
        return max((names.count(name) for name in set(names)), default=0) / len(self.objects)

    def log_spread(self) -> float:
        """Standard deviation of log depth."""
        return float(np.log(self.depth_m[self.hit]).std()) if self.hit.any() else 0.0


def choose(
    candidates: Sequence[View],
    views: int,
    apart_m: float,
    apart_deg: float = 28.0,
    similar: Callable[[View, View], bool] | None = None,
) -> list[View]:
    """The best views by score, each apart from the others in position or in direction."""
    chosen: list[View] = []
    for view in sorted(candidates, key=lambda view: -view.score):
        if len(chosen) == views:
            break
        if all(_apart(view, other, apart_m, apart_deg) for other in chosen) and not (
            similar and any(similar(view, other) for other in chosen)
        ):
            chosen.append(view)
    return chosen


def _apart(a: View, b: View, apart_m: float, apart_deg: float) -> bool:
    cosine = float(np.clip(a.forward @ b.forward, -1, 1))
    return bool(
        np.linalg.norm(a.position - b.position) > apart_m
        or math.degrees(math.acos(cosine)) > apart_deg
    )
