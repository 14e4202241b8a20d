"""Edits of the anchors: the solve at display size, and checks of each anchor against the others."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Float64, Int64
from torch import Tensor

from scalefield.alignment.uncertainty import STEP
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.defaults import METHOD_NAME
from scalefield.errors import InputError
from scalefield.field.condition import FieldPosterior
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.placement import suggest_from
from scalefield.geometry.camera import Camera
from scalefield.geometry.survey import Survey
from scalefield.mde import MDEOutput
from scalefield.measurements import Measurement, measurement
from scalefield.methods import METHODS, make_method
from scalefield.methods.basis import WeightFit
from scalefield.recovery import Method, Recovery, depth_limits, without
from scalefield.report import Report
from scalefield.web.sessions import Relative, Session
from scalefield.web.uploads import Limits

MOST_CHECKED = 100
"""Number of anchors up to which each is checked against the others."""
SUGGESTIONS = 3
PAGE_KINDS = {"distance": "length"}
"""Kinds that have another name on the page."""


@dataclass(frozen=True)
class Edit:
    """A request of the page: anchors and a method."""

    anchors: Anchors
    method: str
    size: Literal["full", "preview"] = "full"
    """With "preview" `field` is evaluated on a coarser grid than the displayed pixels, and a method
    without a solve at display size works on the displayed pixels only."""
    known: tuple[Measurement, ...] = ()
    """Lengths, heights and planes that were measured, besides the anchors."""
    fov_deg: float | None = None
    """Horizontal field of view, which these are seen with."""

    def survey(self, shape: tuple[int, int]) -> Survey | None:
        """What is known besides the anchors, in an image of this shape."""
        if not self.known:
            return None
        camera = None if self.fov_deg is None else Camera.from_fov(self.fov_deg, shape)
        return Survey.of(self.known, shape, camera)


def parse_edit(body: Any, limits: Limits) -> Edit:
    """An edit from JSON: {"anchors": [{"u", "v", "depth_m"[, "sigma_m"]}, …], "method": name,
    "size": "full" or "preview", "known": [{"kind", "points": [{"u", "v"}, …][, "value_m"]}, …],
    "fov_deg": number}."""
    if not isinstance(body, dict) or not isinstance(body.get("anchors"), list):
        raise InputError('wanted a JSON object with "anchors": [{"u", "v", "depth_m"}, …]')
    rows, method = body["anchors"], body.get("method", METHOD_NAME)
    if len(rows) > limits.anchors:
        raise InputError(f"{len(rows)} anchors, and this server takes at most {limits.anchors}")
    size = body.get("size", "full")
    if size not in ("full", "preview"):
        raise InputError(f'size is "full" or "preview", found {str(size)[:40]!r}')
    # Options could name files of this machine, so a name is all that a client may give.
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"no method {str(method)[:40]!r}; there are {', '.join(METHODS)}")
    columns = numbers(rows, ("u", "v", "depth_m"), "anchor", optional=("sigma_m",))
    known = parse_known(body.get("known", []))
    if known and method != "field":
        raise InputError(f"{known[0]} counts with the method field only, found {method!r}")
    return Edit(Anchors(**columns), method, size, known, optional_number(body, "fov_deg"))


def parse_known(rows: Any) -> tuple[Measurement, ...]:
    """Measurements besides anchors, from JSON."""
    if not isinstance(rows, list) or len(rows) > MOST_CHECKED:
        raise InputError(f'"known" is a list of at most {MOST_CHECKED} measurements')
    found = []
    for i, row in enumerate(rows):
        given = {**row} if isinstance(row, dict) else {}
        kind, points = given.pop("kind", None), given.pop("points", None)
        if not isinstance(kind, str) or not isinstance(points, list) or len(points) > MOST_CHECKED:
            raise InputError(f'known #{i}: an object with "kind" and "points" is wanted')
        columns = numbers(points, ("u", "v"), "point")
        pixels = list(zip(columns["u"], columns["v"], strict=True))
        try:
            each = measurement(PAGE_KINDS.get(kind, kind), pixels, **given)
        except InputError as e:
            raise InputError(f"known #{i}: {e}") from None
        if each.is_question:
            raise InputError(f"known #{i}: value_m is wanted, the length in metres")
        found.append(each)
    return tuple(found)


def optional_number(body: dict[str, Any], name: str) -> float | None:
    """A number of the body, or None where it is not given."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise InputError(f"{name} must be a number")
    # Integers in JSON have no limit, and those of a float do.
    return None if value is None else float(min(max(value, -1e9), 1e9))


def numbers(
    rows: list[Any], names: tuple[str, ...], what: str, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The columns of a list of JSON objects that have a number under each name, and no other.

    An optional number is NaN where it is missing; a column of none is left out.
    """
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"{what} #{i}: an object with {', '.join(names)} is wanted")
        if unknown := sorted(row.keys() - set(names + optional)):
            instead = f"{unknown[0][:40]!r} is not read here; give {', '.join(names)}"
            raise InputError(f"{what} #{i}: {instead}")
        for name in (*names, *(name for name in optional if name in row)):
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"{what} #{i}: {name} must be a number")
    given = names + tuple(name for name in optional if any(name in row for row in rows))
    return {name: [row.get(name, math.nan) for row in rows] for name in given}


def apply_edit(session: Session, edit: Edit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the maps of the page's next picture.

    ℓ comes at the displayed pixels or on a coarser grid, which the page interpolates before it
    computes D·e^ℓ; `std_log`, if the method has one, on the generator's grid. Unless the header's
    "size" is "preview", the values are those of `recover`.
    """
    start = time.perf_counter()
    relative = session.relative
    survey = edit.survey(session.shape)
    if not len(edit.anchors) and survey is None:
        raise InputError("no anchors: at least one pixel of known metric depth is needed")
    quick = quick_method(relative, edit, survey)
    method = quick or make_method(edit.method)
    if isinstance(quick, SmallField):
        preview = quick.image is not relative.shown_field
    else:
        preview = not quick and edit.size == "preview" and session.shape != relative.shown.shape
    output, anchors = relative.output, edit.anchors
    if preview and not quick:
        output, anchors = session.at_display_size(anchors)
    recovery = recover_from(output, anchors, method)
    log_scale: Any = recovery.log_scale
    if (
        output.affine and not quick
    ):  # the page multiplies its own relative depth, which has no shift
        log_scale = recovery.depth_m.log() - output.mde_depth.log()
    std_log = recovery.std_log
    if not quick:
        log_scale = log_scale if preview else session.shown(log_scale)
        if std_log is not None:
            std_log = on_grid(std_log, [-(-n // STEP) for n in std_log.shape])
    maps = {"log_scale": log_scale, "std_log": std_log}
    report = recovery.report
    header = {
        "method": edit.method,
        "size": "preview" if preview else "full",
        "revision": relative.revision,
        "limits_m": list(depth_limits(edit.anchors)),
        "anchors": anchor_states(report),
        "known": [{"code": each.code, "predicted": each.predicted} for each in report.measurements],
        "weights": None if recovery.weights is None else recovery.weights.tolist(),
        "fallbacks": [str(each) for each in report.fallbacks],
        "warnings": [asdict(each) for each in report.warnings],
        **check_anchors(relative, edit.anchors, survey),
        "milliseconds": round(1e3 * (time.perf_counter() - start), 2),
    }
    return header, {name: np.asarray(each) for name, each in maps.items() if each is not None}


@dataclass(frozen=True, eq=False)
class SmallBasis(Method):
    """`Basis` without the maps of the image's size: log_scale stays on the generator's grid."""

    relative: Relative

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """The same weights as `Basis`; depth_m is computed by the page."""
        generator, maps = self.relative.basis
        fit = WeightFit.of(maps, mde_output, anchors, generator.config.ridge)
        residuals = tuple((-fit.residuals).tolist())
        return Recovery(
            depth_m=torch.empty(0),  # computed by the page
            log_scale=fit.solution.log_scale(maps.basis_maps)[0],
            std_log=on_grid(fit.std_log(), maps.basis_maps.shape[2:]),
            weights=fit.solution.weights[0].float(),
            report=Report(anchors_used=len(anchors), residuals_log=residuals),
        )


def on_grid(std_log: Tensor, size: Sequence[int]) -> Tensor:
    """A smooth map on a coarse grid, to reduce the size of the answer; holes take the median."""
    filled = torch.nan_to_num(std_log, nan=float(std_log.nanmedian()))
    return nnf.interpolate(filled[None, None], size=tuple(size), mode="bilinear")[0, 0]


@dataclass(eq=False)
class Conditioned(Method):
    """`Field` as its posterior only, without a map."""

    relative: Relative
    survey: Survey | None = None
    """What is known besides the anchors."""
    posterior: FieldPosterior | None = None
    """The field of the last call."""

    least_anchors: ClassVar[int] = 0

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """The report of `Field`; depth_m is computed by the page or at single pixels."""
        self.posterior = posterior = self.relative.posterior(anchors, self.survey)
        rejected, warnings = posterior.report(anchors)
        used = without(anchors, rejected)
        at_anchors = torch.zeros(0)
        if len(used):
            rows, columns = map(self.relative.field.tensor, used.pixels(mde_output.shape))
            at_anchors, _ = posterior.at(rows, columns)
            at_anchors += posterior.image.mde_depth[rows, columns].log()
        return Recovery(
            depth_m=torch.empty(0),
            log_scale=torch.empty(0),
            weights=posterior.fit.coefficients()["modes"].float(),
            report=Report(
                anchors_used=len(used),
                rejected=rejected,
                residuals_log=tuple((at_anchors.numpy() - np.log(used.depth_m)).tolist()),
                warnings=warnings,
                measurements=posterior.survey_report(),
                shift=posterior.image.shift_interval(posterior.shift),
            ),
        )


@dataclass(eq=False)
class SmallField(Conditioned):
    """`Field` at the pixels of a smaller image, and its std_log on the generator's grid."""

    image: ImageInputs | None = None
    """The inputs of `field` where it is evaluated."""

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """The same posterior as `Field`; depth_m is computed by the page."""
        found, relative = super().__call__(mde_output, anchors), self.relative
        assert self.posterior is not None
        assert self.image is not None
        fitted = self.posterior.over(self.image)
        field = relative.editor.render(fitted) if self.survey is None else fitted.render()
        return replace(
            found,
            # The page multiplies its own relative depth, whose shift is not estimated.
            log_scale=field.mean + (fitted.image.mde_depth / relative.depth_at(self.image)).log(),
            # It is smooth: the generator's grid is enough.
            std_log=on_grid(field.std, relative.field.maps.maps.shape[2:]),
        )


QUICK_METHODS = ("basis", "field")
"""Methods with a solve at display size; the others work on every pixel of the photograph."""


def quick_method(
    relative: Relative, edit: Edit, survey: Survey | None
) -> SmallBasis | SmallField | None:
    """The edit's method at display size or below; None where it needs every pixel, as `basis` does
    with an unknown shift: its relative depth changes with the anchors."""
    if edit.method == "basis" and not relative.output.affine:
        return SmallBasis(relative)
    if edit.method != "field":
        return None
    if edit.size == "preview":
        return SmallField(relative, survey, image=relative.preview_field)
    return SmallField(relative, survey, image=relative.shown_field)


def anchor_states(report: Report) -> list[dict[str, Any]]:
    """For each anchor given: its residual (log), or why it was not used."""
    reasons = {r.anchor: r.reason for r in report.rejected}
    left = iter(report.residuals_log)
    return [
        {"reason": reasons[i]} if i in reasons else {"residual_log": next(left)}
        for i in range(report.anchors_given)
    ]


def check_anchors(
    relative: Relative, anchors: Anchors, survey: Survey | None = None
) -> dict[str, Any]:
    """Consistency of the anchors according to `field`, for every method.

    "others" has for each anchor the depth that the remaining ones predict there, and its distance
    in their standard deviations; "suspects" are the anchors that `field` finds in conflict, and
    "corroborated" those that others confirm against the relative depth. For a single anchor,
    "expected_m" has the depth that is expected there of such an image.
    """
    output = relative.output
    rows, columns = anchors.pixels(output.shape)
    usable = np.flatnonzero(output.valid[rows, columns].cpu().numpy())[:MOST_CHECKED]
    others: list[dict[str, float] | None] = [None] * len(anchors)
    if len(usable) < 2 - (survey is not None) or len(anchors) > MOST_CHECKED:
        few = len(anchors) < 2
        expected = expected_depth_m(relative.field, rows, columns).tolist() if few else []
        return {"others": others, "suspects": [], "expected_m": expected}
    kept = anchors[usable]
    posterior = relative.posterior(kept, survey)
    residual, std = posterior.leave_one_out()
    predicted = kept.depth_m * np.exp(-residual)
    for i, depth_m, sigmas in zip(usable, predicted, residual / std, strict=True):
        others[i] = {"depth_m": float(depth_m), "sigmas": float(sigmas)}
    outliers, corroborated = posterior.outliers, np.zeros(0, np.int64)
    if outliers is not None:
        corroborated = posterior.marked(outliers.corroborated)
    return {
        "others": others,
        "suspects": usable[posterior.in_conflict].tolist(),
        "corroborated": usable[corroborated].tolist(),
    }


def expected_depth_m(
    image: ImageInputs, rows: Int64[np.ndarray, " n"], columns: Int64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """The depth that `field` expects at pixels of such an image before any anchor."""
    index = torch.from_numpy(rows), torch.from_numpy(columns)
    log_scale = (
        image.pixels(*index).mean + image.maps.expected_log_depth[0] - image.log_depth_median
    )
    return (image.mde_depth[index] * log_scale.exp()).double().numpy()


def suggestions(session: Session, anchors: Anchors) -> list[dict[str, Any]]:
    """The pixels to measure next, best first, on measurable cells; `anchors` may be empty."""
    relative = session.relative
    (height, width), (rows, columns) = relative.output.shape, relative.measurable.shape
    v, u = np.arange(height) * rows // height, np.arange(width) * columns // width
    reachable = relative.measurable.numpy()[v[:, None], u]
    anchors.pixels((height, width))  # raises for an anchor outside the image
    try:
        found = suggest_from(
            relative.output, anchors, SUGGESTIONS, reachable=reachable, image=relative.field
        )
    except InputError:  # nothing is reachable, as in a map of one steep slope or of few pixels
        return []
    return [{k: v for k, v in asdict(spot).items() if v is not None} for spot in found]


def full_recovery(session: Session, edit: Edit) -> Recovery[np.ndarray]:
    """The recovery at the photograph's size: what `scalefield.recover` gives."""
    output, survey = session.relative.output, edit.survey(session.shape)
    return recover_from(output, edit.anchors, make_method(edit.method), survey=survey).numpy()
