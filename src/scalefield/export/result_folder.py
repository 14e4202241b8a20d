"""The output folder of `scalefield recover`, its summary, and the conveniences of `Recovery`."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from scalefield.errors import InputError, counted
from scalefield.export import write_formats
from scalefield.export.preview import draw_preview, format_std_log
from scalefield.export.view import View, given_anchors
from scalefield.geometry.camera import Camera, find_camera
from scalefield.io import (
    image_bytes,
    write_depth_png,
    write_folder,
    write_image,
    write_json,
    write_npz,
)
from scalefield.recovery import MIN_SUPPORT, Recovery
from scalefield.runtime.provenance import provenance

OUTPUTS = ("depth.png", "depth.npz", "preview.png", "recovery.json")
LEAST_UNSUPPORTED = 0.05
"""Share of unsupported pixels from which the summary mentions them."""
MOST_LISTED = 100
"""Anchors listed in recovery.json; depth.npz has the numbers of all."""


def write_outputs(
    folder: Path,
    recovery: Recovery[np.ndarray],
    *,
    inputs: Mapping[str, Path | None],
    png_units: float | None = None,
    formats: Sequence[str] = (),
    camera: Camera | None = None,
    max_points: int | None = None,
) -> int:
    """Write all `OUTPUTS` and the further `formats` (see `export.FORMATS`), or nothing.

    `png_units` are the units per metre of depth.png, by default those of `depth_png_units`. Returns
    the number of pixels that depth.png cannot hold.
    """
    report = recovery.report
    png_units = png_units or depth_png_units(recovery.depth_m)
    with write_folder(folder) as staging:
        overflow = write_depth_png(staging / "depth.png", recovery.depth_m, png_units)
        of_anchors: dict[str, np.ndarray] = {
            "residuals_log": np.array(report.residuals_log, np.float32),
            "leave_one_out_log": np.array(report.leave_one_out_log, np.float32),
            "rejected_anchors": np.array([r.anchor for r in report.rejected], np.int64),
        }
        filled = {name: values for name, values in of_anchors.items() if len(values)}
        write_npz(staging / "depth.npz", **recovery.maps(), **filled)
        write_image(staging / "preview.png", preview(recovery))
        record = {
            **{name: None if path is None else str(path) for name, path in inputs.items()},
            "png_units_per_metre": png_units,
            "png_overflow_pixels": overflow,
            "leave_one_out_error": median_error(report.leave_one_out_log),
            "held_out_error": median_error(report.errors_log),
            "report": report.as_short_dict(MOST_LISTED),
            "provenance": provenance(),
        }
        write_json(staging / "recovery.json", record)
        if formats:
            write_formats(staging, formats, View.of(recovery, camera, max_points))
    return overflow


def depth_png_units(depth_m: np.ndarray) -> float:
    """Units per metre of a 16-bit PNG that holds every pixel: 1000, 256 (KITTI's) or fewer."""
    farthest_m = float(np.nanmax(depth_m, initial=0.0))
    fine = (1000.0, 256.0, 100.0, 10.0, 1.0)
    return next((u for u in fine if farthest_m * u <= 65535), 65535 / (farthest_m * (1 + 1e-6)))


def median_error(errors_log: Sequence[float] | np.ndarray) -> float | None:
    """The median of |errors| of log-depth as a relative error; None without any."""
    return float(np.expm1(np.median(np.abs(errors_log)))) if len(errors_log) else None


def preview(recovery: Recovery) -> Image.Image:
    """`Recovery.preview`: the picture of `draw_preview` with the summary."""
    maps = recovery.numpy()
    notes = summary(maps).splitlines()
    return draw_preview(maps, given_anchors(maps), maps.image, notes)


def html(recovery: Recovery) -> str:
    """`Recovery._repr_html_`: the preview as an inline JPEG."""
    data = base64.b64encode(image_bytes(preview(recovery), "JPEG", quality=85)).decode()
    style = "max-width:100%;height:auto"
    text = escape(repr(recovery))
    return f'<img alt="{text}" style="{style}" src="data:image/jpeg;base64,{data}">'


def choose_camera(
    recovery: Recovery, camera: Camera | None, fov_deg: float | None
) -> Camera | None:
    """The camera, or the one with that field of view; None if neither is given."""
    if camera is not None and fov_deg is not None:
        raise InputError("camera and fov_deg are alternatives; give one of them")
    height, width = recovery.depth_m.shape
    return camera or find_camera(None, fov_deg, (height, width))


def summary(recovery: Recovery[np.ndarray]) -> str:
    """A summary in a few lines: what was used, how well it fits, warnings."""
    report, depth_m = recovery.report, recovery.depth_m[np.isfinite(recovery.depth_m)]
    anchors = given_anchors(recovery)
    source = "your own map" if report.model == "array" else report.model
    low, middle, high = np.percentile(depth_m, (0, 50, 100))
    used = "no anchors"
    if report.anchors_given:
        used = f"{report.anchors_used} of {report.anchors_given} anchors used"
    if count := len(report.measurements):
        good = count - sum(m.code == "outlier" for m in report.measurements)
        used = f"{good} of {count} measurements used" + (
            f", {used}" if report.anchors_given else ""
        )
    lines = [
        f"{report.method} on {source}: {used}",
        f"  depth {low:.2f} … {high:.2f} m, median {middle:.2f} m",
    ]
    if (typical := recovery.typical_std_log()) is not None:
        lines.append(f"  standard deviation at a typical pixel: {format_std_log(typical)}")
    if recovery.support is not None:
        unsupported = float(np.mean(recovery.support < MIN_SUPPORT))
        if unsupported > LEAST_UNSUPPORTED:
            lines.append(
                f"  {100 * unsupported:.0f} % of the pixels have no anchor near them at a similar "
                "depth: extrapolated there, and not counted above (support in depth.npz)"
            )
    if report.shift is not None:
        value, low, high = report.shift.value, report.shift.low, report.shift.high
        lines.append(
            f"  shift of the {report.kind} map: {value:.3g} (90 % interval {low:.3g} … {high:.3g})"
        )
    left_out, fitted = map(median_error, (report.errors_log, report.residuals_log))
    if left_out is not None:
        error = f"{100 * left_out:.1f} %"
        folds = report.left_out_folds
        procedure = f"cross-validation with {folds} folds" if folds else "leave-one-out"
        if report.held_out_log:
            procedure = "left out with their neighbours, which are closer than most pixels"
        lines.append(f"  each anchor from the others: median error {error} ({procedure})")
    elif fitted is not None and len(report.residuals_log) > 1:
        error = f"{100 * fitted:.1f} %"
        lines.append(f"  at the anchors that were fitted: median residual {error}")
    if report.hole_pixels:
        lines.append(f"  {counted(report.hole_pixels, 'pixel')} without relative depth: NaN there")
    if report.limited_pixels:
        pixels = counted(report.limited_pixels, "pixel")
        lines.append(f"  {pixels} predicted outside the allowed range and limited to it")
    lines += [f"  {anchors.describe(r.anchor)} not used: {r.reason}" for r in report.rejected[:5]]
    if len(report.rejected) > 5:
        more = counted(len(report.rejected) - 5, "more anchor")
        lines.append(f"  {more} not used; recovery.json lists them")
    lines += [f"  fallback: {text}" for text in report.fallbacks]
    lines += [f"  warning: {text}" for text in report.warnings]
    return "\n".join(lines)
