"""Depth at single pixels of the photograph, and lengths, heights and areas between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from scalefield.anchors import as_numbers, pixel_indices
from scalefield.api import recover_from
from scalefield.errors import InputError
from scalefield.field.condition import FieldPosterior
from scalefield.geometry.camera import Camera
from scalefield.mde import MDEOutput
from scalefield.recovery import Recovery, depth_limits
from scalefield.seeding import seeded_rng
from scalefield.web.edits import Conditioned, Edit, full_recovery, numbers
from scalefield.web.sessions import Session
from scalefield.web.uploads import Limits

LEAST_POINTS = {"distance": 2, "path": 2, "area": 3, "height": 2}
"""Kinds of measurements, and how many points each needs."""
MOST_POINTS = 200
"""Points of one measurement."""
LEVEL = 0.9
"""Probability of the intervals."""
DRAWS = 1000

Pixels = tuple[Int64[np.ndarray, " n"], ...]
Numbers = Float64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Measurement:
    """A length, a height or an area between pixels."""

    kind: str
    pixels: Pixels
    """Rows and columns."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is to be read from the recovery of an edit."""

    edit: Edit
    points: Pixels
    measurements: tuple[Measurement, ...]
    camera: Camera | None


def parse_question(body: Any, edit: Edit, shape: tuple[int, int], limits: Limits) -> Question:
    """What is asked, from JSON: {"points": [{"u", "v"}, …], "measurements": [{"kind", "points"},
    …], "fov_deg": number, which measurements need}."""
    rows = body.get("measurements", [])
    if not isinstance(rows, list) or ("points" not in body and not rows):
        raise InputError('wanted "points": [{"u", "v"}, …] or "measurements": [{"kind", "points"}]')
    points, camera = parse_points(body.get("points", []), shape, limits.anchors), None
    if rows:
        fov_deg = body.get("fov_deg")
        if isinstance(fov_deg, bool) or not isinstance(fov_deg, int | float):
            raise InputError("measurements need fov_deg, the horizontal field of view, as a number")
        camera = Camera.from_fov(float(min(max(fov_deg, -1), 360)), shape)
    found = []
    for i, row in enumerate(rows):
        kind = row.get("kind") if isinstance(row, dict) else None
        if kind not in LEAST_POINTS:
            kinds = ", ".join(LEAST_POINTS)
            raise InputError(f"measurement #{i}: kind is one of {kinds}, found {str(kind)[:40]!r}")
        pixels = parse_points(row.get("points"), shape, MOST_POINTS)
        if len(pixels[0]) < LEAST_POINTS[kind]:
            least = LEAST_POINTS[kind]
            raise InputError(f"measurement #{i}: {kind} needs {least} points or more")
        found.append(Measurement(kind, pixels))
    if sum(len(m.pixels[0]) for m in found) > limits.anchors:
        raise InputError(f"the measurements have more than {limits.anchors} points together")
    return Question(edit, points, tuple(found), camera)


def parse_points(rows: Any, shape: tuple[int, int], most: int) -> Pixels:
    """Rows and columns of pixels, from JSON: [{"u", "v"}, …]."""
    if not isinstance(rows, list):
        raise InputError('wanted "points": [{"u", "v"}, …]')
    if len(rows) > most:
        raise InputError(f"{len(rows)} points, and at most {most} are taken")
    columns = numbers(rows, ("u", "v"), "point")
    u, v = (as_numbers(f"point column {name}", columns[name]) for name in ("u", "v"))
    return pixel_indices(u, v, shape, noun="points")


def measure(session: Session, question: Question) -> dict[str, Any]:
    """Depth at the points and the measurements, with their 90 % intervals, as JSON values.

    With `field` the values are those of the pixels of the photograph themselves: an interval of
    a measurement has the quantiles of joint draws from the posterior. Other methods give the
    intervals of the depths only where they have a deviation, and none of the measurements.
    """
    edit, relative = question.edit, session.relative
    depths: PosteriorDepths | MapDepths
    recovery: Recovery[Any]
    if edit.method == "field" and len(edit.anchors):
        method = Conditioned(relative)
        recovery = recover_from(relative.output, edit.anchors, method)
        assert method.posterior is not None
        depths = PosteriorDepths(method.posterior, relative.output, depth_limits(edit.anchors))
    else:
        recovery = full_recovery(session, edit)
        depths = MapDepths(recovery)
    some = len(question.points[0]) > 0
    depth_m, std_log = depths.at(question.points) if some else (np.zeros(0), None)
    answer = {"depth_m": depth_m}
    if std_log is not None:
        reach = np.exp(NormalDist().inv_cdf((1 + LEVEL) / 2) * std_log)
        answer |= {"low_m": depth_m / reach, "high_m": depth_m * reach, "std_log": std_log}
    return {
        **{name: json_numbers(values) for name, values in answer.items()},
        "measurements": [interval(depths, m, question.camera) for m in question.measurements],
        "report": recovery.report.as_dict(),
    }


@dataclass(frozen=True, eq=False)
class PosteriorDepths:
    """The depth of `field` at single pixels."""

    posterior: FieldPosterior
    output: MDEOutput
    limits_m: tuple[float, float]

    def at(self, pixels: Pixels) -> tuple[Numbers, Numbers]:
        """Depth, and the standard deviation of its logarithm."""
        log_scale, std = self.posterior.at(*map(torch.from_numpy, pixels))
        depth_m = self.depth_m(log_scale.double().numpy(), pixels)
        return depth_m, np.where(np.isnan(depth_m), np.nan, std.double().numpy())

    def draws(self, pixels: Pixels) -> Float64[np.ndarray, "s n"]:
        """Depths from their joint distribution: pairs on opposite sides of its mean."""
        joint = self.posterior.joint(*map(torch.from_numpy, pixels))
        values, vectors = np.linalg.eigh(joint.covariance.double().numpy())
        root = vectors * np.sqrt(values.clip(min=0))
        unit = seeded_rng(0, "measure").standard_normal((DRAWS // 2, len(values)))
        log_scale = joint.mean.double().numpy() + np.concatenate([unit, -unit]) @ root.T
        return self.depth_m(log_scale, pixels)

    def depth_m(
        self, log_scale: Float64[np.ndarray, "*s n"], pixels: Pixels
    ) -> Float64[np.ndarray, "*s n"]:
        """D·e^ℓ within the limits of `recover`; NaN in holes."""
        index = tuple(map(torch.from_numpy, pixels))
        log_mde = self.posterior.image.mde_depth[index].double().log()
        log_depth = torch.where(self.output.valid[index], log_mde, torch.nan).numpy() + log_scale
        return np.exp(np.clip(log_depth, *np.log(self.limits_m)))


@dataclass(frozen=True, eq=False)
class MapDepths:
    """The depth of any method at single pixels."""

    recovery: Recovery[np.ndarray]

    def at(self, pixels: Pixels) -> tuple[Numbers, Numbers | None]:
        """Depth, and the standard deviation of its logarithm if the method has one."""
        depth_m, std_log = self.recovery.depth_m, self.recovery.std_log
        std = None if std_log is None else std_log[pixels].astype(np.float64)
        return depth_m[pixels].astype(np.float64), std

    def draws(self, pixels: Pixels) -> None:
        """None: no method but `field` has a joint distribution."""


def interval(
    depths: PosteriorDepths | MapDepths, measurement: Measurement, camera: Camera | None
) -> dict[str, float | None]:
    """The value that the depths at the points give and its bounds, the quantiles of joint draws;
    without the bounds where there are no draws, and without the value where there is no depth."""
    assert camera is not None
    rows, columns = measurement.pixels
    rays = camera.rays(columns.astype(float), rows.astype(float))
    rays = np.concatenate([rays, np.ones((len(rows), 1))], axis=1)

    def values(depth_m: Float64[np.ndarray, "s n"]) -> Float64[np.ndarray, " s"]:
        return extents(measurement.kind, rays * depth_m[..., None])

    (value,) = values(depths.at(measurement.pixels)[0][None]).tolist()
    if math.isnan(value):
        return {"value": None, "low": None, "high": None}
    drawn = depths.draws(measurement.pixels)
    if drawn is None:
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(values(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    # Independent errors of the points lengthen what they measure, in most draws where it is short.
    return {"value": value, "low": min(low, value), "high": max(high, value)}


def extents(kind: str, points: Float64[np.ndarray, "s n 3"]) -> Float64[np.ndarray, " s"]:
    """The length of a line or path, the height between two points of a level camera, or the area
    of a polygon, ½ ‖Σᵢ pᵢ × pᵢ₊₁‖, for each set of points."""
    if kind == "height":
        return np.abs(points[:, 0, 1] - points[:, 1, 1])
    if kind == "area":
        following = np.roll(points, -1, axis=1)
        return np.linalg.norm(np.cross(points, following).sum(axis=1), axis=-1) / 2
    return np.linalg.norm(np.diff(points, axis=1), axis=-1).sum(axis=1)


def json_numbers(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, with None for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]
