"""Depth at single pixels of the photograph, and lengths, heights and areas between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from scalefield.anchors import as_numbers, pixel_indices
from scalefield.api import recover_from
from scalefield.errors import InputError
from scalefield.field.condition import FieldPosterior
from scalefield.geometry.camera import Camera
from scalefield.geometry.survey import CAMERA_NUMBERS, Survey
from scalefield.mde import MDEOutput
from scalefield.measurements import Measurement, measurement
from scalefield.methods.field import Field
from scalefield.recovery import Recovery, depth_limits, interval_factor
from scalefield.web.edits import PAGE_KINDS, Conditioned, Edit, full_recovery, numbers
from scalefield.web.sessions import Session
from scalefield.web.uploads import Limits

KINDS = ("distance", "path", "area", "height")
"""Kinds of measurements that the page reads."""
MOST_POINTS = 200
"""Points of one measurement."""
LEVEL = 0.9
"""Probability of the intervals."""
DRAWS = 1000

Pixels = tuple[Int64[np.ndarray, " n"], ...]
Numbers = Float64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Question:
    """What is to be read from the recovery of an edit."""

    edit: Edit
    points: Pixels
    measurements: tuple[Measurement | str, ...]
    """What is to be read, or why that is impossible."""


def parse_question(body: Any, edit: Edit, shape: tuple[int, int], limits: Limits) -> Question:
    """What is asked, from JSON: {"points": [{"u", "v"}, …], "measurements": [{"kind", "points"},
    …]}; measurements need the edit's fov_deg."""
    rows = body.get("measurements", [])
    if not isinstance(rows, list) or ("points" not in body and not rows):
        raise InputError('wanted "points": [{"u", "v"}, …] or "measurements": [{"kind", "points"}]')
    points = parse_points(body.get("points", []), shape, limits.anchors)
    if rows and edit.fov_deg is None:
        raise InputError("measurements need fov_deg, the horizontal field of view, as a number")
    found: list[Measurement | str] = []
    total = 0
    for i, row in enumerate(rows):
        kind = str(row.get("kind")) if isinstance(row, dict) else ""
        if kind not in KINDS:
            kinds = ", ".join(KINDS)
            raise InputError(f"measurement #{i}: kind is one of {kinds}, found {kind[:40]!r}")
        v, u = (x.tolist() for x in parse_points(row.get("points"), shape, MOST_POINTS))
        total += len(u)
        try:
            found.append(measurement(PAGE_KINDS.get(kind, kind), list(zip(u, v, strict=True))))
        except InputError as e:
            found.append(str(e))
    if total > limits.anchors:
        raise InputError(f"the measurements have more than {limits.anchors} points together")
    return Question(edit, points, tuple(found))


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
    if edit.method == "field" and (len(edit.anchors) or edit.known):
        method = Conditioned(relative, edit.survey(session.shape))
        solver = partial(method, relative.output)
        recovery = recover_from(relative.output, edit.anchors, Field(), solver=solver)
        assert method.posterior is not None
        depths = PosteriorDepths(method.posterior, relative.output, depth_limits(edit.anchors))
    else:
        recovery = full_recovery(session, edit)
        depths = MapDepths(recovery)
    some = len(question.points[0]) > 0
    depth_m, std_log = depths.at(question.points) if some else (np.zeros(0), None)
    answer = {"depth_m": depth_m}
    if std_log is not None:
        reach = np.exp(interval_factor(LEVEL) * std_log)
        answer |= {"low_m": depth_m / reach, "high_m": depth_m * reach, "std_log": std_log}
    return {
        **{name: json_numbers(values) for name, values in answer.items()},
        "measurements": [
            read(depths, each, edit.fov_deg, session.shape) for each in question.measurements
        ],
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
        index = tuple(map(torch.from_numpy, pixels))
        log_scale, std = self.posterior.at(*index)
        log_mde = self.posterior.image.mde_depth[index].double().log()
        log_depth = torch.where(self.output.valid[index], log_mde + log_scale, torch.nan).numpy()
        depth_m = np.exp(np.clip(log_depth, *np.log(self.limits_m)))
        return depth_m, np.where(np.isnan(depth_m), np.nan, std.double().numpy())

    def draws(self, pixels: Pixels) -> tuple[Tensor, Tensor]:
        """Log-depth minus its mean at pixels, and what is drawn of the camera: the mean first."""
        rows, columns = map(torch.from_numpy, pixels)
        return self.posterior.draws(rows, columns, DRAWS)


@dataclass(frozen=True, eq=False)
class MapDepths:
    """The depth of any method at single pixels."""

    recovery: Recovery[np.ndarray]

    def at(self, pixels: Pixels) -> tuple[Numbers, Numbers | None]:
        """Depth, and the standard deviation of its logarithm if the method has one."""
        depth_m, std_log = self.recovery.depth_m, self.recovery.std_log
        std = None if std_log is None else std_log[pixels].astype(np.float64)
        return depth_m[pixels].astype(np.float64), std

    def draws(self, pixels: Pixels) -> tuple[Tensor, Tensor]:
        """The mean alone: no method but `field` has a joint distribution."""
        return torch.zeros(1, len(pixels[0])).double(), torch.zeros(1, CAMERA_NUMBERS).double()


def read(
    depths: PosteriorDepths | MapDepths,
    asked: Measurement | str,
    fov_deg: float | None,
    shape: tuple[int, int],
) -> dict[str, Any]:
    """The value that the depths at the points give and its bounds, the quantiles of joint draws;
    without the bounds where there are no draws, and without the value where there is no depth or
    the question has an error."""
    nothing = {"value": None, "low": None, "high": None}
    if isinstance(asked, str):
        return {**nothing, "error": asked}
    assert fov_deg is not None
    try:
        survey = Survey.of([asked], shape, Camera.from_fov(fov_deg, shape))
    except InputError as e:
        return {**nothing, "error": str(e)}
    depth_m, _ = depths.at(survey.pixels)
    if np.isnan(depth_m).any():
        return nothing
    around, psi = depths.draws(survey.pixels)
    (values,) = survey.values(torch.from_numpy(depth_m).log() + around, psi)
    value, drawn = abs(float(values[0])), values[1:].abs().numpy()
    if not len(drawn):
        return {**nothing, "value": value}
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    # Independent errors of the points lengthen what they measure, in most draws where it is short.
    return {"value": value, "low": min(low, value), "high": max(high, value)}


def json_numbers(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, with None for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]
