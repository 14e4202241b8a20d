"""The metres of a scene's unit, from a few measurements in it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalefield.anchors import pixel_indices
from scalefield.errors import FileError, InputError, one_line
from scalefield.io import read_text
from scalefield.scene.view import Estimate, View

DEFAULT_SIGMA = 0.01
"""Relative standard deviation of a measurement that has none of its own."""
FORMS = {
    "depth_m": ("image", "u", "v"),
    "length_m": ("image", "u", "v", "u2", "v2"),
    "distance_m": ("image", "other"),
}
"""Columns of the three kinds of measurements: the depth of a pixel, the distance between the points
of two pixels, and that between two cameras."""
NORMAL_90 = 1.645


@dataclass(frozen=True)
class SceneMeasurement:
    """One measurement in metres, as a line of a table has it."""

    image: str
    metres: float
    sigma: float
    """Relative standard deviation."""
    pixels: tuple[tuple[float, float], ...] = ()
    """(u, v) of one or two pixels of the image."""
    other: str = ""
    """The other image, for a distance between cameras."""


@dataclass(frozen=True)
class MetricScale:
    """Metres in the unit of a scene."""

    log_metres_per_unit: float
    std_log: float
    residuals_log: tuple[float, ...]
    """Logarithm of each measurement over what the scene predicts at that scale."""

    @property
    def metres_per_unit(self) -> float:
        """The expected value."""
        return math.exp(self.log_metres_per_unit)

    @property
    def interval_90(self) -> tuple[float, float]:
        """The 90 % interval of the metres in a unit."""
        low, high = (
            math.exp(self.log_metres_per_unit + sign * NORMAL_90 * self.std_log) for sign in (-1, 1)
        )
        return low, high


def read_measurements(path: Path) -> list[SceneMeasurement]:
    """The lines of a .csv with `image` and, by line, u, v, depth_m; or u, v, u2, v2, length_m; or
    other, distance_m between two cameras; and, where known, sigma_m."""
    table = csv.DictReader(io.StringIO(read_text(path)))
    rows = [{k: (v or "").strip() for k, v in row.items() if k} for row in table]
    return [_measurement(path, i + 2, row) for i, row in enumerate(rows)]


def _measurement(path: Path, line: int, row: dict[str, str]) -> SceneMeasurement:
    kinds = [kind for kind in FORMS if row.get(kind)]
    if len(kinds) != 1:
        raise FileError(path, f"line {line}: wanted one of {', '.join(FORMS)}")
    missing = [name for name in FORMS[kinds[0]] if not row.get(name)]
    if missing:
        raise FileError(path, f"line {line}: {kinds[0]} needs {', '.join(missing)}")

    def number(name: str) -> float:
        try:
            value = float(row[name])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (name.endswith("_m") and value <= 0):
            raise FileError(
                path, f"line {line}: {name} is no usable number: {one_line(row[name])!r}"
            )
        return value

    metres = number(kinds[0])
    sigma = number("sigma_m") / metres if row.get("sigma_m") else DEFAULT_SIGMA
    columns = FORMS[kinds[0]][1:]
    if kinds[0] == "distance_m":
        return SceneMeasurement(row["image"], metres, sigma, other=row["other"])
    values = [number(name) for name in columns]
    pixels = tuple(zip(values[::2], values[1::2], strict=True))
    return SceneMeasurement(row["image"], metres, sigma, pixels)


def metric_scale(
    measurements: Sequence[SceneMeasurement],
    views: Mapping[str, View],
    estimates: Mapping[str, Estimate],
) -> MetricScale:
    """The scale that measurements give a scene, by weighted least squares of their log-ratios.

    The errors of a view's depths are taken as one, because they are correlated: measurements in one
    view average their own noise only. If the ratios differ by more than their deviations, the
    deviation of the scale grows by as much.
    """
    if not measurements:
        raise InputError("no measurement is given")
    groups: dict[str, list[tuple[float, float, float]]] = {}
    ratios = []
    for i, each in enumerate(measurements):
        for name in (each.image, each.other):
            if name and name not in views:
                raise InputError(f"a measurement names {name!r}, which is no view of the scene")
        length, field_std = _predicted(each, views, estimates.get(each.image))
        if not length > 0:
            raise InputError(f"a measurement in {each.image} is of a length of zero")
        ratios.append(math.log(each.metres / length))
        key = f"cameras {i}" if each.other else each.image
        groups.setdefault(key, []).append((ratios[-1], each.sigma, field_std))
    means, variances = [], []
    for members in groups.values():
        ratio, sigma, field_std = np.array(members).T
        weight = 1 / (sigma**2 + field_std**2)
        means.append(float(np.average(ratio, weights=weight)))
        own = 1 / np.sum(1 / np.maximum(sigma, 1e-6) ** 2)
        variances.append(float(own + np.average(field_std, weights=weight) ** 2))
    weight = 1 / np.array(variances)
    mean = float(np.average(means, weights=weight))
    excess = 1.0
    if len(means) > 1:
        excess = max(1.0, float(np.sum(weight * (np.array(means) - mean) ** 2)) / (len(means) - 1))
    residuals = tuple(ratio - mean for ratio in ratios)
    return MetricScale(mean, float(np.sqrt(excess / weight.sum())), residuals)


def _predicted(
    each: SceneMeasurement, views: Mapping[str, View], estimate: Estimate | None
) -> tuple[float, float]:
    """The measured length in the unit of the scene, and the deviation of its logarithm."""
    view = views[each.image]
    if each.other:
        centres = [views[name].camera_to_world[:3, 3] for name in (each.image, each.other)]
        return float(np.linalg.norm(centres[0] - centres[1])), 0.0
    assert estimate is not None
    u, v = np.array(each.pixels, np.float64).T
    rows, columns = pixel_indices(u, v, estimate.shape, noun="measured pixels")
    depth = np.exp(estimate.log_depth[rows, columns].astype(np.float64))
    std = float(estimate.std[rows, columns].mean())
    if len(u) == 1:
        return float(depth[0]), std
    points = view.world(u, v, depth)
    return float(np.linalg.norm(points[0] - points[1])), std
