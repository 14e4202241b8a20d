"""`Method`, the protocol of methods, and `Recovery`, their result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.defaults import MIN_SUPPORT
from scalefield.errors import InputError, counted, one_line
from scalefield.mde.output import Kind, MDEOutput, Space
from scalefield.report import Rejection, Report

if TYPE_CHECKING:
    from PIL import Image

    from scalefield.explanation import Explanation
    from scalefield.export.cloud import PointCloud
    from scalefield.geometry.camera import Camera
    from scalefield.measurements import Measurement, Reading

MapT = TypeVar("MapT", Tensor, np.ndarray)
"""Type of the maps: torch tensors inside the package, numpy arrays for numpy users."""


@runtime_checkable
class JointDepth(Protocol):
    """The joint distribution of depth at pixels and of what is unknown of the camera."""

    def draws(
        self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"], count: int
    ) -> tuple[Float64[Tensor, "d m"], Float64[Tensor, "d 3"]]:
        """Log-depth minus its mean at pixels, and ψ of `geometry.survey`: the mean, then so many
        draws."""
        ...


Form = Literal["depth", "disparity", "log_scale"]
"""The quantity that a method predicts."""

BAND_PIXELS = 1 << 17
"""Pixels that are finished at a time on a CPU, so that intermediate maps stay in its cache."""

NORMAL_90 = 1.645
"""Standard deviations to either side that hold 90 % of a normal distribution."""

DEPTH_LIMITS = (1e-3, 1e3)
"""Recovered depth stays within these multiples of the nearest and the farthest anchor."""


NO_MAPS = ("report", "anchors", "image", "camera", "posterior", "explainer")
"""Fields of a recovery that are no maps."""

DRAWS = 1000
"""Draws from the posterior for the interval of a reading."""


def interval_factor(level: float) -> float:
    """Half the width of an interval of log-depth that holds the truth with probability `level`, in
    units of std_log.

    It is the quantile of Student's t with two degrees of freedom, level · √2/√(1 − level²), in a
    unit that gives 1.645 at 90 %, as for a normal distribution: most errors are smaller than
    normal ones of that width, and a few are much larger.
    """
    if not 0 < level < 1:
        raise InputError(f"the level of an interval lies between 0 and 1, found {level}")
    return NORMAL_90 * (level / math.sqrt(1 - level**2)) / (0.9 / math.sqrt(1 - 0.9**2))


@dataclass(frozen=True, eq=False, repr=False)
class Recovery(Generic[MapT]):
    """Dense metric depth: depth_m = D_MDE · exp(log_scale), float32, of the image's size."""

    depth_m: MapT
    """Depth in metres, along the optical axis."""
    log_scale: MapT
    """Logarithm of depth_m / D_MDE. For an affine-invariant map, `field` and `basis` take D_MDE at
    the shift that they found."""
    report: Report
    """Inputs, rejected anchors, fallbacks, warnings and residuals."""
    std_log: MapT | None = None
    """Standard deviation of log_scale, equal to that of log-depth; None if the method has none."""
    support: MapT | None = None
    """Share of the prior variance of the local field that the anchors near a pixel remove (`field`
    only): near 1 beside an anchor of similar depth, 0 where depth is extrapolated, outside the
    anchors or nearer or farther than all of them."""
    weights: MapT | None = None
    """w, one weight for each basis map (`basis` and `field` only)."""
    basis_maps: MapT | None = None
    """K maps on the generator's grid. In `basis` they are E = G ⊙ B, and log_scale is Eᵀw,
    upsampled, plus the anchors' median. In `field` they are the linear modes of the kernel."""
    gating: MapT | None = None
    """G, K maps that sum to one at every cell (`basis` only)."""
    anchors: Anchors | None = None
    """The anchors that the user gave; None inside methods."""
    image: np.ndarray | None = None
    """The photograph as uint8 RGB, where there is one; None inside methods."""
    camera: Camera | None = None
    """The camera, where it is known; None inside methods."""
    posterior: JointDepth | None = None
    """Draws of depth at several pixels together (`field` only), from which `measure` has its
    intervals."""
    explainer: Callable[[Recovery], Explanation] | None = None
    """Makes `explain()` of a recovery (`basis` and `field` only); it is not pickled."""

    def __getstate__(self) -> dict[str, Any]:
        """All but the explainer and the posterior, which hold the state of the method."""
        return self.__dict__ | {"explainer": None, "posterior": None}

    def __repr__(self) -> str:
        report, values = self.report, _as_numpy(self.depth_m)
        parts = ["×".join(map(str, reversed(values.shape))) + " px"]
        if np.isfinite(values).any():
            parts.append(f"{np.nanmin(values):.2f} … {np.nanmax(values):.2f} m")
        parts.append(f"{report.method or 'recovered'} on {report.model or 'a map'}")
        parts.append(f"{report.anchors_used} of {report.anchors_given} anchors")
        for name in ("fallback", "warning"):
            if count := len(getattr(report, f"{name}s")):
                parts.append(counted(count, name))
        return f"Recovery({', '.join(parts)})"

    def typical_std_log(self) -> float | None:
        """Median of std_log over the pixels that the anchors support, over all if there are none;
        None if the method has no std_log."""
        if self.std_log is None:
            return None
        std_log = _as_numpy(self.std_log)
        supported = std_log
        if self.support is not None:
            supported = std_log[_as_numpy(self.support) >= MIN_SUPPORT]
        return float(np.nanmedian(supported if np.isfinite(supported).any() else std_log))

    def interval(self, level: float = 0.9) -> tuple[MapT, MapT]:
        """Lower and upper bound of the depth in metres at every pixel: true depth lies between them
        at a share `level` of the pixels.

        The bounds are depth_m · exp(∓ interval_factor(level) · std_log).
        """
        if self.std_log is None:
            raise InputError(
                f"method {self.report.method!r} has no std_log, which an interval is made of"
            )
        reach = interval_factor(level) * self.std_log
        exp: Callable[..., MapT] = torch.exp if isinstance(reach, Tensor) else np.exp
        return self.depth_m * exp(-reach), self.depth_m * exp(reach)

    def _repr_html_(self) -> str:
        """The preview and the summary, as a notebook shows them."""
        from scalefield.export.result_folder import html

        return html(self)

    def preview(self) -> Image.Image:
        """A picture with the photograph, the anchors and the maps; see `export.preview`."""
        from scalefield.export.result_folder import preview

        return preview(self)

    def explain(self) -> Explanation:
        """The parts of log_scale with their shares, and the influence of each anchor."""
        if self.explainer is None:
            raise InputError(
                f"a recovery by {self.report.method or 'this method'} has no explanation; those by "
                "basis and field have one, with at least one anchor"
            )
        return self.explainer(self.numpy())

    def save(
        self,
        folder: str | Path,
        *,
        formats: Sequence[str] = (),
        camera: Camera | None = None,
        fov_deg: float | None = None,
        max_points: int | None = None,
        png_units: float | None = None,
    ) -> Path:
        """Write the files of `scalefield recover` to a folder, all or none, and return the folder.

        They are depth.png, depth.npz, preview.png and recovery.json. `formats` adds others, for
        example "ply" or "glb", most of which need the camera or its horizontal field of view.
        `png_units` are the units per metre of depth.png; by default it holds every pixel.
        """
        from scalefield.export.result_folder import choose_camera, write_outputs

        write_outputs(
            Path(folder),
            self.numpy(),
            inputs={},
            png_units=png_units,
            formats=formats,
            camera=choose_camera(self, camera, fov_deg),
            max_points=max_points,
        )
        return Path(folder)

    def to_point_cloud(
        self,
        camera: Camera | None = None,
        *,
        fov_deg: float | None = None,
        max_points: int | None = None,
    ) -> PointCloud:
        """Coloured points in the camera's frame (x right, y down, z forward), in metres.

        Give the camera or its horizontal field of view. With `max_points`, the pixels are thinned
        evenly. `PointCloud.write` writes .ply and .glb.
        """
        from scalefield.export.result_folder import choose_camera
        from scalefield.export.view import View

        return View.of(self, choose_camera(self, camera, fov_deg), max_points).cloud()

    def measure(
        self,
        questions: Measurement | Sequence[Measurement],
        *,
        camera: Camera | None = None,
        fov_deg: float | None = None,
        level: float = 0.9,
    ) -> list[Reading]:
        """What the depth map says of lengths, heights, areas and distances, with intervals.

        The questions are measurements without a value: `r.measure(Length((320, 400), (420, 400)))`.
        A value is that of `depth_m`; its interval has the probability `level` in draws from the
        joint posterior of all pixels. Without a camera its focal length is uncertain, and the
        interval says so. Only `field` has intervals.
        """
        from scalefield.geometry.survey import read

        return read(self, questions, camera, fov_deg, level)

    @staticmethod
    def from_depth(
        mde_output: MDEOutput, anchors: Anchors, depth_m: Tensor, **report: Any
    ) -> Recovery[Tensor]:
        """Finish a method that predicts depth; non-positive or infinite values are limited.

        `rejected=` are the anchors that the method dropped; residuals are those of the others.
        Further keywords are maps of the recovery, such as `std_log=`, and values of its report.
        """
        return Recovery._finish(mde_output, anchors, depth_m, "depth", **report)

    @staticmethod
    def from_space(
        mde_output: MDEOutput,
        anchors: Anchors,
        prediction: Tensor,
        space: Space,
        **report: Any,
    ) -> Recovery[Tensor]:
        """Finish an aligner that predicts metric depth or metric disparity (1/m)."""
        return Recovery._finish(mde_output, anchors, prediction, space, **report)

    @staticmethod
    def from_log_scale(
        mde_output: MDEOutput,
        anchors: Anchors,
        log_scale: Tensor,
        **report: Any,
    ) -> Recovery[Tensor]:
        """Finish a method that predicts ℓ: D̂ = D_MDE · e^ℓ (Eq. 9)."""
        return Recovery._finish(mde_output, anchors, log_scale, "log_scale", **report)

    @staticmethod
    def _finish(
        mde_output: MDEOutput,
        anchors: Anchors,
        prediction: Tensor,
        form: Form,
        *,
        rejected: tuple[Rejection, ...] = (),
        std_log: Tensor | None = None,
        support: Tensor | None = None,
        weights: Tensor | None = None,
        basis_maps: Tensor | None = None,
        gating: Tensor | None = None,
        kind: Kind | None = None,
        posterior: JointDepth | None = None,
        **report: Any,
    ) -> Recovery[Tensor]:
        given, shape = len(anchors), mde_output.shape
        anchors = without(anchors, rejected)
        limits = depth_limits(anchors)
        prediction = prediction.expand(shape)
        depth_m, log_scale, limited_pixels = _limited_maps(mde_output, prediction, form, limits)
        pixels = anchors.pixels(shape)
        predicted, _, _ = _limit(
            prediction[pixels],
            mde_output.mde_depth[pixels],
            mde_output.valid[pixels],
            form,
            limits,
        )
        hole_pixels = int((~mde_output.valid).sum())
        if std_log is not None:
            std_log = std_log.float().expand(shape).contiguous()
            if hole_pixels:
                std_log = torch.where(mde_output.valid, std_log, torch.nan)
        if support is not None and hole_pixels:
            support = torch.where(mde_output.valid, support, torch.nan)
        residuals = np.log(predicted.detach().double().cpu().numpy()) - np.log(anchors.depth_m)
        return Recovery(
            depth_m=depth_m,
            log_scale=log_scale,
            std_log=std_log,
            support=support,
            weights=weights,
            basis_maps=basis_maps,
            gating=gating,
            posterior=posterior,
            report=Report(
                model=mde_output.model,
                kind=kind or mde_output.kind,
                anchors_given=given,
                anchors_used=len(residuals),
                rejected=rejected,
                residuals_log=tuple(residuals.tolist()),
                limited_pixels=limited_pixels,
                hole_pixels=hole_pixels,
                **report,
            ),
        )

    def numpy(self) -> Recovery[np.ndarray]:
        """The same recovery with every map as a numpy array."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in NO_MAPS}
        return Recovery(**kept | {name: _as_numpy(maps) for name, maps in self.maps().items()})

    def maps(self) -> dict[str, MapT]:
        """Every map that this recovery has, by the name of its field."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {n: m for n, m in fields.items() if n not in NO_MAPS and m is not None}


def _as_numpy(values: Tensor | np.ndarray) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


Solver = Callable[[Anchors], Recovery[Tensor]]
"""Recovers depth of one image from anchors."""


@runtime_checkable
class Method(Protocol):
    """The protocol of methods.

    A method is an object that is called with an MDE's output and anchors. Classes that inherit
    from this protocol get its defaults; `as_method` wraps a plain function in `FunctionMethod`.
    """

    least_anchors: ClassVar[int] = 1
    """Number of anchors below which the method cannot work."""

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover depth. Every anchor lies on a pixel with a relative depth."""
        ...

    def solver(self, mde_output: MDEOutput) -> Solver:
        """This method for one image, as a function of the anchors.

        What depends on the image only, for example the run of a network, is computed once. Use it
        for several sets of anchors on one image.
        """
        return partial(self, mde_output)

    def prepare(self) -> None:
        """Load what the method needs, for example weights, so that errors come before long work."""
        return

    @property
    def wants_labels(self) -> bool:
        """Whether the method should be given a frame's label image by `with_labels`."""
        return False

    def with_labels(self, labels: np.ndarray) -> Method:
        """The same method using an integer label image; methods without labels ignore it."""
        return self


@dataclass(frozen=True)
class FunctionMethod(Method):
    """A plain function as a `Method`."""

    function: Callable[[MDEOutput, Anchors], Any]
    """Called with the MDE's output and the anchors; `recover_from` checks what it returns."""

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Any:
        """The value of the function."""
        return self.function(mde_output, anchors)


MethodLike = Method | Callable[..., Any]
"""A method, or a function of (mde_output, anchors) that returns a Recovery."""


def as_method(method: MethodLike) -> Method:
    """The method itself, or a function as a `FunctionMethod`."""
    if not callable(method):
        raise InputError(f"a method is a name or a function, found {one_line(repr(method))}")
    if isinstance(method, type):
        name = method.__name__
        raise InputError(f"{name} is a class; give an instance, for example {name}()")
    return method if isinstance(method, Method) else FunctionMethod(method)


def without(anchors: Anchors, rejected: Sequence[Rejection]) -> Anchors:
    """The anchors without the rejected ones, in their order."""
    if not rejected:
        return anchors
    return anchors[np.setdiff1d(np.arange(len(anchors)), [r.anchor for r in rejected])]


def depth_limits(anchors: Anchors) -> tuple[float, float]:
    """Smallest and largest allowed depth for these anchors; float32's range without anchors."""
    if anchors.depth_m.size == 0:
        return torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    nearest, farthest = float(anchors.depth_m.min()), float(anchors.depth_m.max())
    return DEPTH_LIMITS[0] * nearest, DEPTH_LIMITS[1] * farthest


def _limited_maps(
    mde_output: MDEOutput,
    prediction: Float[Tensor, "h w"],
    form: Form,
    limits: tuple[float, float],
) -> tuple[Float[Tensor, "h w"], Float[Tensor, "h w"], int]:
    """`_limit` at every pixel, in float32 and NaN in holes."""
    (height, width), device = prediction.shape, prediction.device
    depth_m, log_scale = (torch.empty(height, width, device=device) for _ in range(2))
    limited_pixels = 0
    # A band of rows at a time keeps intermediate maps small and in the processor's cache.
    step = height if device.type == "cuda" else max(1, BAND_PIXELS // width)
    for top in range(0, height, step):
        band = slice(top, top + step)
        valid, mde_depth = mde_output.valid[band], mde_output.mde_depth[band]
        depth, scale, limited = _limit(prediction[band], mde_depth, valid, form, limits)
        depth_m[band] = torch.where(valid, depth.float(), torch.nan)
        log_scale[band] = torch.where(valid, scale.float(), torch.nan)
        limited_pixels += limited
    return depth_m, log_scale, limited_pixels


def _limit(
    prediction: Float[Tensor, "*p"],
    mde_depth: Float[Tensor, "*p"],
    valid: Bool[Tensor, "*p"],
    form: Form,
    limits: tuple[float, float],
) -> tuple[Float[Tensor, "*p"], Float[Tensor, "*p"], int]:
    """Limited depth, its log-scale, and the number of valid pixels that were limited."""
    match form:
        case "depth":
            depth_m = prediction
        case "disparity":
            depth_m = torch.where(prediction > 0, 1 / prediction, torch.inf)
        case "log_scale":
            depth_m = mde_depth * prediction.exp()
    limited = depth_m.clamp(*limits)
    changed = int(((limited != depth_m) & valid).sum())
    if form == "log_scale" and not changed:
        return limited, prediction, changed
    return limited, limited.double().log() - mde_depth.double().log(), changed
