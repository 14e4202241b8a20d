"""All images of a diagnosis together: the shares of the parts, and where the error is.

All images count the same.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from scalefield.benchmark.diagnosis import (
    DEPTH_EDGES_M,
    DEPTH_PARTS,
    KNOTS,
    PARTS,
    PLACES,
    RELIEF_EDGES,
    ImageDiagnosis,
    Shared,
    at_knots,
    position_functions,
)
from scalefield.errors import InputError
from scalefield.io import write_atomic
from scalefield.runtime.provenance import provenance


def summarise(images: Sequence[ImageDiagnosis]) -> dict[str, Any]:
    """The pooled analysis as plain values for JSON.

    The mean scale of all images is the unit of the MDE and no error of a relative MDE; it is
    reported separately and not part of the shares.
    """
    unit = float(np.mean([image.scale for image in images]))
    squares = [{"scale": (image.scale - unit) ** 2, **image.squares} for image in images]
    slopes = [image.slope for image in images]
    pooled = {part: float(np.mean([s[part] for s in squares])) for part in PARTS}
    total = sum(pooled.values())
    if not total > 0:
        raise InputError("the MDE has no error at all on these frames: nothing to diagnose")
    depth, position = (
        Shared.pooled([getattr(i, name) for i in images]) for name in ("depth", "position")
    )
    return {
        "unit_log": unit,
        "total_rms_log": total**0.5,
        "parts": _parts(pooled),
        "of_scale": _of_scale(images, unit),
        "of_depth": _of_common(depth, sum(pooled[p] for p in DEPTH_PARTS)),
        "of_position": _of_common(position, pooled["position"]),
        "slope": {"mean": float(np.mean(slopes)), "std": float(np.std(slopes))},
        "curve": _curve(images, depth),
        "map": _common_map(position),
        "groups": _groups(images, squares),
        "depth": _bins(images, "depth", DEPTH_EDGES_M),
        "relief": _bins(images, "relief", RELIEF_EDGES),
        "places": _places(images),
        "images": [_row(i, s) for i, s in zip(images, squares, strict=True)],
    }


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
    scale = np.array([image.scale for image in images])
    place_of = [image.group for image in images]
    scene_of = [f"{image.group}\0{image.scene}" for image in images]
    of_place, of_scene = (_means_by(keys, scale) for keys in (place_of, scene_of))
    variances = {
        "places": float(np.square(of_place - unit).mean()),
        "scenes": float(np.square(of_scene - of_place).mean()),
        "frames": float(np.square(scale - of_scene).mean()),
    }
    total = sum(variances.values())
    return {
        "std_log": total**0.5,
        "std_log_within_scenes": variances["frames"] ** 0.5,
        "images": len(images),
        "scenes": len(set(scene_of)),
        "shares": {name: v / total if total > 0 else 0.0 for name, v in variances.items()},
    }


def _means_by(keys: Sequence[str], values: np.ndarray) -> np.ndarray:
    """For each value the mean of those with its key."""
    _, index = np.unique(keys, return_inverse=True)
    return (np.bincount(index, values) / np.bincount(index))[index]


def _of_common(shared: Shared, total: float) -> dict[str, float]:
    """The share of a part that one function explains in all images, and the remaining share."""
    common = min(max(shared.mean_square, 0.0), total)
    share = common / total if total > 0 else 0.0
    return {"common": share, "own": 1 - share, "common_rms_log": common**0.5}


def _curve(images: Sequence[ImageDiagnosis], depth: Shared) -> list[dict[str, Any]]:
    """The MDE's error over its log-depth: what all images share, and the spread of their own."""
    common = -at_knots(depth)
    own = -np.array([image.curve for image in images])
    rows = []
    for knot, value, each in zip(KNOTS.tolist(), common.tolist(), own.T, strict=True):
        finite = each[np.isfinite(each)]
        if len(finite) <= len(images) // 20:  # too few images
            continue
        low, median, high = np.quantile(finite, [0.1, 0.5, 0.9]).tolist()
        row = {"log_depth": knot, "images": len(finite), "common": value}
        rows.append(row | {"p10": low, "median": median, "p90": high})
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
    images: Sequence[ImageDiagnosis], name: str, edges: Sequence[float]
) -> list[dict[str, Any]]:
    """Error in each bin, each image counting the same."""
    pixels, error, square, rest = np.mean([image.bins[name] for image in images], axis=0).T
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
    """Error over the image, with equal weights of images; None in cells without a known pixel."""
    pixels, error, square, _ = np.mean([image.bins["place"] for image in images], axis=0).T

    def cells(values: np.ndarray) -> list[list[float | None]]:
        shown = [float(x) if p > 0 else None for x, p in zip(values, pixels, strict=True)]
        return [shown[i : i + PLACES[1]] for i in range(0, len(shown), PLACES[1])]

    share = np.maximum(pixels, np.finfo(float).tiny)
    return {"bias_log": cells(error / share), "rms_log": cells(np.sqrt(square / share))}


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
    """The contents of diagnosis.json: provenance, configuration, data and the pooled analysis."""
    images = [result for result in results.values() if isinstance(result, ImageDiagnosis)]
    missing = [{"name": n, "error": e} for n, e in results.items() if isinstance(e, str)]
    if not images:
        first = missing[0]["error"] if missing else "there is no frame"
        raise InputError(f"no frame could be diagnosed; the first: {first}")
    hashes = "".join(f"{image.name} {image.sha256}\n" for image in images)
    return {
        "provenance": provenance(),
        "config": dict(config),
        "data": {
            "frames": len(results),
            "diagnosed": len(images),
            "missing": missing,
            "sha256": sha256(hashes.encode()).hexdigest(),
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
