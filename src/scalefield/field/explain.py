"""What a fitted field is made of: its parts, the influence of each anchor, and the covariance of
several pixels."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.field.cholesky import Cholesky
from scalefield.field.kernel import LINEAR_TERMS, Inputs, KernelInputs, SumInputs, TermFeatures
from scalefield.field.lattice import Window
from scalefield.field.observations import thin
from scalefield.field.posterior import TINY, FieldFit
from scalefield.geometry.survey import CAMERA_NUMBERS

MOST_JOINT = 1000
"""Observations that the covariance of several pixels is computed from."""


class JointPosterior(NamedTuple):
    """ℓ at several pixels ~ N(mean, covariance)."""

    mean: Float[Tensor, " m"]
    covariance: Float[Tensor, "m m"]


def joint(
    fit: FieldFit,
    rows: Int64[Tensor, " m"],
    columns: Int64[Tensor, " m"],
    *,
    with_camera: bool = False,
    extrapolated: bool = True,
) -> JointPosterior:
    """Mean and calibrated covariance of ℓ at a list of pixels, and of the numbers of the camera
    after them, given the `nearest_observations`; with what is added where the field is
    `extrapolated`."""
    index = nearest_observations(fit, rows, columns, MOST_JOINT)
    pixels = fit.image.pixels(rows, columns)
    at: Inputs = pixels
    if with_camera:
        m = len(pixels)
        eye = torch.eye(m + CAMERA_NUMBERS, dtype=torch.float64, device=fit.image.device)
        at = SumInputs(pixels, eye[:, :m], eye[:, m:])
    mean, covariance = conditional(fit, at, index)
    variance = covariance.diagonal().clamp(min=TINY)
    std = fit.calibration.std(variance, fit.kernel.prior_variance(fit.kernel.features(at)))
    factor = std / variance.sqrt()
    covariance = covariance * factor[:, None] * factor
    if extrapolated:
        m = len(pixels)
        covariance[:m, :m] += extrapolation(fit, pixels)
    return JointPosterior(mean, covariance)


def extrapolation(fit: FieldFit, pixels: KernelInputs) -> Float[Tensor, "m m"]:
    """The covariance that is added at pixels beyond the extent of the anchors, with the correlation
    of the prior."""
    own, lost = fit.kernel.features(pixels), fit.lost(pixels).sqrt()
    return fit.kernel.stationary(own, own) * lost[:, None] * lost


def conditional(fit: FieldFit, at: Inputs, index: Int64[Tensor, " a"]) -> JointPosterior:
    """Mean and covariance of ℓ, or of sums of it, given the indexed observations."""
    kernel, linear, noise = fit.kernel, fit.linear, fit.observations.noise
    features, own, H = fit.features.at(index), kernel.features(at), kernel.linear_features(at)
    covariance = kernel.stationary(features, features) + torch.diag(noise[index] ** 2)
    cross = kernel.stationary(features, own)
    smoother = Cholesky.of(covariance).solve(cross)
    change = H - smoother.mT @ linear.H[index]
    stationary = kernel.stationary(own, own) - cross.mT @ smoother
    mean = fit.linear_mean(at) + smoother.mT @ linear.residual[index]
    return JointPosterior(mean, stationary + change @ linear.covariance @ change.mT)


def nearest_observations(
    fit: FieldFit, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"], most: int
) -> Int64[Tensor, " a"]:
    """Index of all observations if there are at most `most` of them; otherwise of as many of those
    nearest to each pixel as that allows."""
    index = fit.observations.mask.nonzero()[:, 0]
    if len(index) <= most:
        return index
    uv, chosen = torch.stack([columns, rows], dim=1).double(), index[:0]
    for k in range(1, fit.config.neighbours + 1):
        config = dataclasses.replace(fit.config, neighbours=k)
        near, there = dataclasses.replace(fit, config=config).near(uv)
        nearest_k = near[there].unique()
        if len(nearest_k) > most:
            break
        chosen = nearest_k
    return chosen if len(chosen) else nearest_k[thin(nearest_k >= 0, most)[0]]


def smoother_weights(fit: FieldFit, row: int, column: int) -> Float[Tensor, " n"]:
    """∂E[ℓ]/∂yᵢ at one pixel: how much each anchor determines the field there."""
    pixel = (torch.tensor([x], device=fit.image.device) for x in (row, column))
    systems = fit.at_pixels(*pixel)
    weights = fit.linear.whitened @ (fit.linear.covariance @ systems.columns[0])
    return weights.index_add(0, systems.neighbours[0], systems.smoother[0] * systems.mask[0])


def parts(fit: FieldFit) -> dict[str, Float[Tensor, "h w"]]:
    """Maps that sum to E[ℓ], by name: the linear terms, the modes one by one, and the stationary
    ones."""
    assert isinstance(fit.features, TermFeatures)
    systems, coefficients = fit.systems(), fit.coefficients()
    terms = [t for t in LINEAR_TERMS if t.name != "shift" or fit.image.shift is not None]
    names = [term.name for term in terms if term.name != "modes"]
    names += [f"mode {k + 1}" for k in range(len(coefficients["modes"]))]

    def linear(window: Window) -> Float[Tensor, "r h w"]:
        inputs, maps = fit.image.window(window.rows, window.columns), []
        for term in terms:
            features = term.features(inputs).mT * coefficients[term.name].float()[:, None]
            maps.append(features if term.name == "modes" else features.sum(dim=0, keepdim=True))
        return torch.cat(maps).unflatten(1, window.shape)

    found = dict(zip(names, fit.map_windows(linear), strict=True))
    for j, term in enumerate(fit.kernel.terms):
        only = fit.features.amplitude.new_zeros(len(fit.kernel.terms))
        only[j] = 1
        features = fit.features._replace(amplitude=fit.features.amplitude * only)
        alone = dataclasses.replace(fit, features=features)
        found[f"{term.family} {j + 1}"] = alone.map_windows(alone.blended(systems, linear=False))[0]
    return found
