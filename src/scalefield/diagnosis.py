"""What the bias of an MDE looks like: an exact analysis of variance of y = log D − log D_MDE.

At the known pixels of an image, y is what has to be added to the MDE's log-depth. It is explained
step by step, in the order of `PARTS`, by one number, by functions of the MDE's own log-depth, by
smooth functions of the position, and by grids as coarse as anchors are; each step is the
least-squares projection of what the steps before it left. By Pythagoras the mean squares of the
parts add up to that of y, and their shares to one. All images count the same.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from scipy.linalg import qr
from scipy.ndimage import maximum_filter, minimum_filter

from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.files import write_atomic
from scalefield.mde import MDE, MDEOutput
from scalefield.metrics import Truth
from scalefield.naming import open_mde
from scalefield.provenance import provenance
from scalefield.sampling import REGIMES, grid_shape

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
"""In the order in which they are taken out; `rest` is what nothing explains."""
DEPTH_PARTS = ("power", "shift", "curve")
REGION_PARTS = tuple(f"region_{regime}" for regime in REGIMES)

SAMPLE_PIXELS = 65536
"""Images with more known pixels are seen on a lattice, to be cheap; errors are smooth."""
MIN_PIXELS = 1000
"""Fewer than this would be explained by chance: 515 cells alone have a mean each."""
KNOTS = np.arange(-2, 2.01, 0.25)
"""Of the curves, in log-depth around the image's mean; curves are held beyond."""
KNOT_SHARE = 2e-3
"""Share of an image's pixels that must lie around a knot for its curve to be known there."""
WAVES = ((0, 1), (1, 0), (0, 2), (1, 1), (2, 0))
"""Half waves down and across the image of the functions of the position: tilts, bows, a twist."""
INDEPENDENT = 1e-6
"""Columns whose independent part is smaller than this fraction of them add nothing."""

DEPTH_EDGES_M = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
RELIEF_EDGES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Bins of the relief around a pixel: how far log D_MDE ranges within `RELIEF_RADIUS`."""
RELIEF_RADIUS = 0.005
"""In image diagonals."""
PLACES = (12, 16)
"""Cells of the maps over the image."""


# ---- one image -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pixels:
    """The known pixels of an image, or an even sample of them."""

    y: Float64[np.ndarray, " n"]
    log_depth: Float64[np.ndarray, " n"]
    """Of the MDE, without its mean: its unit says nothing."""
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
    """How far log-depth ranges around each pixel, over known pixels alone: large at edges."""
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
    """Of the functions themselves, over the image."""

    @classmethod
    def of(
        cls,
        design: Float64[np.ndarray, "n k"],
        basis: Float64[np.ndarray, "n q"],
        y: Float64[np.ndarray, " n"],
    ) -> Shared:
        """For one image, after the basis is taken out, a mean over pixels."""
        added = design - basis @ (basis.T @ design)
        return cls(added.T @ added / len(y), added.T @ y / len(y), design.mean(axis=0))

    @classmethod
    def pooled(cls, each: Sequence[Shared]) -> Shared:
        """For all images together, a mean over images."""
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
        """Of Xc: what the function explains."""
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
    """Of y over log D_MDE: true depth goes like the MDE's to the power of 1 + slope."""
    squares: dict[str, float]
    """By part; without the scale, whose square depends on the other images."""
    depth: Shared
    position: Shared
    curve: Float64[np.ndarray, " knots"]
    """The function of depth at `KNOTS`; NaN where the image has too few pixels."""
    where: dict[str, Float64[np.ndarray, "bins 4"]]
    """By depth, place and relief: shares of pixels, sums of the MDE's error (log D_MDE − log D,
    without the image's scale) and of its square, and of the rest's square, over all pixels."""


def decompose(pixels: Pixels) -> dict[str, Float64[np.ndarray, " n"]]:
    """The parts of y at each pixel, which add up to y; scale is the image's own mean."""
    return _decompose(pixels)[0]


def _decompose(
    pixels: Pixels,
) -> tuple[dict[str, Float64[np.ndarray, " n"]], Shared, Shared]:
    """The parts, and the normal equations of what depth and position do in all images."""
    y, n = pixels.y, len(pixels.y)
    constant = np.full((n, 1), n**-0.5)
    basis, parts = constant, {"scale": np.full(n, y.mean())}
    functions = depth_functions(pixels.log_depth)
    depth = Shared.of(np.concatenate(functions, axis=1), constant, y)
    height, width = pixels.shape
    position_design = position_functions(
        (pixels.rows + 0.5) / height, (pixels.columns + 0.5) / width
    )
    designs = {**dict(zip(DEPTH_PARTS, functions, strict=True)), "position": position_design}
    for name, design in designs.items():
        if name == "position":
            position = Shared.of(design, basis, y)
        added = independent(design, basis)
        parts[name] = added @ (added.T @ y)
        basis = np.concatenate([basis, added], axis=1)
    left = y - sum(parts.values())
    for name, cells in zip(REGION_PARTS, REGION_CELLS.values(), strict=True):
        cell = pixels.cells(grid_shape(cells, pixels.shape))
        means = np.bincount(cell, left) / np.maximum(np.bincount(cell), 1)
        parts[name] = means[cell]
        left = left - parts[name]
    return {**parts, "rest": left}, depth, position


def diagnose(frame: Frame, mde_output: MDEOutput) -> ImageDiagnosis:
    """What the MDE's bias looks like on one frame."""
    known = frame.mask & mde_output.valid.cpu().numpy()
    pixels = Pixels.of(frame.depth_m, mde_output.mde_depth.cpu().numpy(), known)
    parts, depth, position = _decompose(pixels)
    error, n = parts["scale"] - pixels.y, len(pixels.y)
    bins = {
        "depth": (np.digitize(pixels.true_m, DEPTH_EDGES_M), len(DEPTH_EDGES_M) + 1),
        "relief": (np.digitize(pixels.relief, RELIEF_EDGES), len(RELIEF_EDGES) + 1),
        "place": (pixels.cells(PLACES), PLACES[0] * PLACES[1]),
    }
    sums = (np.ones(n), error, error**2, parts["rest"] ** 2)
    support = np.abs(pixels.log_depth[:, None] - KNOTS) < KNOTS[1] - KNOTS[0]
    at_knots = np.concatenate(depth_functions(KNOTS), axis=1) - depth.mean
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
        curve=np.where(support.mean(axis=0) >= KNOT_SHARE, at_knots @ depth.coefficients, np.nan),
        where={
            name: np.stack([np.bincount(b, s, minlength=size) / n for s in sums], axis=1)
            for name, (b, size) in bins.items()
        },
    )


@dataclass(frozen=True, eq=False)
class Diagnoser:
    """All that a process needs to diagnose frames; the MDE is loaded once."""

    dataset: Dataset
    source: MDE | str
    """The estimator, or what `open_mde` is to open."""
    device: str = "cpu"
    cache: Path | None = None

    @cached_property
    def mde(self) -> MDE:
        """The estimator."""
        return open_mde(self.source, self.device, self.cache)

    def __call__(self, name: str) -> ImageDiagnosis | str:
        """The frame's analysis, or why it has none."""
        try:
            frame = self.dataset.load(name)
            return diagnose(frame, self.mde(frame.image))
        except InputError as e:
            return str(e)


# ---- all images ------------------------------------------------------------------------------


def summarise(images: Sequence[ImageDiagnosis]) -> dict[str, Any]:
    """The pooled analysis as plain values, ready for JSON.

    The unit, which is the mean scale of all images, is no error of an MDE that claims none; it is
    told apart and no part of the shares.
    """
    unit = float(np.mean([image.scale for image in images]))
    squares = [_with_scale(image, unit) for image in images]
    pooled = {part: float(np.mean([s[part] for s in squares])) for part in PARTS}
    total = sum(pooled.values())
    if not total > 0:
        raise InputError("the MDE has no error at all on these frames: nothing to diagnose")
    depth, position = (
        Shared.pooled([getattr(i, what) for i in images]) for what in ("depth", "position")
    )
    return {
        "unit_log": unit,
        "total_rms_log": total**0.5,
        "parts": _parts(pooled),
        "of_scale": _of_scale(images, unit),
        "of_depth": _of_common(depth, sum(pooled[p] for p in DEPTH_PARTS)),
        "of_position": _of_common(position, pooled["position"]),
        "slope": _spread([image.slope for image in images]),
        "curve": _curve(images, depth),
        "map": _common_map(position),
        "groups": _groups(images, squares),
        "depth": _bins(images, "depth", DEPTH_EDGES_M),
        "relief": _bins(images, "relief", RELIEF_EDGES),
        "places": _places(images),
        "images": [_row(i, s) for i, s in zip(images, squares, strict=True)],
    }


def _with_scale(image: ImageDiagnosis, unit: float) -> dict[str, float]:
    return {"scale": (image.scale - unit) ** 2, **image.squares}


def _parts(pooled: dict[str, float]) -> list[dict[str, Any]]:
    """Each part with its share and what is left after it and all before it."""
    total, left, rows = sum(pooled.values()), sum(pooled.values()), []
    scaled = total - pooled["scale"]
    for part, square in pooled.items():
        left = max(left - square, 0.0)
        rows.append(
            {
                "part": part,
                "title": PARTS[part],
                "share": square / total,
                "share_without_scale": square / scaled if part != "scale" and scaled > 0 else 0.0,
                "rms_log": square**0.5,
                "left_rms_log": 0.0 if part == "rest" else left**0.5,
            }
        )
    return rows


def _of_scale(images: Sequence[ImageDiagnosis], unit: float) -> dict[str, Any]:
    """Scales differ between places, between scenes of a place, and between frames of a scene."""
    by_group: dict[str, list[float]] = defaultdict(list)
    by_scene: dict[tuple[str, str], list[float]] = defaultdict(list)
    for image in images:
        by_group[image.group].append(image.scale)
        by_scene[image.group, image.scene].append(image.scale)
    n = len(images)
    places = sum(len(s) * (np.mean(s) - unit) ** 2 for s in by_group.values()) / n
    scenes = (
        sum(
            len(s) * (np.mean(s) - np.mean(by_group[group])) ** 2
            for (group, _), s in by_scene.items()
        )
        / n
    )
    frames = sum(len(s) * np.var(s) for s in by_scene.values()) / n
    total = float(places + scenes + frames)
    shares = {"places": places, "scenes": scenes, "frames": frames}
    return {
        "std_log": total**0.5,
        "std_log_within_scenes": float(frames) ** 0.5,
        "images": n,
        "scenes": len(by_scene),
        "shares": {name: float(s / total) if total > 0 else 0.0 for name, s in shares.items()},
    }


def _of_common(shared: Shared, total: float) -> dict[str, float]:
    """How much of a part is the same function in every image, and the rest each image's own."""
    common = min(max(shared.mean_square, 0.0), total)
    share = common / total if total > 0 else 0.0
    return {"common": share, "own": 1 - share, "common_rms_log": common**0.5}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values))}


def _curve(images: Sequence[ImageDiagnosis], depth: Shared) -> list[dict[str, Any]]:
    """The MDE's error over its log-depth: what all images share, and the spread of their own."""
    at_knots = np.concatenate(depth_functions(KNOTS), axis=1) - depth.mean
    common = -(at_knots @ depth.coefficients)
    own = -np.array([image.curve for image in images])
    rows = []
    for knot, value, each in zip(KNOTS.tolist(), common.tolist(), own.T, strict=True):
        known = each[np.isfinite(each)]
        if len(known) <= len(images) // 20:  # these few images would speak for all
            continue
        low, median, high = np.quantile(known, [0.1, 0.5, 0.9]).tolist()
        rows.append(
            {
                "log_depth": knot,
                "images": len(known),
                "common": value,
                "p10": low,
                "median": median,
                "p90": high,
            }
        )
    return rows


def _common_map(position: Shared) -> list[list[float]]:
    """The MDE's error over the image, the same in all images, at the centres of `PLACES`."""
    v, u = ((np.arange(n) + 0.5) / n for n in PLACES)
    grid = np.meshgrid(v, u, indexing="ij")
    design = position_functions(grid[0].ravel(), grid[1].ravel())
    return (-(design @ position.coefficients)).reshape(PLACES).tolist()


def _groups(
    images: Sequence[ImageDiagnosis], squares: Sequence[dict[str, float]]
) -> list[dict[str, Any]]:
    rows = []
    for group in dict.fromkeys(image.group for image in images):
        own = [s for image, s in zip(images, squares, strict=True) if image.group == group]
        means = {part: float(np.mean([s[part] for s in own])) for part in PARTS}
        total = sum(means.values())
        shares = {part: square / total if total > 0 else 0.0 for part, square in means.items()}
        rows.append({"group": group, "images": len(own), "rms_log": total**0.5, "shares": shares})
    return rows


def _bins(
    images: Sequence[ImageDiagnosis], what: str, edges: Sequence[float]
) -> list[dict[str, Any]]:
    """Error in each bin, each image counting the same."""
    pixels, error, square, rest = np.mean([image.where[what] for image in images], axis=0).T
    ends = [None, *edges, None]
    return [
        {
            "from": ends[i],
            "to": ends[i + 1],
            "pixels": float(pixels[i]),
            "bias_log": float(error[i] / pixels[i]),
            "rms_log": float((square[i] / pixels[i]) ** 0.5),
            "rest_rms_log": float((rest[i] / pixels[i]) ** 0.5),
            "share": float(square[i] / square.sum()) if square.sum() > 0 else 0.0,
        }
        for i in range(len(pixels))
        if pixels[i] > 0
    ]


def _places(images: Sequence[ImageDiagnosis]) -> dict[str, Any]:
    """Error over the image, each image counting the same; None where nothing was ever known."""
    pixels, error, square, _ = np.mean([image.where["place"] for image in images], axis=0).T

    def cells(values: np.ndarray) -> list[list[float | None]]:
        shown = [float(x) if p > 0 else None for x, p in zip(values, pixels, strict=True)]
        return [shown[i : i + PLACES[1]] for i in range(0, len(shown), PLACES[1])]

    known = np.maximum(pixels, np.finfo(float).tiny)
    return {"bias_log": cells(error / known), "rms_log": cells(np.sqrt(square / known))}


def _row(image: ImageDiagnosis, squares: dict[str, float]) -> dict[str, Any]:
    """An image's line in images.csv and diagnosis.json."""
    without_scale = sum(square for part, square in squares.items() if part != "scale")
    return {
        "name": image.name,
        "group": image.group,
        "pixels": image.pixels,
        "scale_log": image.scale,
        "slope": image.slope,
        "rms_log": sum(squares.values()) ** 0.5,
        "rms_log_without_scale": without_scale**0.5,
        **squares,
    }


def worst(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The images from the worst to the best, once their scale is right."""
    return sorted(summary["images"], key=lambda row: -row["rms_log_without_scale"])


def collect(
    results: Mapping[str, ImageDiagnosis | str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """What diagnosis.json holds: where the numbers come from, and the pooled analysis."""
    images = [found for found in results.values() if isinstance(found, ImageDiagnosis)]
    missing = [{"name": n, "error": e} for n, e in results.items() if isinstance(e, str)]
    if not images:
        first = missing[0]["error"] if missing else "there is no frame"
        raise InputError(f"no frame could be diagnosed; the first: {first}")
    seen = "".join(f"{image.name} {image.sha256}\n" for image in images)
    return {
        "provenance": provenance(),
        "config": dict(config),
        "data": {
            "frames": len(results),
            "diagnosed": len(images),
            "missing": missing,
            "sha256": sha256(seen.encode()).hexdigest(),
            "mde": sorted({image.model for image in images}),
        },
        **_rounded(summarise(images)),
    }


def _rounded(value: Any) -> Any:
    """Six significant digits: more than any table shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def write_images(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write images.csv: one line an image, mean squares of every part."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows
    )
    write_atomic(path, text.getvalue().encode())
