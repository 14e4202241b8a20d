"""Region-aware alignment (Fan et al., arXiv 2507.14879): scale, tilt and shift per region."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.alignment.affine import (
    MIN_RELATIVE_RANGE,
    Affine,
    Samples,
    fit_affine,
    fit_scale,
    relative_range,
)
from scalefield.alignment.superpixels import (
    components,
    members_of,
    merge_small,
    on_border,
    superpixel_labels,
)
from scalefield.alignment.uncertainty import (
    LinearSmoother,
    fit_variance,
    log_residuals,
    total_std,
)
from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery, Solver
from scalefield.report import Fallback
from scalefield.validation import require, require_choice

MIN_ANCHORS = 5
DILATION_STEP = 0.02
"""Step of the dilation as a fraction of the image's diagonal."""
DILATION_STEPS = 10
TILT_RIDGE = 1e-3

Model = Literal["plane", "affine", "scale", "global"]
"""The model of a region: scale, tilt and shift; scale and shift; scale; Global's fit."""
COLUMNS: dict[Model, tuple[int, ...]] = {
    "plane": (0, 1, 2, 3),
    "affine": (0, 3),
    "scale": (0,),
    "global": (0, 3),
}
"""The columns of x, u, v, 1 that each model uses."""
FALLBACKS = {
    "affine": "scale and shift without tilt",
    "scale": "scale only",
    "global": "Global's scale and shift",
    "dilated": "anchors from around the region",
    "nearest": f"the {MIN_ANCHORS} nearest anchors, or all if there are fewer",
}
"""Sentences of the codes that `Region` reports."""


@dataclass(frozen=True, eq=False)
class Region(Method):
    """Scale, tilt and shift in every region of the image: y = s·x + β·u + γ·v + t.

    Minimises Σ w (y − s·x − β·u − γ·v − t)² + 1e-3 (β² + γ²) over a region's anchors; u and v run
    from −1 to 1 over the image. A region with fewer than 5 anchors also uses those around it
    (dilation by 2 % of the diagonal per step, at most 10 steps), or else the 5 nearest. Fallbacks,
    in order: affine (s, t); scale; Global. A model is replaced by the next one if the anchors do
    not determine it, if s ≤ 0, or if it predicts a value of the region outside [½ min y, 2 max y]
    over all anchors.
    """

    labels: Any = None
    """An integer image of the map's size, equal within a region (semantic or instance masks);
    None makes superpixels of colour and log D_MDE, for which scikit-image is needed."""
    superpixels: int = 100
    """Approximate number of superpixels."""
    compactness: float = 0.1
    """Compactness of superpixels: higher values give squarer ones, lower values follow colour and
    depth more closely."""
    max_pixels: int = 1_000_000
    """Superpixels of larger images are found on every second, third … row and column."""
    min_share: float = 1e-3
    """Regions below this share of the image are merged with the neighbour with the longest
    border."""
    strict: bool = False
    """Use neither the ridge nor the fallbacks, to show how unstable the full model is with few
    anchors."""
    space: Space = "depth"
    """Space of the fit."""

    def __post_init__(self) -> None:
        whole = isinstance(self.superpixels, int) and self.superpixels >= 1
        require(whole, "superpixels", "a whole number, at least 1", self.superpixels)
        whole = isinstance(self.max_pixels, int) and self.max_pixels >= 1
        require(whole, "max_pixels", "a whole number, at least 1", self.max_pixels)
        positive = 0 < self.compactness < math.inf
        require(positive, "compactness", "finite and above zero", self.compactness)
        require(0 <= self.min_share <= 1, "min_share", "from 0 to 1", self.min_share)
        require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        return self.fit(mde_output, self.regions(mde_output), anchors)

    def solver(self, mde_output: MDEOutput) -> Solver:
        """The method for one image; its regions are made once."""
        return partial(self.fit, mde_output, self.regions(mde_output))

    def regions(self, mde_output: MDEOutput) -> Int64[np.ndarray, "h w"]:
        """The image's regions, small ones merged."""
        return merge_small(components(self._labels(mde_output)), self.min_share)

    def fit(
        self, mde_output: MDEOutput, regions: Int64[np.ndarray, "h w"], anchors: Anchors
    ) -> Recovery[Tensor]:
        """The fit to anchors for existing regions."""
        samples = Samples.at(mde_output, anchors, self.space)
        mde_map = mde_output.in_space(self.space)
        x = mde_map.cpu().numpy().reshape(-1)
        v, u = (_scaled(np.arange(n), n) for n in mde_output.shape)

        def design(pixel: np.ndarray) -> Float64[np.ndarray, "p 4"]:
            """x, u, v, 1 at flat pixels."""
            row, column = np.divmod(pixel, len(u))
            return np.stack([x[pixel], u[column], v[row], np.ones(len(pixel))], axis=1)

        at_anchors = design(samples.rows * len(u) + samples.columns)
        valid = mde_output.valid.cpu().numpy()
        supports = _Supports(regions, samples)
        global_fit = fit_affine(samples)
        limits = (0.5 * samples.y.min(), 2 * samples.y.max())
        reasons: Counter[str] = Counter()
        uncertainty = _Uncertainty(samples, at_anchors, supports.home)
        prediction = np.empty(mde_output.shape)
        members = members_of(regions)
        for region, inside in enumerate(members):
            support, source = supports.of(region)
            shown = design(inside)
            known_design = shown[valid.reshape(-1)[inside]]
            plane, model = self._plane(samples[support], at_anchors[support], known_design, limits)
            if plane is None:
                plane, support = _flat(global_fit), np.arange(len(samples))
            prediction.reshape(-1)[inside] = shown @ plane
            pixels = known_design if len(known_design) else at_anchors[support]
            uncertainty.add(region, support, plane, COLUMNS[model], pixels)
            reasons.update(code for code in (source, model) if code in FALLBACKS)
        fallbacks = [
            Fallback(code, f"{FALLBACKS[code]}: {n} of {len(members)} regions")
            for code, n in reasons.items()
        ]
        if global_fit.fallback and reasons["global"]:
            code = f"global_{global_fit.fallback.code}"
            fallbacks.append(Fallback(code, f"Global: {global_fit.fallback}"))
        return Recovery.from_space(
            mde_output,
            anchors,
            torch.from_numpy(prediction).to(mde_map.device),
            self.space,
            std_log=torch.from_numpy(uncertainty.std_log()[regions]).to(mde_map.device),
            fallbacks=tuple(fallbacks),
        )

    @property
    def wants_labels(self) -> bool:
        """Whether superpixels would be made, because no labels are given."""
        return self.labels is None

    def with_labels(self, labels: np.ndarray) -> Region:
        """The same method with these labels."""
        return dataclasses.replace(self, labels=labels)

    def _plane(
        self,
        support: Samples,
        design: Float64[np.ndarray, "n 4"],
        known_design: Float64[np.ndarray, "p 4"],
        limits: tuple[float, float],
    ) -> tuple[Float64[np.ndarray, " 4"] | None, Model]:
        """The region's (s, β, γ, t) and its model; None leaves the region to Global."""

        def holds(plane: np.ndarray) -> bool:
            if self.strict:
                return True
            predicted = known_design @ plane
            low, high = limits
            return bool(plane[0] > 0 and np.all((predicted >= low) & (predicted <= high)))

        full = None
        if len(support) >= MIN_ANCHORS and relative_range(support.x) >= MIN_RELATIVE_RANGE:
            full = fit_plane(support, design, 0.0 if self.strict else TILT_RIDGE)
        if full is not None and holds(full):
            return full, "plane"
        affine = fit_affine(support)
        if not affine.fallback and holds(_flat(affine)):
            return _flat(affine), "affine"
        scale = fit_scale(support, "")
        if scale.scale > 0 and holds(_flat(scale)):
            return _flat(scale), "scale"
        return None, "global"

    def _labels(self, mde_output: MDEOutput) -> Int64[np.ndarray, "h w"]:
        if self.labels is None:
            return superpixel_labels(
                mde_output, self.superpixels, self.compactness, self.max_pixels
            )
        labels = self.labels
        labels = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
        if labels.shape != mde_output.shape or labels.dtype.kind not in "iub":
            height, width = mde_output.shape
            raise InputError(
                f"labels must be whole numbers of the map's shape ({height}, {width}), found "
                f"{labels.dtype} of shape {labels.shape}"
            )
        return labels.astype(np.int64)


def fit_plane(
    samples: Samples, design: Float64[np.ndarray, "n 4"], tilt_ridge: float
) -> Float64[np.ndarray, " 4"] | None:
    """(s, β, γ, t) by least squares with a ridge on (β, γ); None where it is not determined."""
    # In units of the largest values, the rank test does not depend on the map's scale.
    units = np.array([np.abs(samples.x).max(), 1.0, 1.0, 1.0])
    y_unit = samples.y.max()
    root = np.sqrt(samples.weight)
    tilt = math.sqrt(tilt_ridge) * np.eye(4)[1:3]
    rows = np.concatenate([root[:, None] * design / units, tilt])
    target = np.concatenate([root * samples.y / y_unit, np.zeros(2)])
    plane, _, rank, _ = np.linalg.lstsq(rows, target, rcond=None)
    return plane * y_unit / units if rank == 4 else None


class _Uncertainty:
    """std_log of every region: one v for the image, and the mean propagated variance over the
    region."""

    def __init__(
        self,
        samples: Samples,
        design: Float64[np.ndarray, "n 4"],
        home: Int64[np.ndarray, " n"],
    ) -> None:
        self.samples, self.design, self.home = samples, design, home
        # Log residual, leverage and propagated variance of each anchor in the fit of its region.
        self.diagnostics = np.full((3, len(samples)), np.nan)
        self.fits: list[tuple[LinearSmoother, np.ndarray, np.ndarray]] = []

    def add(
        self,
        region: int,
        support: Int64[np.ndarray, " m"],
        plane: Float64[np.ndarray, " 4"],
        columns: tuple[int, ...],
        pixels: Float64[np.ndarray, "p 4"],
    ) -> None:
        """Record the fit of a region."""
        samples, rows = self.samples[support], self.design[support]
        smoother = LinearSmoother.of(rows[:, list(columns)], samples.weight)
        residuals = log_residuals(samples.y, rows @ plane)
        propagated = smoother.variance(smoother.design, samples.y, samples.y)
        own = self.home[support] == region
        diagnostics = np.stack([residuals, smoother.leverage, propagated])
        self.diagnostics[:, support[own]] = diagnostics[:, own]
        with np.errstate(all="ignore"):  # what is predicted to be zero is unsure without limit
            relative = pixels[:, list(columns)] / (pixels @ plane)[:, None]
            self.fits.append((smoother, support, relative.T @ relative / len(pixels)))

    def std_log(self) -> Float64[np.ndarray, " regions"]:
        """One value per region, in the order of `add`."""
        finite = np.isfinite(self.diagnostics).all(axis=0)
        residuals, leverage, propagated = self.diagnostics[:, finite]
        variance = fit_variance(residuals, leverage, propagated, self.samples.tau[finite])
        noise = self.samples.y * np.sqrt(variance + self.samples.tau**2)
        propagated_by_region = []
        for smoother, support, moment in self.fits:
            moved = smoother.gain * noise[support]
            with np.errstate(all="ignore"):
                # Rounding may leave less than nothing in an ill-conditioned fit.
                propagated_by_region.append(max(float((moved @ moved.T * moment).sum()), 0.0))
        return total_std(variance, np.array(propagated_by_region))


class _Supports:
    """The anchors that a region is fitted to."""

    def __init__(self, regions: Int64[np.ndarray, "h w"], samples: Samples) -> None:
        self.home = regions[samples.rows, samples.columns]
        self.anchors = samples.pixels
        self.step = DILATION_STEP * math.hypot(*regions.shape)
        border = np.argwhere(on_border(regions))
        owner = regions[border[:, 0], border[:, 1]]
        order = np.argsort(owner, kind="stable")
        self.border, self.owner = border[order], owner[order]

    def of(self, region: int) -> tuple[Int64[np.ndarray, " n"], str]:
        """Indices of its samples, and where they come from: "inside", "dilated" or "nearest"."""
        inside = np.flatnonzero(self.home == region)
        if len(inside) >= MIN_ANCHORS or len(self.home) <= len(inside):
            return inside, "inside"
        # Dilating a region by a disk of radius r takes in the anchors within r of its border.
        start, end = np.searchsorted(self.owner, (region, region + 1))
        distance, _ = cKDTree(self.border[start:end]).query(self.anchors)
        distance[inside] = 0
        wanted = min(MIN_ANCHORS, len(distance)) - 1
        steps = math.ceil(np.partition(distance, wanted)[wanted] / self.step)
        if len(distance) >= MIN_ANCHORS and steps <= DILATION_STEPS:
            return np.flatnonzero(distance <= steps * self.step), "dilated"
        nearest = np.argsort(distance, kind="stable")[: wanted + 1]
        return np.sort(nearest), "nearest"


def _flat(affine: Affine) -> Float64[np.ndarray, " 4"]:
    return np.array([affine.scale, 0.0, 0.0, affine.shift])


def _scaled(pixel: np.ndarray, size: int) -> Float64[np.ndarray, " n"]:
    """Pixel positions 0 … size − 1 mapped to −1 … 1."""
    return 2.0 * pixel / max(size - 1, 1) - 1
