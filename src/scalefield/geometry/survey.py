"""Measurements over an image: their pixels, their values for given depths and camera, and the
derivatives of these values.

The camera's focal length and tilt may be unknown: three standard normal numbers ψ, multiplied by
`CAMERA_STD`, change the logarithm of the focal length, the pitch and the roll.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors, pixel_indices
from scalefield.errors import InputError
from scalefield.geometry.camera import Camera
from scalefield.measurements import (
    Depth,
    Measurement,
    Reading,
    Slant,
    View,
    down_vector,
    group_alike,
)
from scalefield.recovery import DRAWS, Recovery

ASSUMED_FOV_DEG = 60.0
"""Horizontal field of view where the camera is not known."""
FOCAL_STD = 0.25
"""Standard deviation of the logarithm of the focal length then."""
TILT_STD_DEG = (15.0, 3.0)
"""Standard deviations of pitch and roll around a level camera."""


CAMERA_NUMBERS = 3
"""Length of ψ."""


class Linearisation(NamedTuple):
    """Values of n rows, and their derivatives by the log-depths of m pixels and by ψ."""

    values: Float64[Tensor, " n"]
    by_log_depth: Float64[Tensor, "n m"]
    by_camera: Float64[Tensor, "n 3"]
    owner: Int64[Tensor, " n"]
    """The measurement of each row."""


class RowTargets(NamedTuple):
    """What was measured of n rows."""

    value: Float64[Tensor, " n"]
    noise: Float64[Tensor, " n"]
    """Standard deviation, or softness of a bound."""
    bound: Bool[Tensor, " n"]
    """Whether the row only has to be above its value."""


@dataclass(frozen=True, eq=False)
class Survey:
    """Measurements at pixels of one image, seen by one camera."""

    measured: tuple[Measurement, ...]
    shape: tuple[int, int]
    camera: Camera
    focal_std: float = 0.0
    """Standard deviation of the logarithm of the focal length; 0 for a known camera."""

    @classmethod
    def of(
        cls, measured: Sequence[Measurement], shape: tuple[int, int], camera: Camera | None = None
    ) -> Survey:
        """The survey of an image; without a camera its focal length is unknown. Measurements that
        no depth can fulfil are refused."""
        assumed = Camera.from_fov(ASSUMED_FOV_DEG, shape)
        survey = cls(tuple(measured), shape, camera or assumed, 0.0 if camera else FOCAL_STD)
        survey.check()
        return survey

    def check(self) -> None:
        """Refuse measurements that are impossible for this camera."""
        for m, span in zip(self.measured, self.spans, strict=True):
            rays = self.rays[span].numpy()
            if not np.isfinite(rays).all():
                raise InputError(f"{m}: the camera images no ray at one of its pixels")
            m.check_view(rays)

    @property
    def assumption(self) -> str:
        """What is assumed of a camera that measurements need and that is unknown."""
        if self.focal_std == 0 or not any(m.needs_camera for m in self.measured):
            return ""
        return (
            f"the camera is not known: a horizontal field of view of {ASSUMED_FOV_DEG:g}° is "
            f"assumed, with a focal length uncertain by ±{100 * self.focal_std:.0f} %; give the "
            "intrinsics or the field of view"
        )

    @cached_property
    def pixels(self) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """Rows and columns of the pixels of all measurements, one after another."""
        uv = np.array([p for m in self.measured for p in m.pixels]).reshape(-1, 2)
        owner = [str(m) for m in self.measured for _ in m.pixels]
        rows, columns = pixel_indices(
            uv[:, 0], uv[:, 1], self.shape, noun="points of measurements", name=owner.__getitem__
        )
        return rows, columns

    @cached_property
    def spans(self) -> list[slice]:
        """The pixels of each measurement."""
        ends = np.cumsum([0, *(len(m.pixels) for m in self.measured)]).tolist()
        return [slice(a, b) for a, b in pairwise(ends)]

    @cached_property
    def rays(self) -> Float64[Tensor, "m 3"]:
        """(x/z, y/z, 1) of the pixels' centres."""
        rows, columns = (x.astype(float) for x in self.pixels)
        return torch.from_numpy(np.c_[self.camera.rays(columns, rows), np.ones(len(rows))])

    @cached_property
    def groups(self) -> list[list[int]]:
        """Measurements whose rows are one function."""
        return group_alike(self.measured)

    def view(
        self,
        pixels: Int64[Tensor, "*g p"] | slice,
        log_depth: Float64[Tensor, "*b p"],
        psi: Float64[Tensor, "*b 3"],
    ) -> View:
        """What measurements at some of the pixels are functions of."""
        factor = (-self.focal_std * psi[..., 0, None, None]).exp()
        rays = self.rays[pixels]
        xy = rays[..., :2] * factor
        rays = torch.cat([xy, torch.ones_like(xy[..., :1])], dim=-1)
        pitch, roll = (
            math.radians(s) * psi[..., i] for i, s in zip((1, 2), TILT_STD_DEG, strict=True)
        )
        return View(log_depth, rays, down_vector(pitch, roll))

    def values(
        self, log_depth: Float64[Tensor, "d m"], psi: Float64[Tensor, "d 3"]
    ) -> list[Float64[Tensor, " d"]]:
        """The quantity of each measurement for several depths and cameras."""
        return [
            m.quantity(self.view(span, log_depth[:, span], psi))
            for m, span in zip(self.measured, self.spans, strict=True)
        ]

    def linearise(
        self, log_depth: Float64[Tensor, " m"], psi: Float64[Tensor, " 3"]
    ) -> Linearisation:
        """All rows with their derivatives, in the order of the measurements.

        Alike measurements are differentiated together: the gradient of the sum of their k-th rows
        has the derivatives of each by its own pixels and its own copy of ψ.
        """
        parts: list[tuple[int, Tensor, Tensor, Tensor]] = []
        for group in self.groups:
            spans = [self.spans[i] for i in group]
            pixels = torch.stack([torch.arange(s.start, s.stop) for s in spans])
            own = log_depth[pixels].requires_grad_()
            camera = psi.expand(len(group), 3).clone().requires_grad_()
            values = self.measured[group[0]].rows(self.view(pixels, own, camera))
            inputs = (own, camera)
            gradients = [
                torch.autograd.grad(x.sum(), inputs, retain_graph=True, materialize_grads=True)
                for x in values.unbind(dim=1)
            ]
            by_own, by_camera = (torch.stack(g, dim=1) for g in zip(*gradients, strict=True))
            parts += zip(group, values.detach(), by_own, by_camera, strict=True)
        parts.sort(key=lambda part: part[0])
        counts = torch.tensor([len(values) for _, values, _, _ in parts])
        return Linearisation(
            torch.cat([values for _, values, _, _ in parts]),
            torch.block_diag(*(by_own for _, _, by_own, _ in parts)),
            torch.cat([by_camera for *_, by_camera in parts]),
            torch.arange(len(parts)).repeat_interleave(counts),
        )

    @cached_property
    def owner(self) -> Int64[Tensor, " n"]:
        """The measurement of each row."""
        zero = torch.zeros(len(self.rays), dtype=torch.float64)
        return self.linearise(zero, zero.new_zeros(CAMERA_NUMBERS)).owner

    @cached_property
    def targets(self) -> RowTargets:
        """What was measured of the rows."""
        listed, bound = [], []
        counts = self.owner.bincount(minlength=len(self.measured)).tolist()
        for m, count in zip(self.measured, counts, strict=True):
            values = m.targets()
            listed += [(v, m.std()) for v in (values if len(values) == count else values * count)]
            bound += count * [m.bound]
        target, noise = torch.tensor(listed, dtype=torch.float64).T
        return RowTargets(target, noise, torch.tensor(bound))


def split_depths(
    measured: Sequence[Measurement], shape: tuple[int, int], camera: Camera | None
) -> tuple[Anchors, tuple[Measurement, ...]]:
    """Depths, and slant distances seen by a known camera, as anchors; and the others."""
    simple = [m for m in measured if isinstance(m, Depth) or (camera and isinstance(m, Slant))]
    others = tuple(m for m in measured if m not in simple)
    if not simple:
        return Anchors([], [], []), others
    survey = Survey.of(simple, shape, camera)
    slant = np.array([isinstance(m, Slant) for m in simple])
    ray = np.where(slant, survey.rays.norm(dim=1).numpy(), 1.0)
    u, v, value, sigma = np.array(
        [(m.u, m.v, m.value_m, math.nan if m.sigma_m is None else m.sigma_m) for m in simple], float
    ).T
    return Anchors(u, v, value / ray, sigma / ray), others


def with_measurements(
    anchors: Anchors, measured: Sequence[Measurement], shape: tuple[int, int], camera: Camera | None
) -> tuple[Anchors, Survey | None]:
    """The anchors with the measurements that are depths, and a survey of the others."""
    if questions := [m for m in measured if m.is_question]:
        raise InputError(f"{questions[0]} has no value")
    depths, others = split_depths(measured, shape, camera)
    return anchors.joined(depths), Survey.of(others, shape, camera) if others else None


def read(
    recovery: Recovery,
    questions: Measurement | Sequence[Measurement],
    camera: Camera | None,
    fov_deg: float | None,
    level: float,
) -> list[Reading]:
    """The readings of `Recovery.measure`."""
    listed = [questions] if isinstance(questions, Measurement) else list(questions)
    for q in listed:
        if not isinstance(q, Measurement) or not q.reads:
            raise InputError(f"{q} has no value to be read; wanted a length, a height or such")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, found {level!r}")
    shape, posterior = tuple(recovery.depth_m.shape), recovery.posterior
    if camera is None and fov_deg is not None:
        camera = Camera.from_fov(fov_deg, shape)
    survey = Survey.of(listed, shape, camera or recovery.camera)
    rows, columns = map(torch.from_numpy, survey.pixels)
    depth_m = torch.as_tensor(recovery.depth_m)[rows, columns].double().cpu()
    for q, span in zip(listed, survey.spans, strict=True):
        if depth_m[span].isnan().any():
            raise InputError(f"{q}: there is no depth at one of its pixels")
    drawn = torch.zeros(1, len(depth_m)).double(), torch.zeros(1, 3).double()
    if posterior is not None:
        drawn = posterior.draws(rows, columns, DRAWS)
    around, psi = drawn
    tail, readings = (1 - level) / 2, []
    for values in survey.values(depth_m.log() + around, psi):
        value, draws = float(values[0]), values[1:].numpy()
        low, high = np.quantile(draws, (tail, 1 - tail)) if len(draws) else (math.nan, math.nan)
        readings.append(Reading(value, float(low), float(high), draws))
    return readings
