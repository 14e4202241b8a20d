"""Cameras: projection of points into the image, and rays of pixels.

The camera looks along z, with x to the right and y down. Pixel centres are at integers, as
everywhere in this package; in COLMAP they are at half-integers.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Float64
from scipy.ndimage import minimum_filter

from scalefield.errors import InputError, Notice
from scalefield.io import read_bytes

SEE_THROUGH_WINDOW = (9, 5)
"""Rows and columns of the window in which a nearer return hides a farther one."""
SEE_THROUGH_MARGIN = 0.15
"""A return this fraction farther than the nearest in its neighbourhood is behind a surface."""
EDGE = 0.05
"""A second difference of inverse depth above this fraction of it is an edge."""
NEWTON_STEPS = 20
"""Newton steps; enough for 1e-9 pixels inside the image of any lens."""

_Numbers = Float64[np.ndarray, " n"]


@dataclass(frozen=True)
class Camera:
    """A pinhole camera with optional lens distortion in OpenCV's model."""

    fx: float
    fy: float
    cx: float
    cy: float
    distortion: tuple[float, ...] = ()
    """k1, k2, p1, p2[, k3] as OpenCV orders them; empty for a rectified image."""

    def __post_init__(self) -> None:
        numbers = (*self.intrinsics, *self.distortion)
        if not all(map(math.isfinite, numbers)) or self.fx <= 0 or self.fy <= 0:
            found = ", ".join(f"{n:g}" for n in numbers)
            raise InputError(
                f"intrinsics must be finite numbers with fx, fy above zero, found {found}"
            )
        if len(self.distortion) not in (0, 4, 5):
            raise InputError(
                f"distortion must be k1, k2, p1, p2 or k1, k2, p1, p2, k3, "
                f"found {len(self.distortion)} numbers"
            )

    @property
    def intrinsics(self) -> tuple[float, float, float, float]:
        """fx, fy, cx, cy in pixels."""
        return self.fx, self.fy, self.cx, self.cy

    @classmethod
    def from_fov(cls, fov_deg: float, shape: tuple[int, int]) -> Camera:
        """The camera with this horizontal field of view, square pixels and a central axis."""
        if not 0 < fov_deg < 180:
            raise InputError(f"a field of view lies between 0 and 180 degrees, found {fov_deg:g}")
        height, width = shape
        focal_px = width / 2 / math.tan(math.radians(fov_deg) / 2)
        return cls(focal_px, focal_px, (width - 1) / 2, (height - 1) / 2)

    def every_nth(self, step: int, first: int = 0) -> Camera:
        """The camera of the image that has every `step`-th pixel, from the pixel `first` on."""
        cx, cy = (self.cx - first) / step, (self.cy - first) / step
        return Camera(self.fx / step, self.fy / step, cx, cy, self.distortion)

    def project(self, points: Float[np.ndarray, "n 3"]) -> tuple[_Numbers, _Numbers, _Numbers]:
        """u, v and depth z of points in the camera's frame.

        u and v are NaN for points that the camera cannot see: behind it (z ≤ 0), or so far to the
        side that the distortion polynomial is not monotonic any more.
        """
        x, y, z = np.asarray(points, np.float64).T
        front = z > 0
        safe_z = np.where(front, z, 1.0)
        x, y = x / safe_z, y / safe_z
        visible = front & (x * x + y * y < self._turning_radius2)
        x, y = self._distort(np.where(visible, x, 0.0), np.where(visible, y, 0.0))
        u, v = self.fx * x + self.cx, self.fy * y + self.cy
        return np.where(visible, u, np.nan), np.where(visible, v, np.nan), z

    def rays(
        self, u: Float[np.ndarray, "*n"], v: Float[np.ndarray, "*n"]
    ) -> Float64[np.ndarray, "*n 2"]:
        """x/z and y/z of the ray through (u, v); NaN where no ray is imaged.

        The distortion is inverted by Newton's method; without distortion the result is direct.
        """
        wanted_x, wanted_y = (u - self.cx) / self.fx, (v - self.cy) / self.fy
        if not any(self.distortion):
            return np.stack([wanted_x, wanted_y], axis=-1)
        x, y = wanted_x, wanted_y
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for _ in range(NEWTON_STEPS):
                at_x, at_y = self._distort(x, y)
                dxx, dxy, dyy = self._derivatives(x, y)
                determinant = dxx * dyy - dxy * dxy
                rest_x, rest_y = wanted_x - at_x, wanted_y - at_y
                x = x + (dyy * rest_x - dxy * rest_y) / determinant
                y = y + (dxx * rest_y - dxy * rest_x) / determinant
                # A step beyond the turning point would land on another branch.
                reach = np.sqrt(self._turning_radius2) / np.hypot(x, y)
                x, y = (np.nan_to_num(c * np.fmin(1.0, reach)) for c in (x, y))
        at_x, at_y = self._distort(x, y)
        converged = np.hypot(self.fx * (at_x - wanted_x), self.fy * (at_y - wanted_y)) < 1e-3
        return np.where(converged[..., None], np.stack([x, y], axis=-1), np.nan)

    def grid(self, shape: tuple[int, int]) -> Float64[np.ndarray, "h w 2"]:
        """`rays` of every pixel."""
        v, u = np.indices(shape, np.float64)
        return self.rays(u, v)

    def _coefficients(self) -> tuple[float, float, float, float, float]:
        k1, k2, p1, p2, k3 = (*self.distortion, *(5 - len(self.distortion)) * (0.0,))
        return k1, k2, p1, p2, k3

    def _distort(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.distortion:
            return x, y
        k1, k2, p1, p2, k3 = self._coefficients()
        r2 = x * x + y * y
        radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
        return (
            x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
            y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
        )

    def _derivatives(
        self, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """∂x'/∂x, ∂x'/∂y = ∂y'/∂x and ∂y'/∂y: the distortion is a gradient field."""
        k1, k2, p1, p2, k3 = self._coefficients()
        r2 = x * x + y * y
        radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
        slope = 2 * (k1 + r2 * (2 * k2 + r2 * 3 * k3))
        return (
            radial + slope * x * x + 2 * p1 * y + 6 * p2 * x,
            slope * x * y + 2 * p1 * x + 2 * p2 * y,
            radial + slope * y * y + 6 * p1 * y + 2 * p2 * x,
        )

    @cached_property
    def _turning_radius2(self) -> float:
        """r² at which r (1 + k1 r² + k2 r⁴ + k3 r⁶) stops growing; infinite if it never does."""
        k1, k2, _, _, k3 = self._coefficients()
        roots = np.roots([7 * k3, 5 * k2, 3 * k1, 1.0])
        turning = roots.real[(np.abs(roots.imag) < 1e-12) & (roots.real > 0)]
        return float(turning.min()) if turning.size else math.inf


def find_camera(
    intrinsics: tuple[float, float, float, float] | None,
    fov_deg: float | None,
    shape: tuple[int, int],
) -> Camera | None:
    """The camera given by intrinsics or by a field of view; None if neither is given."""
    if intrinsics is not None:
        camera, (height, width) = Camera(*intrinsics), shape
        if not (0 <= camera.cx <= width - 1 and 0 <= camera.cy <= height - 1):
            warnings.warn(
                f"the intrinsics' centre ({camera.cx:g}, {camera.cy:g}) lies outside the image of "
                f"{width}×{height} pixels; are they those of another size?",
                Notice,
                stacklevel=2,
            )
        return camera
    return None if fov_deg is None else Camera.from_fov(fov_deg, shape)


def transform(
    points: Float[np.ndarray, "n 3"], matrix: Float[np.ndarray, "4 4"]
) -> Float64[np.ndarray, "n 3"]:
    """Points under a rigid motion."""
    return points.astype(np.float64) @ matrix[:3, :3].T + matrix[:3, 3]


def read_rigid(path: str | Path) -> Float64[np.ndarray, "4 4"]:
    """A rigid motion from a text file: the twelve or sixteen numbers of (R | t), row by row."""
    text = read_bytes(Path(path)).decode(errors="replace").replace(",", " ")
    try:
        numbers = np.array([float(word) for word in text.split()])
        if numbers.size not in (12, 16):
            raise ValueError
    except ValueError:
        raise InputError(
            f"{path}: wanted the 12 or 16 numbers of a 3×4 or 4×4 matrix, found {text[:40]!r}"
        ) from None
    matrix = np.eye(4)
    matrix[:3] = numbers[:12].reshape(3, 4)
    bottom = numbers[12:].tolist() or [0, 0, 0, 1]
    if not (np.isfinite(matrix).all() and is_rotation(matrix[:3, :3]) and bottom == [0, 0, 0, 1]):
        raise InputError(f"{path}: not a rigid motion: a rotation, a translation, last row 0 0 0 1")
    return matrix


def is_rotation(matrix: Float64[np.ndarray, "3 3"]) -> bool:
    """Whether a matrix is a rotation, but for rounding."""
    if np.abs(matrix).max() > 1.01:
        return False
    return bool(np.allclose(matrix @ matrix.T, np.eye(3), atol=1e-3) and np.linalg.det(matrix) > 0)


def depth_map(
    u: _Numbers, v: _Numbers, depth_m: _Numbers, shape: tuple[int, int]
) -> Float64[np.ndarray, "h w"]:
    """Depth of the nearest point in each pixel, NaN where there is none."""
    height, width = shape
    # Comparisons with NaN are false, so what the camera cannot see drops out here.
    inside = (u >= -0.5) & (u < width - 0.5) & (v >= -0.5) & (v < height - 0.5) & (depth_m > 0)
    rows, columns = (np.floor(c[inside] + 0.5).astype(np.int64) for c in (v, u))
    nearest = np.full(shape, np.inf)
    np.minimum.at(nearest, (rows, columns), depth_m[inside])
    return np.where(np.isfinite(nearest), nearest, np.nan)


def remove_see_through(
    depth_m: Float64[np.ndarray, "h w"],
    window: tuple[int, int] = SEE_THROUGH_WINDOW,
    margin: float = SEE_THROUGH_MARGIN,
) -> Float64[np.ndarray, "h w"]:
    """Remove returns behind a nearer surface.

    A scanner above the camera looks over edges: its far returns project among the near ones. A
    return is removed if it is farther by `margin`, as a fraction, than the nearest return within
    `window` rows and columns around it.
    """
    depth_or_inf = np.where(np.isnan(depth_m), np.inf, depth_m)
    nearest = minimum_filter(depth_or_inf, window, mode="constant", cval=np.inf)
    hidden = np.isfinite(depth_or_inf) & (depth_or_inf > (1 + margin) * nearest)
    return np.where(hidden, np.nan, depth_m)


def unproject(depth_m: Float[np.ndarray, "h w"], camera: Camera) -> Float64[np.ndarray, "h w 3"]:
    """The 3D point of each pixel in the camera's frame; NaN where depth is NaN."""
    ray = camera.grid(depth_m.shape)
    return np.concatenate([ray, np.ones_like(ray[..., :1])], axis=-1) * depth_m[..., None]


def ray_length(shape: tuple[int, int], camera: Camera) -> Float64[np.ndarray, "h w"]:
    """Distance along the ray over depth along the axis, at every pixel: at least 1.

    depth = distance / ray_length, and distance = depth · ray_length.
    """
    return np.sqrt(1 + (camera.grid(shape) ** 2).sum(axis=-1))


def normals(depth_m: Float[np.ndarray, "h w"], camera: Camera) -> Float64[np.ndarray, "h w 3"]:
    """Unit normals of the surface, facing the camera, in its frame; NaN where undefined.

    Of the two neighbours to the sides, and of those above and below, the one nearer in depth is
    taken, so that no normal is smeared over an edge. Exact on planes.
    """
    points = unproject(depth_m, camera)
    across, down = (_tangent(points, axis) for axis in (1, 0))
    normal = np.cross(across, down)
    length = np.linalg.norm(normal, axis=-1, keepdims=True)
    facing = np.sign((normal * points).sum(axis=-1, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return -normal * facing / length


def depth_edges(depth_m: Float[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """Pixels at a depth discontinuity, where interpolated depth lies between two surfaces.

    Inverse depth is affine in (u, v) on every plane, however slanted; its second difference is
    therefore zero on planes and large at discontinuities.
    """
    inverse = 1 / np.where(depth_m > 0, depth_m, np.nan).astype(np.float64)
    edges = np.zeros(depth_m.shape, bool)
    for axis in (0, 1):
        line = np.moveaxis(inverse, axis, 0)
        bend = np.abs(line[2:] - 2 * line[1:-1] + line[:-2])
        np.moveaxis(edges, axis, 0)[1:-1] |= bend > EDGE * line[1:-1]
    return edges


def _tangent(points: np.ndarray, axis: int) -> np.ndarray:
    """The step to the next pixel along an axis, from the side that changes depth less."""
    step = np.diff(points, axis=axis)
    pad = np.full_like(np.take(points, [0], axis=axis), np.nan)
    before, after = (np.concatenate(both, axis=axis) for both in ((pad, step), (step, pad)))
    change_before, change_after = (
        np.where(np.isnan(side[..., 2]), np.inf, np.abs(side[..., 2])) for side in (before, after)
    )
    return np.where((change_before < change_after)[..., None], before, after)
