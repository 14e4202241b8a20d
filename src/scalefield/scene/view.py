"""A photograph with its camera's pose, and what other views need of its recovery."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int64

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.geometry.camera import Camera, is_rotation

NEAREST = 1e-6
"""Least depth in front of a camera."""
GRID = (8, 10)
"""Rows and columns of the pixels that decide which views see the same."""
LEAST_ANGLE_DEG, MOST_ANGLE_DEG, ANGLE_FALL_DEG = 2.0, 8.0, 15.0
"""Angle between two views of a point: below the first they say less about its depth, above the
second they look less alike; the third is how fast that falls."""
LEAST_SHARED = 0.1
"""Least share of a view that a neighbour must see."""


@dataclass(frozen=True, eq=False)
class View:
    """A photograph with its camera, pose and anchors."""

    name: str
    image: Path | np.ndarray
    """The file, or the pixels as uint8 RGB."""
    camera: Camera
    camera_to_world: Float64[np.ndarray, "4 4"]
    """Axes x right, y down, z forward; the translation in the unit of the anchors."""
    anchors: Anchors = field(default_factory=lambda: Anchors([], [], []))

    def __post_init__(self) -> None:
        pose = self.camera_to_world
        if not (np.isfinite(pose).all() and is_rotation(pose[:3, :3])):
            raise InputError(f"{self.name}: its pose is not a rotation and a translation")

    def world(
        self, u: Float[np.ndarray, " n"], v: Float[np.ndarray, " n"], depth: Float[np.ndarray, " n"]
    ) -> Float64[np.ndarray, "n 3"]:
        """The points at these depths of pixels."""
        ray = np.concatenate([self.camera.rays(u, v), np.ones((len(u), 1))], axis=1)
        return ray * depth[:, None] @ self.camera_to_world[:3, :3].T + self.camera_to_world[:3, 3]

    def project(
        self, points: Float64[np.ndarray, "n 3"]
    ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """u, v and depth of points of the world; u and v are NaN where they are not seen."""
        turn, centre = self.camera_to_world[:3, :3], self.camera_to_world[:3, 3]
        return self.camera.project((points - centre) @ turn)


@dataclass(frozen=True, eq=False)
class Estimate:
    """The recovered depth of a view and its deviation."""

    log_depth: Float32[np.ndarray, "h w"]
    """Finite at every pixel."""
    std: Float32[np.ndarray, "h w"]
    """Its standard deviation."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        height, width = self.log_depth.shape
        return height, width

    def inside(
        self, u: Float[np.ndarray, "*n"], v: Float[np.ndarray, "*n"], margin: int
    ) -> Bool[np.ndarray, "*n"]:
        """Whether positions are in the image, so far from its border; false for NaN."""
        height, width = self.shape
        across = (u >= margin) & (u <= width - 1 - margin)
        return across & (v >= margin) & (v <= height - 1 - margin)


def bilinear(
    values: Float[np.ndarray, "h w"], u: Float[np.ndarray, "*n"], v: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Values between pixels; those of the border outside."""
    height, width = values.shape
    u, v = np.clip(u, 0, width - 1.001), np.clip(v, 0, height - 1.001)
    column, row = u.astype(np.int64), v.astype(np.int64)
    right, down = u - column, v - row
    above = values[row, column] * (1 - right) + values[row, column + 1] * right
    below = values[row + 1, column] * (1 - right) + values[row + 1, column + 1] * right
    return above * (1 - down) + below * down


def neighbours(name: str, views: dict[str, View], estimate: Estimate, most: int) -> list[str]:
    """The views that see most of what a view sees, under angles that say something about depth.

    Ranked by the mean over the view's pixels of a weight of the angle between both rays, which is
    0 where the other does not see the point.
    """
    own, (height, width) = views[name], estimate.shape
    rows = ((np.arange(GRID[0]) + 0.5) * height / GRID[0]).astype(np.int64)
    columns = ((np.arange(GRID[1]) + 0.5) * width / GRID[1]).astype(np.int64)
    v, u = (x.ravel() for x in np.meshgrid(rows, columns, indexing="ij"))
    depth = np.exp(estimate.log_depth[v, u].astype(np.float64))
    points = own.world(u.astype(np.float64), v.astype(np.float64), depth)
    to_own = _unit(points - own.camera_to_world[:3, 3])
    shared: list[tuple[float, str]] = []
    for other in views.values():
        if other.name == name:
            continue
        x, y, _ = other.project(points)
        seen = estimate.inside(x, y, 0)  # views of one scene have about one size
        if seen.mean() < LEAST_SHARED:
            continue
        to_other = _unit(points - other.camera_to_world[:3, 3])
        cosine = (to_own * to_other).sum(axis=1).clip(-1, 1)
        angle_deg = np.degrees(np.arccos(cosine))
        weight = np.minimum(angle_deg / LEAST_ANGLE_DEG, 1.0)
        too_wide = np.maximum(angle_deg - MOST_ANGLE_DEG, 0) / ANGLE_FALL_DEG
        shared.append((-float((seen * weight * np.exp(-(too_wide**2))).mean()), other.name))
    return [other for weight, other in sorted(shared)[:most] if -weight > LEAST_SHARED]


def _unit(vectors: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n 3"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), NEAREST)


def cells(
    score: Float[np.ndarray, "h w"], shape: tuple[int, int], border: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Row and column of the pixel of the largest positive score in each cell of a grid."""
    height, width = score.shape
    edges = [np.linspace(border, max(border + 1, size - border), n + 1).astype(np.int64)
             for size, n in zip((height, width), shape, strict=True)]  # fmt: skip
    found = []
    for top, bottom in zip(edges[0][:-1], edges[0][1:], strict=True):
        for left, right in zip(edges[1][:-1], edges[1][1:], strict=True):
            cell = score[top:bottom, left:right]
            if cell.size and (best := int(cell.argmax())) >= 0 and cell.flat[best] > 0:
                row, column = divmod(best, cell.shape[1])
                found.append((top + row, left + column))
    rows, columns = np.array(found, np.int64).reshape(-1, 2).T
    return rows, columns
