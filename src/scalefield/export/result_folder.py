"""The output folder of `scalefield recover`, and its summary as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from scalefield.anchors import Anchors
from scalefield.export import View, write_formats
from scalefield.export.preview import write_preview
from scalefield.geometry.camera import Camera
from scalefield.io import write_depth_png, write_folder, write_json, write_npz
from scalefield.recovery import Recovery
from scalefield.runtime.provenance import provenance

OUTPUTS = ("depth.png", "depth.npz", "preview.png", "recovery.json")


def write_outputs(
    folder: Path,
    recovery: Recovery[np.ndarray],
    anchors: Anchors,
    image: UInt8[np.ndarray, "h w 3"],
    *,
    inputs: Mapping[str, Path | None],
    png_units: float,
    formats: Sequence[str] = (),
    camera: Camera | None = None,
) -> int:
    """Write all `OUTPUTS` and the further `formats` (see `export.FORMATS`), or nothing.

    Returns the number of pixels that depth.png cannot hold.
    """
    with write_folder(folder) as staging:
        overflow = write_depth_png(staging / "depth.png", recovery.depth_m, png_units)
        write_npz(staging / "depth.npz", **recovery.maps())
        write_preview(staging / "preview.png", recovery, anchors, image)
        record = {
            **{name: None if path is None else str(path) for name, path in inputs.items()},
            "png_units_per_metre": png_units,
            "png_overflow_pixels": overflow,
            "report": recovery.report.as_dict(),
            "provenance": provenance(),
        }
        write_json(staging / "recovery.json", record)
        write_formats(staging, formats, View.of(recovery, anchors, image, camera))
    return overflow


def format_std_log(std_log: float) -> str:
    """A standard deviation of log-depth as a percentage or a factor."""
    if std_log < 1:
        return f"±{100 * math.expm1(std_log):.0f} %"
    return f"a factor of {math.exp(min(std_log, 700)):.2g}"  # a percentage would be misleading


def summary(recovery: Recovery[np.ndarray]) -> str:
    """A summary in a few lines: what was used, how well it fits, warnings."""
    report, depth_m = recovery.report, recovery.depth_m[np.isfinite(recovery.depth_m)]
    source = "your own map" if report.model == "array" else report.model
    low, middle, high = np.percentile(depth_m, (0, 50, 100))
    used = "no anchors"
    if report.residuals_log:
        error = 100 * np.expm1(np.median(np.abs(report.residuals_log)))
        used = (
            f"{report.anchors_used} of {report.anchors_given} anchors used, "
            f"median residual {error:.1f} %"
        )
    lines = [
        f"{report.method} on {source}: {used}",
        f"  depth {low:.2f} … {high:.2f} m, median {middle:.2f} m",
    ]
    if recovery.std_log is not None:
        typical = format_std_log(float(np.nanmedian(recovery.std_log)))
        lines.append(f"  standard deviation at a typical pixel: {typical}")
    if report.hole_pixels:
        lines.append(f"  {report.hole_pixels} pixels have no relative depth and stay NaN")
    if report.limited_pixels:
        lines.append(
            f"  {report.limited_pixels} pixels were predicted outside the allowed range and limited"
        )
    lines += [f"  anchor #{r.anchor} not used: {r.reason}" for r in report.rejected[:5]]
    if len(report.rejected) > 5:
        lines.append(f"  … and {len(report.rejected) - 5} more, see recovery.json")
    lines += [f"  fallback: {text}" for text in report.fallbacks]
    lines += [f"  warning: {text}" for text in report.warnings]
    return "\n".join(lines)
