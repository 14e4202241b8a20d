"""Measurements of every kind as observations of the field: linear rows at their mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from scalefield.field.gauss_newton import LinearRows, MeasuredRows, find_mode, pseudo_targets
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel, SumInputs
from scalefield.field.observations import Observations, Readings
from scalefield.geometry.survey import CAMERA_NUMBERS, Survey

LEFT_OUT = 1e6
"""Noise of rows that are left out."""


@dataclass(frozen=True, eq=False)
class SurveyReadings:
    """Readings of depth at pixels, and a survey of measurements of other kinds."""

    readings: Readings
    """One for each pixel."""
    survey: Survey

    @property
    def pixels(self) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
        """Rows and columns of the readings, and of the survey after them."""
        own = self.readings.rows, self.readings.columns
        others = (torch.from_numpy(x).to(own[0].device) for x in self.survey.pixels)
        return torch.cat([own[0], next(others)]), torch.cat([own[1], next(others)])

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.readings.rows) + len(self.survey.targets.value)

    @property
    def fixes_scale(self) -> bool:
        """Whether any measurement says how large the scene is."""
        sizes = (m.degree > 0 and not m.bound for m in self.survey.measured)
        return bool(self.readings.mask.any()) or any(sizes)

    def measured(self) -> MeasuredRows:
        """What was measured of the rows."""
        readings, (value, noise, bound) = self.readings, self.survey.targets
        known = readings.mask.cpu()
        return MeasuredRows(
            torch.cat([readings.log_depth.cpu().double().where(known, 0), value]),
            torch.cat([readings.noise.cpu().double(), noise]),
            torch.cat([torch.zeros_like(known), bound]),
        )

    def rows(self, log_depth: Float64[Tensor, " m"], psi: Float64[Tensor, " c"]) -> LinearRows:
        """The rows, and their derivatives by log-depth and ψ."""
        n, at = len(self.readings.rows), self.survey
        values, by_log_depth, by_camera, _ = at.linearise(log_depth[n:], psi)
        eye = torch.eye(n, dtype=torch.float64)
        camera = torch.cat([by_camera.new_zeros(n, CAMERA_NUMBERS), by_camera])
        jacobian = torch.cat([torch.block_diag(eye, by_log_depth), camera], dim=1)
        return LinearRows(torch.cat([log_depth[:n], values]), jacobian)

    def observe(
        self, image: ImageInputs, kernel: Kernel | None = None, used: Observations | None = None
    ) -> tuple[Observations, bool]:
        """Linear rows at the median scale; with a kernel, at the mode given the rows in use with
        their noise; and whether that was found."""
        n, device, measured = len(self.readings.rows), image.device, self.measured()
        pixels = image.pixels(*self.pixels)
        m = len(pixels)
        known = torch.cat([self.readings.mask.cpu(), torch.ones(self.count - n, dtype=torch.bool)])
        in_use = known if used is None else used.mask.cpu()
        relative = (pixels.log_depth + image.log_depth_median + pixels.mean).cpu()
        u, converged = relative.new_zeros(m + CAMERA_NUMBERS), True
        offset = self.offset(image, self.rows(relative, u[m:]), measured, in_use)

        def rows(u: Float64[Tensor, " u"]) -> LinearRows:
            return self.rows(relative + offset + u[:m], u[m:])

        if kernel is not None and used is not None:
            noise = torch.where(measured.bound, measured.noise, used.noise.cpu())
            noise = torch.where(in_use, noise, LEFT_OUT)
            camera = torch.eye(CAMERA_NUMBERS, dtype=torch.float64)
            covariance = torch.block_diag(kernel(pixels, pixels).cpu(), camera)
            u, converged = find_mode(covariance, rows, measured._replace(noise=noise))
        at = rows(u)
        target, noise = pseudo_targets(at, u, measured)
        weights, camera = at.jacobian[:, :m], at.jacobian[:, m:]
        y = target + weights @ (offset + pixels.mean.cpu())
        inputs = SumInputs(pixels, weights.to(device), camera.to(device))
        observed = Observations(inputs, y.to(device), noise.to(device), known.to(device))
        return observed, converged

    def offset(
        self, image: ImageInputs, at: LinearRows, measured: MeasuredRows, in_use: Bool[Tensor, " n"]
    ) -> Float64[Tensor, ""]:
        """Median global log-scale of the measurements in use; the expected one without any."""
        level = at.jacobian[:, :-CAMERA_NUMBERS].sum(dim=1)
        of_scale = in_use & ~measured.bound & (level > 0.5)
        if of_scale.any():
            return ((measured.value - at.values) / level)[of_scale].median()
        return (image.maps.expected_log_depth[0].double() - image.log_depth_median).cpu()
