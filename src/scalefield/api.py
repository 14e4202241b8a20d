"""The public interface: `recover` metric depth, `suggest` pixels to measure, `Stream` a video."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image
from torch import Tensor

from scalefield.anchor_sampling import block_folds
from scalefield.anchors import Anchors, AnchorsLike, require_anchors
from scalefield.checks import Pixels, input_warnings
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError
from scalefield.field.kalman import FieldFilter
from scalefield.field.placement import Suggestion, suggest_from
from scalefield.geometry.camera import Camera
from scalefield.geometry.exif import choose_camera
from scalefield.geometry.survey import Survey, with_measurements
from scalefield.inputs import load_image, relative_depth
from scalefield.mde import MDE, Kind, MDEOutput, load_mde
from scalefield.mde.own_maps import RelativeDepth
from scalefield.measurements import MeasurementsLike
from scalefield.measurements import measurements as read_measurements
from scalefield.methods import METHODS, make_method
from scalefield.methods.field import Field
from scalefield.recovery import FunctionMethod, Method, MethodLike, Recovery, Solver, as_method
from scalefield.report import Rejection, Report

MAX_REFITS = 8
"""Fits of `leave_one_out` at most."""
MAX_REFIT_PIXELS = 1 << 22
"""Pixels of an image above which `leave_one_out` fits nothing, because it would take long."""


def recover(
    image: str | Path | Image.Image | np.ndarray | Tensor | None,
    anchors: AnchorsLike = None,
    *,
    measurements: MeasurementsLike = None,
    camera: Camera | None = None,
    fov_deg: float | None = None,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    affine: bool | None = None,
    method: str | MethodLike = METHOD_NAME,
    resize: bool = False,
    leave_one_out: bool = False,
    **options: Any,
) -> Recovery[Tensor] | Recovery[np.ndarray]:
    """Metric depth of an image from a few anchors.

    The image is a file, a PIL image, or an array or tensor of shape (h, w, 3), (3, h, w) or (h, w):
    integers of 8 or 16 bits, or floats of 0 … 1. The anchors are `Anchors`, rows of (u, v,
    depth_m), a dict or a pandas frame of named columns, or a file (see `Anchors.of`).

    `measurements` are lengths, slant distances, heights, planes and others
    (`scalefield.measurements`), as a list or a CSV file; all but depths, and slant distances of a
    known camera, need the method `field`. The camera is given by `camera` or by its horizontal
    field of view; without either by the EXIF of the file, and otherwise its focal length is one
    more unknown.

    The relative depth comes from the estimator `mde`, or from your own map `mde_depth` with its
    `kind`: "depth" grows with distance, "disparity" falls with it. The kind of an `mde` is known
    except for some model files. `affine`: whether the shift of the map is unknown as well as its
    scale, as it is for MiDaS and Depth Anything; by default that of an `mde` is known from its
    model card, and that of your own disparity map is unknown. `resize` allows a map of another size
    than the image. Further `options` go to the method. Without anchors, `field` returns the depth
    that its model expects.

    `field` and `basis` report how well each anchor is predicted by the others
    (`report.leave_one_out_log`). With `leave_one_out`, so do the other methods, by at most
    8 further fits.

    Maps are torch tensors if `image` or `mde_depth` is one, and numpy arrays otherwise.

    >>> import numpy as np, scalefield as sf
    >>> relative = np.linspace(1, 2, 12).reshape(3, 4)
    >>> r = sf.recover(None, sf.Anchors([0], [0], [5.0]), mde_depth=relative, kind="depth",
    ...                method="median")
    >>> float(r.depth_m[2, 3])
    10.0
    """
    pixels = None if image is None else load_image(image)
    device = str(image.device) if isinstance(image, Tensor) else "cpu"
    mde_output = relative_depth(
        pixels, mde, mde_depth, kind, affine=affine, resize=resize, device=device
    )
    found = choose_camera(camera, fov_deg, mde_output.shape, image)
    given, survey = with_measurements(
        require_anchors("anchors", anchors),
        read_measurements(measurements),
        mde_output.shape,
        found,
    )
    recovery = recover_from(
        mde_output,
        given,
        make_method(method, **options),
        image=pixels,
        survey=survey,
        leave_one_out=leave_one_out,
    )
    recovery = dataclasses.replace(recovery, camera=found)
    as_torch = isinstance(mde_depth, Tensor) or isinstance(image, Tensor)
    return recovery if as_torch else recovery.numpy()


def suggest(
    image: Any,
    anchors: AnchorsLike = None,
    n: int = 3,
    *,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    affine: bool | None = None,
    resize: bool = False,
    reachable: Bool[np.ndarray, "h w"] | None = None,
    among: AnchorsLike = None,
    model: str | Path = "field",
) -> list[Suggestion]:
    """The `n` pixels to measure next, best first, given the anchors that exist already.

    The selection is a greedy design: each pixel minimises Σ log(Var[ℓ] + σ₀²) over the image,
    with the pixels before it taken as measured; σ₀ is the deviation below which a pixel needs no
    measurement. (The sum of the variances itself would select the corners, where little is known
    and little is visible.) The variance depends on the positions of measurements only, not on
    their values. `reachable` marks the pixels that can be measured. With `among`, the best `n` of
    these anchors are selected instead. `mde`, `mde_depth`, `kind`, `affine` and `resize` are
    those of `recover`.
    """
    output = relative_depth(image, mde, mde_depth, kind, affine=affine, resize=resize)
    return suggest_from(output, anchors, n, reachable=reachable, among=among, model=model)


@dataclass
class Stream(FieldFilter):
    """`field` over the successive frames of one camera, from images or from an MDE's outputs.

    A Kalman filter carries the global scale and the weights of the linear modes and of the mean
    function from frame to frame (`field.kalman.FieldFilter`); a frame may have no anchors. Maps are
    torch tensors for a tensor or an `MDEOutput`, and numpy arrays for any other image.

        stream = sf.Stream()
        for image, anchors in frames:
            recovery = stream(image, anchors)
    """

    mde: str | MDE = MDE_NAME
    """The estimator of frames that are images; its unit must be steady, as that of `lite` is."""

    def __call__(self, frame: Any, anchors: AnchorsLike = None) -> Recovery:
        """The recovery of the next frame: an image as in `recover`, or an `MDEOutput`."""
        given = require_anchors("anchors", anchors)
        image = None if isinstance(frame, MDEOutput) else load_image(frame)
        device = str(frame.device) if isinstance(frame, Tensor) else "cpu"
        if image is not None and isinstance(self.mde, str):
            self.mde = load_mde(self.mde, device=device)  # once for all frames
        mde_output = frame if image is None else RelativeDepth(self.mde)(image)
        recovery = super().__call__(mde_output, given)
        pixels = given.pixels(mde_output.shape)
        report = dataclasses.replace(
            recovery.report,
            method="stream",
            anchors_given=len(given),
            warnings=(
                *input_warnings(mde_output, given, pixels, recovery.report.shift),
                *recovery.report.warnings,
            ),
        )
        result = dataclasses.replace(recovery, report=report, anchors=given, image=image)
        return result if isinstance(frame, (Tensor, MDEOutput)) else result.numpy()


def recover_from(
    mde_output: MDEOutput,
    anchors: Anchors,
    method: MethodLike,
    *,
    image: UInt8[np.ndarray, "h w 3"] | None = None,
    solver: Solver | None = None,
    survey: Survey | None = None,
    leave_one_out: bool = False,
) -> Recovery[Tensor]:
    """`recover` for an existing MDEOutput: check the anchors, run the method, complete the report.

    Anchors on pixels without a relative depth are rejected before the method runs. The recovery
    keeps the photograph `image`. For several sets of anchors on one image pass
    `solver=method.solver(mde_output)`, so that what depends on the image only is computed once.
    `leave_one_out` is that of `recover`.
    """
    method = as_method(method)
    if survey is not None:
        solver = _survey_solver(method, mde_output, survey)
    elif leave_one_out and solver is None:
        solver = method.solver(mde_output)
    count = len(anchors)
    if count < method.least_anchors:
        raise InputError("no anchors: at least one pixel of known metric depth is needed")
    rows, columns = anchors.pixels(mde_output.shape)
    usable = mde_output.valid[rows, columns].cpu().numpy()
    if count and not usable.any():
        raise InputError(
            f"none of the {count} anchors lies on a pixel with a relative depth "
            "(the map there is not finite, or not above zero)"
        )
    kept = anchors if usable.all() else anchors[usable]
    pixels = rows[usable], columns[usable]
    recovery = method(mde_output, kept) if solver is None else solver(kept)
    if not isinstance(recovery, Recovery):
        found = type(recovery).__name__
        raise InputError(f"method {_method_name(method)} must return a Recovery, found {found}")
    report = recovery.report
    few_pixels = mde_output.prediction.numel() <= MAX_REFIT_PIXELS
    if leave_one_out and few_pixels and solver is not None and not report.held_out_log:
        report = _with_leave_one_out(report, kept, pixels, solver)
    hole = "no relative depth here"
    rejected = [Rejection(int(i), "no_relative_depth", hole) for i in np.flatnonzero(~usable)]
    # A method numbers the anchors that it was given, the report those that the user gave.
    indices = np.flatnonzero(usable)
    rejected += [dataclasses.replace(r, anchor=int(indices[r.anchor])) for r in report.rejected]
    report = dataclasses.replace(
        report,
        method=_method_name(method),
        options=_plain_options(method),
        anchors_given=count,
        rejected=tuple(rejected),
        warnings=(
            *input_warnings(mde_output, kept, pixels, report.shift),
            *report.warnings,
        ),
    )
    return dataclasses.replace(recovery, report=report, anchors=anchors, image=image)


def _survey_solver(method: Method, mde_output: MDEOutput, survey: Survey) -> Solver:
    """The method given measurements of other kinds than depths, which must not lie on holes."""
    if not isinstance(method, Field):
        raise InputError(
            f"method {_method_name(method)} takes depths, and slant distances of a known camera; "
            f"{survey.measured[0]} needs field"
        )
    rows, columns = survey.pixels
    valid = mde_output.valid[rows, columns].cpu().numpy()
    for measured, span in zip(survey.measured, survey.spans, strict=True):
        if not valid[span].all():
            i = span.start + int((~valid[span]).argmax())
            raise InputError(
                f"{measured}: no relative depth at u={columns[i]} v={rows[i]} (a hole of the map)"
            )
    return method.solver(mde_output, survey)


def _with_leave_one_out(report: Report, anchors: Anchors, pixels: Pixels, solver: Solver) -> Report:
    """The report with `held_out_log` or `leave_one_out_log`, from fits to all anchors but a fold.

    The folds are those of `block_folds`. Where anchors are not bunched, they are single anchors, or
    up to `MAX_REFITS` folds whose anchors are far apart. The report stays as it is if it has
    `leave_one_out_log` then, with fewer than two anchors, and for a method that refuses so few.
    """
    used = np.setdiff1d(np.arange(len(anchors)), [r.anchor for r in report.rejected])
    if len(used) < 2:
        return report
    rows, columns = pixels
    folds, fold = min(len(used), MAX_REFITS), np.full(len(anchors), -1)
    blocks = block_folds(columns[used], rows[used], folds)
    if blocks is None and report.leave_one_out_log:
        return report
    if blocks is None:
        fold[used[np.lexsort((columns[used], rows[used]))]] = np.arange(len(used)) % folds
    else:
        fold[used] = blocks
    predicted_m = np.empty(len(anchors))
    for k in range(folds):
        out = fold == k
        if not out.any():
            continue
        try:
            depth_m = solver(anchors[~out]).depth_m
        except InputError:
            return report
        predicted_m[out] = depth_m[rows[out], columns[out]].detach().double().cpu().numpy()
    errors = tuple((np.log(predicted_m[used]) - np.log(anchors.depth_m[used])).tolist())
    if blocks is not None:
        return dataclasses.replace(report, held_out_log=errors)
    left_out_folds = folds if folds < len(used) else 0
    return dataclasses.replace(report, leave_one_out_log=errors, left_out_folds=left_out_folds)


def _method_name(method: Method) -> str:
    """The name in `METHODS`, or the name of the user's class or function."""
    for name, method_class in METHODS.items():
        if type(method) is method_class:
            return name
    owner = method.function if isinstance(method, FunctionMethod) else type(method)
    return getattr(owner, "__qualname__", type(owner).__qualname__)


def _plain_options(method: Method) -> dict[str, Any]:
    """The fields of a method by name, as `_plain` values."""
    owner = method.function if isinstance(method, FunctionMethod) else method
    return _plain(owner) if dataclasses.is_dataclass(owner) else {}


def _plain(value: Any) -> Any:
    """An option as JSON values: a dataclass becomes its fields by name, and what is no plain value
    becomes the name of its type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, (str, int, float, type(None))) else type(value).__name__
