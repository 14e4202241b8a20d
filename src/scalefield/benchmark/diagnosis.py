"""The bias of an MDE: an exact analysis of variance of y = log D − log D_MDE.

At the known pixels of an image, y is what has to be added to the MDE's log-depth. It is explained
step by step, in the order of `PARTS`, by one number, by functions of the MDE's own log-depth, by
smooth functions of the position, and by grids as coarse as anchors are; each step is the
least-squares projection of what the steps before it left. By Pythagoras the mean squares of the
parts add up to that of y, and their shares to one. `diagnosis_summary` pools the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from scipy.linalg import qr
from scipy.ndimage import maximum_filter, minimum_filter

from scalefield.anchor_sampling import REGIMES, anchor_grid_shape
from scalefield.benchmark.metrics import Truth
from scalefield.datasets import Frame
from scalefield.datasets.source import FrameSource
from scalefield.errors import InputError
from scalefield.mde import MDEOutput

REGION_CELLS = {regime: sum(limits) // 2 for regime, limits in REGIMES.items()}
"""Cells of each regime's grid: as many as it has anchors."""
PARTS = {
    "scale": "Scale of the image",
    "power": "Power of depth",
    "shift": "Shift",
    "curve": "Other curve of depth",
    "position": "Position in the image",
    **{f"region_{r}": f"Regions ({n} anchors)" for r, n in REGION_CELLS.items()},
    "rest": "Edges and noise",
}
"""Names and titles of the parts, in the order in which they are removed; `rest` is the
remainder."""
DEPTH_PARTS = ("power", "shift", "curve")
REGION_PARTS = tuple(f"region_{regime}" for regime in REGIMES)

SAMPLE_PIXELS = 65536
"""Images with more known pixels are subsampled on a regular grid; errors are smooth."""
MIN_PIXELS = 1000
"""Fewest pixels of an image: 515 cells alone have a mean each."""
KNOTS = np.arange(-2, 2.01, 0.25)
"""Knots of the curves, in log-depth around the image's mean; curves are constant beyond."""
KNOT_SHARE = 2e-3
"""Share of an image's pixels that must lie around a knot for its curve to be known there."""
WAVES = ((0, 1), (1, 0), (0, 2), (1, 1), (2, 0))
"""Numbers of half waves down and across the image of the position functions: tilts, bows, a
twist."""
INDEPENDENT = 1e-6
"""Columns whose independent part is smaller than this fraction of them add nothing."""

DEPTH_EDGES_M = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
RELIEF_EDGES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Bins of the relief around a pixel: how far log D_MDE ranges within `RELIEF_RADIUS`."""
RELIEF_RADIUS = 0.005
"""Radius of the relief, in image diagonals."""
PLACES = (12, 16)
"""Cells of the maps over the image."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """The known pixels of an image, or an even sample of them."""

    y: Float64[np.ndarray, " n"]
    log_depth: Float64[np.ndarray, " n"]
    """log D_MDE without its mean, which depends on the unit only."""
    true_m: Float64[np.ndarray, " n"]
    relief: Float64[np.ndarray, " n"]
    rows: Int64[np.ndarray, " n"]
    columns: Int64[np.ndarray, " n"]
    shape: tuple[int, int]

    @classmethod
    def of(
        cls,
        depth_m: Float[np.ndarray, "h w"],
        mde_depth: Float[np.ndarray, "h w"],
        known: Bool[np.ndarray, "h w"],
        *,
        every: bool = False,
    ) -> Pixels:
        """The pixels where both depths are known; all of them, if wanted."""
        count = int(np.count_nonzero(known))
        if count < MIN_PIXELS:
            raise InputError(f"{count} pixels have both depths, at least {MIN_PIXELS} are wanted")
        stride = 1 if every else int(np.ceil(np.sqrt(count / SAMPLE_PIXELS)))
        lattice = np.zeros(known.shape, bool)
        lattice[stride // 2 :: stride, stride // 2 :: stride] = True
        rows, columns = np.nonzero(known & lattice)
        log_depth = np.log(np.where(known, mde_depth, 1).astype(np.float64))
        truth = Truth.of(depth_m[rows, columns])
        chosen = log_depth[rows, columns]
        return cls(
            y=truth.log - chosen,
            log_depth=chosen - chosen.mean(),
            true_m=truth.depth_m,
            relief=relief(log_depth, known)[rows, columns],
            rows=rows.astype(np.int64),
            columns=columns.astype(np.int64),
            shape=(known.shape[0], known.shape[1]),
        )

    def cells(self, grid: tuple[int, int]) -> Int64[np.ndarray, " n"]:
        """The cell of a grid over the image that each pixel lies in."""
        row, column = (
            pixel * n // size
            for pixel, n, size in zip((self.rows, self.columns), grid, self.shape, strict=True)
        )
        return row * grid[1] + column


def relief(
    log_depth: Float64[np.ndarray, "h w"], known: Bool[np.ndarray, "h w"]
) -> Float64[np.ndarray, "h w"]:
    """The range of log-depth around each pixel, over known pixels only; it is large at edges."""
    size = 2 * max(1, round(RELIEF_RADIUS * float(np.hypot(*known.shape)))) + 1
    highest = maximum_filter(np.where(known, log_depth, -np.inf), size)
    lowest = minimum_filter(np.where(known, log_depth, np.inf), size)
    return np.where(known, highest - lowest, 0.0)


def depth_functions(log_depth: Float64[np.ndarray, " n"]) -> list[Float64[np.ndarray, "n _"]]:
    """Designs of power, shift and curve, each adding to those before it.

    A power law is linear in z = log D. A shift in disparity, 1/D' = s/D + t, or in depth,
    D' = s·D + t, is to first order linear in e^z and e^−z. Hats between `KNOTS` are any curve.
    """
    z = log_depth[:, None]
    place = (np.clip(z, KNOTS[0], KNOTS[-1]) - KNOTS[0]) / (KNOTS[1] - KNOTS[0])
    hats = np.clip(1 - np.abs(place - np.arange(len(KNOTS))), 0, None)
    return [z, np.concatenate([np.exp(z), np.exp(-z)], axis=1), hats]


def position_functions(
    v: Float64[np.ndarray, " n"], u: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, "n _"]:
    """Products of cosines over the image, v and u running from 0 to 1."""
    return np.stack([np.cos(np.pi * p * v) * np.cos(np.pi * q * u) for p, q in WAVES], axis=1)


def independent(
    design: Float64[np.ndarray, "n k"], basis: Float64[np.ndarray, "n q"]
) -> Float64[np.ndarray, "n r"]:
    """Orthonormal columns that span what the design adds to an orthonormal basis."""
    norms = np.sqrt((design**2).sum(axis=0))
    added = design[:, norms > 0] / norms[norms > 0]
    for _ in range(2):  # once leaves rounding errors as large as what is small
        added = added - basis @ (basis.T @ added)
    columns, triangle, _ = qr(added, mode="economic", pivoting=True)
    return columns[:, np.abs(np.diag(triangle)) > INDEPENDENT]


@dataclass(frozen=True, eq=False)
class Shared:
    """Normal equations of a function with the same coefficients in all images."""

    gram: Float64[np.ndarray, "k k"]
    moment: Float64[np.ndarray, " k"]
    mean: Float64[np.ndarray, " k"]
    """Mean of the functions over the image."""

    @classmethod
    def of(
        cls,
        design: Float64[np.ndarray, "n k"],
        basis: Float64[np.ndarray, "n q"],
        y: Float64[np.ndarray, " n"],
    ) -> Shared:
        """The moments of one image, without what the basis explains; means over pixels."""
        added = design - basis @ (basis.T @ design)
        return cls(added.T @ added / len(y), added.T @ y / len(y), design.mean(axis=0))

    @classmethod
    def pooled(cls, each: Sequence[Shared]) -> Shared:
        """The moments of all images together; means over images."""
        gram, moment, mean = (
            np.mean([getattr(s, name) for s in each], axis=0) for name in ("gram", "moment", "mean")
        )
        return cls(gram, moment, mean)

    @cached_property
    def coefficients(self) -> Float64[np.ndarray, " k"]:
        """argmin mean (y − Xc)², the smallest c where several do."""
        return np.linalg.pinv(self.gram, rcond=1e-9, hermitian=True) @ self.moment

    @property
    def mean_square(self) -> float:
        """Mean square of Xc, the part that the function explains."""
        return float(self.moment @ self.coefficients)


@dataclass(frozen=True, eq=False)
class ImageDiagnosis:
    """The analysis of one image, in mean squares over its pixels."""

    name: str
    group: str
    scene: str
    sha256: str
    model: str
    pixels: int
    scale: float
    """Mean of y."""
    slope: float
    """Slope of y over log D_MDE: true depth is proportional to the MDE's to the power of 1 +
    slope."""
    squares: dict[str, float]
    """Mean squares by part, without the scale, which depends on the other images."""
    depth: Shared
    position: Shared
    curve: Float64[np.ndarray, " knots"]
    """The function of depth at `KNOTS`; NaN where the image has too few pixels."""
    bins: dict[str, Float64[np.ndarray, "bins 4"]]
    """Bins of depth, place and relief: shares of pixels, sums of the MDE's error (log D_MDE − log
    D, without the image's scale) and of its square, and of the rest's square, over all pixels."""


class Decomposition(NamedTuple):
    """An image's y in parts, and its share in functions that are the same in all images."""

    parts: dict[str, Float64[np.ndarray, " n"]]
    """The parts of y at each pixel, which add up to y; scale is the image's own mean."""
    depth: Shared
    """Normal equations of the common function of depth."""
    position: Shared
    """Normal equations of the common function of position."""


def decompose(pixels: Pixels) -> Decomposition:
    """Project y on the functions of each part in turn, in the order of `PARTS`."""
    y, n = pixels.y, len(pixels.y)
    constant = np.full((n, 1), n**-0.5)
    basis, parts = constant, {"scale": np.full(n, y.mean())}
    functions = depth_functions(pixels.log_depth)
    depth = Shared.of(np.concatenate(functions, axis=1), constant, y)
    for name, design in zip(DEPTH_PARTS, functions, strict=True):
        added = independent(design, basis)
        parts[name] = added @ (added.T @ y)
        basis = np.concatenate([basis, added], axis=1)
    height, width = pixels.shape
    waves = position_functions((pixels.rows + 0.5) / height, (pixels.columns + 0.5) / width)
    position = Shared.of(waves, basis, y)
    added = independent(waves, basis)
    parts["position"] = added @ (added.T @ y)
    left = y - sum(parts.values())
    for name, cells in zip(REGION_PARTS, REGION_CELLS.values(), strict=True):
        cell = pixels.cells(anchor_grid_shape(cells, pixels.shape))
        means = np.bincount(cell, left) / np.maximum(np.bincount(cell), 1)
        parts[name] = means[cell]
        left = left - parts[name]
    return Decomposition({**parts, "rest": left}, depth, position)


def at_knots(depth: Shared) -> Float64[np.ndarray, " knots"]:
    """A function of depth, without its mean over the image, at `KNOTS`."""
    return (np.concatenate(depth_functions(KNOTS), axis=1) - depth.mean) @ depth.coefficients


def diagnose(frame: Frame, mde_output: MDEOutput) -> ImageDiagnosis:
    """The analysis of the MDE's bias on one frame."""
    known = frame.mask & mde_output.valid.cpu().numpy()
    pixels = Pixels.of(frame.depth_m, mde_output.mde_depth.cpu().numpy(), known)
    parts, depth, position = decompose(pixels)
    error, n = parts["scale"] - pixels.y, len(pixels.y)
    bin_of = {
        "depth": (np.digitize(pixels.true_m, DEPTH_EDGES_M), len(DEPTH_EDGES_M) + 1),
        "relief": (np.digitize(pixels.relief, RELIEF_EDGES), len(RELIEF_EDGES) + 1),
        "place": (pixels.cells(PLACES), PLACES[0] * PLACES[1]),
    }
    sums = (np.ones(n), error, error**2, parts["rest"] ** 2)
    support = np.abs(pixels.log_depth[:, None] - KNOTS) < KNOTS[1] - KNOTS[0]
    spread = np.square(pixels.log_depth).mean()
    return ImageDiagnosis(
        name=frame.name,
        group=frame.group,
        scene=frame.scene,
        sha256=frame.sha256(),
        model=f"{mde_output.model} {mde_output.revision}".strip(),
        pixels=n,
        scale=float(pixels.y.mean()),
        slope=float((pixels.log_depth * pixels.y).mean() / spread) if spread > 0 else 0.0,
        squares={name: float(np.square(p).mean()) for name, p in parts.items() if name != "scale"},
        depth=depth,
        position=position,
        curve=np.where(support.mean(axis=0) >= KNOT_SHARE, at_knots(depth), np.nan),
        bins={
            name: np.stack([np.bincount(b, s, minlength=size) / n for s in sums], axis=1)
            for name, (b, size) in bin_of.items()
        },
    )


def diagnose_frame(source: FrameSource, name: str) -> ImageDiagnosis | str:
    """The analysis of the frame of that name, or the reason why it has none."""
    try:
        return diagnose(*source.load(name))
    except InputError as e:
        return str(e)
