"""`field`: the ridge solve seen as a Gaussian process, with a kernel that bends and knows doubt."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.cues import grid_image, log_depth_and_level
from scalefield.basis.grids import grid_shape, upsample
from scalefield.basis.targets import targets
from scalefield.basis.trunk import current_names
from scalefield.decomposition import Decomposition
from scalefield.dense import dense_mean, dense_parts
from scalefield.deviation import STD_CELLS, dense_std
from scalefield.doubt import Verdict, doubt
from scalefield.embedding import FieldMaps, FieldNet, FieldNetConfig, Layout
from scalefield.errors import InputError, one_line
from scalefield.io import read_json, write_atomic, write_json
from scalefield.io.weights import find_shipped, shipped
from scalefield.kernel import Kernel, Points, Term
from scalefield.mde.output import MDEOutput
from scalefield.patchwork import Patchwork
from scalefield.posterior import Posterior
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback, Rejection, Warning
from scalefield.runtime.devices import full_precision
from scalefield.scene import Scene
from scalefield.validation import from_json, require_choice

EXACT_ANCHORS = 2000
"""More anchors than this are solved patch by patch."""

Level = Literal["free", "learned"]

LEAST_NOISE = 1e-3
"""However precise a measurement, its pixel and the map's agree to a part in a thousand at best."""


@dataclass(frozen=True, eq=False)
class FieldModel:
    """A learned kernel, and the network that says what it looks at."""

    kernel: Kernel
    net: Callable[..., FieldMaps]
    """A `FieldNet`, or anything that gives `FieldMaps` for log-depth, image and features."""
    calibration: float = 1.0
    """Factor on the posterior's standard deviation, chosen on val, …"""
    decay: float = 0.0
    """… which falls with their number as n^−decay: few anchors cannot tell how hard an image is."""
    patience: float = 10.0
    """Anchors that it takes for an image's own spread to weigh as much as the learned one."""
    level_std: float = 0.5
    """Standard deviation of the expected level: what is not known without any anchor."""
    estimators: tuple[str, ...] | None = None
    """Those that it was trained on, by name. Of the bias of others the mean function knows nothing,
    and is silent; None lets it speak for all."""

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors (float16) and config.json."""
        folder, net = Path(folder), self.net
        if not isinstance(net, FieldNet):
            raise InputError("only a model with a FieldNet can be saved")
        state = {name: x.half().contiguous().cpu() for name, x in net.state_dict().items()}
        write_atomic(folder / "model.safetensors", save(state))
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {"kernel": dataclasses.asdict(self.kernel), "net": dataclasses.asdict(net.config)}
        write_json(folder / "config.json", plain)

    @classmethod
    def load(cls, folder: str | Path) -> FieldModel:
        """Read what `save` wrote, ready for inference."""
        path = Path(folder) / "config.json"
        values = read_json(path)
        try:
            kernel, config = values.pop("kernel"), values.pop("net")
            if isinstance(values.get("estimators"), list):
                values["estimators"] = tuple(values["estimators"])
            kernel["terms"] = tuple(from_json(Term, term) for term in kernel["terms"])
            config["layout"] = from_json(Layout, config["layout"])
            config["dilations"] = tuple(config["dilations"])
            with torch.device("meta"):  # sizes that the weights do not have cost no memory
                net = FieldNet(from_json(FieldNetConfig, config))
            model = from_json(cls, {**values, "kernel": from_json(Kernel, kernel), "net": net})
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as e:
            raise InputError(f"{path}: not a field model's configuration ({one_line(e)})") from None
        try:
            state = load_file(path.with_name("model.safetensors"))
            weights = {name: tensor.float() for name, tensor in state.items()}
            net.load_state_dict(current_names(weights), assign=True)
        except (OSError, SafetensorError, RuntimeError) as e:
            raise InputError(f"{folder}: not the weights of such a field ({one_line(e)})") from None
        net.eval().requires_grad_(False)
        return model

    @torch.no_grad()
    def scene(self, mde_output: MDEOutput) -> Scene:
        """The image as the kernel sees it; made once for each output."""
        if self.net not in mde_output.memo:
            # The logarithm first: float64 maps may hold depths that float32 cannot.
            log_depth, level = log_depth_and_level(mde_output.mde_depth[None])
            log_depth = log_depth.float()
            image, features = mde_output.image, mde_output.features
            if image is not None:
                image = grid_image(image.to(log_depth.device), log_depth.shape[2:])[None]
            if features is not None:
                features = features[None].float()
            if isinstance(self.net, FieldNet):
                self.net.to(log_depth.device)
                features = features if self.net.config.feature_channels else None
            with full_precision():
                maps = self.net(log_depth, image, features)
            if self.estimators is not None and mde_output.model not in self.estimators:
                maps = maps.without_mean()
            lengths = [float(term.depth_length) for term in self.kernel.terms]
            # Without its memo, which holds the scene: circles wait for the garbage collector.
            alone = copy(mde_output)
            del vars(alone)["memo"]
            scene = Scene(alone, maps, float(level), min(lengths, default=1.0))
            mde_output.memo[self.net] = scene
        return mde_output.memo[self.net]


@lru_cache(maxsize=4)
def load_field(name: str | Path) -> FieldModel:
    """A field model by shipped name or folder."""
    folder = find_shipped(name)
    if folder is None and not Path(name).is_dir():
        names = shipped("field")
        raise InputError(f"no field model {str(name)!r}: not a folder, nor one of {names}")
    return FieldModel.load(name if folder is None else folder)


@dataclass(frozen=True)
class Field(Method):
    """A Gaussian process over position, depth and embeddings: bends to anchors, knows its doubt.

    ℓ minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ − μ‖²_k: `basis` is the case of a kernel with linear modes
    only. It serves any MDE and any number of anchors, none included; the image is optional.
    """

    model: str | Path | FieldModel = "field"
    """The shipped model, "field-lite", its twin that also looks at F of `lite`, a folder that
    `FieldModel.save` wrote, or a model."""
    robust: bool = True
    """Give anchors that the others contradict less weight, and leave out those with hardly any,
    where gross errors explain that better than a rough field or a missed object does; the report
    names both. Of fewer than five anchors none is doubted."""
    level: Level = "free"
    """free: the anchors alone say how large everything is, in whatever unit they are. learned: they
    are in metres, and the level to be expected of such an image speaks as one more measurement,
    which helps where anchors are one or a few."""

    least_anchors: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require_choice("level", self.level, get_args(Level))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover; without anchors, what is to be expected."""
        model = self.load()
        scene = model.scene(mde_output)
        if len(anchors) == 0:
            return expected(model, scene)
        solved = self.solve(scene, anchors, model)
        recovery = Recovery.from_log_scale(
            mde_output,
            anchors,
            dense_mean(solved.posterior, scene),
            rejected=solved.rejected,
            fallbacks=solved.fallbacks,
            warnings=solved.warnings,
            std_log=dense_std(solved.posterior, scene).mul_(solved.spread),
        )
        return dataclasses.replace(
            recovery,
            weights=solved.posterior.weights().float(),
            basis_maps=scene.maps.modes[0],
        )

    def prepare(self) -> None:
        """Load the model."""
        self.load()

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)

    def solve(self, scene: Scene, anchors: Anchors, model: FieldModel) -> Solved:
        """The posterior, and what there is to say about the anchors."""
        # In an order of their own, so that rounding does not depend on the user's.
        order = np.lexsort((anchors.depth_m, anchors.u, anchors.v))
        ordered = anchors[order]
        points, y, noise = said(model, scene, ordered)
        rejected: tuple[Rejection, ...] = ()
        warnings: tuple[Warning, ...] = ()
        if self.robust:
            verdict = doubt(model.kernel, points, y, noise)
            rejected, warnings = told(verdict, anchors, order)
            (right,) = (~verdict.wrong).nonzero(as_tuple=True)
            points, y, noise = points[right], y[right], verdict.noise[right]
        kernel, offset = model.kernel, None
        if self.level == "learned":
            kernel = dataclasses.replace(kernel, constant=model.level_std)
            offset = scene.maps.level[0].double() - scene.level
        posterior, fallbacks = condition(kernel, points, y, noise, offset)
        factor = spread(model, posterior, level_known=self.level == "learned")
        return Solved(posterior, factor, rejected, fallbacks, warnings)

    def decompose(self, mde_output: MDEOutput, anchors: Anchors) -> Decomposition:
        """What log_scale is made of, as maps that sum to it, and the share of each: the global
        scale, the learned mean, the slope over log-depth, each linear mode, each way of bending."""
        model = self.load()
        scene = model.scene(mde_output)
        posterior = self.solve(scene, anchors, model).posterior
        return Decomposition(dense_parts(posterior, scene), mde_output.valid)

    def speakers(
        self, mde_output: MDEOutput, anchors: Anchors, u: int, v: int
    ) -> Float64[np.ndarray, " n"]:
        """How much each anchor speaks for the pixel (u, v): ∂ℓ/∂yᵢ, 0 for those rejected."""
        model = self.load()
        scene = model.scene(mde_output)
        solved = self.solve(scene, anchors, model)
        gone = {r.anchor for r in solved.rejected}
        order = [i for i in np.lexsort((anchors.depth_m, anchors.u, anchors.v)) if i not in gone]
        weights = np.zeros(len(anchors))
        point = scene.pixels(np.array([v]), np.array([u]))
        weights[order] = solved.posterior.speakers(point)[0].cpu().numpy()
        return weights


@dataclass(frozen=True, eq=False)
class Solved:
    """What the anchors said."""

    posterior: Posterior | Patchwork
    spread: float
    """Factor on the posterior's deviation that makes it honest for this image."""
    rejected: tuple[Rejection, ...]
    fallbacks: tuple[Fallback, ...]
    warnings: tuple[Warning, ...]


def condition(
    kernel: Kernel,
    points: Points,
    y: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    offset: Float[Tensor, ""] | None = None,
) -> tuple[Posterior | Patchwork, tuple[Fallback, ...]]:
    """The field given the targets, exact or, of many anchors, in patches, and word of that."""
    if len(y) <= EXACT_ANCHORS:
        return Posterior.fit(kernel, points, y, noise, offset), ()
    patchwork = Patchwork.fit(kernel, points, y, noise, offset)
    patches = len(patchwork.heard)
    text = f"{len(y)} anchors were solved in {patches} patches that overlap"
    return patchwork, (Fallback("patches", text),)


def expected(model: FieldModel, scene: Scene) -> Recovery[Tensor]:
    """Depth without any anchor: the learned level and mean, with a deviation to match."""
    shape = scene.mde_output.shape
    mean = upsample(scene.maps.mean, shape)[0, 0]
    log_scale = mean + (float(scene.maps.level) - scene.level)
    cells = grid_shape(*shape, STD_CELLS)
    points, _ = scene.cells(cells)
    bent = model.kernel.variance(points) - model.kernel.constant**2
    variance = model.level_std**2 + model.calibration**2 * bent
    std_log = upsample(variance.sqrt().float().reshape(1, 1, *cells), shape)[0, 0]
    factor = math.exp(float(std_log.median()))
    warning = (
        "no anchors: this is the depth to be expected of such an image, at a typical pixel wrong "
        f"by a factor of {factor:.2g} or more in one case of three; a measured point says more"
    )
    recovery = Recovery.from_log_scale(
        scene.mde_output,
        NO_ANCHORS,
        log_scale,
        warnings=(Warning("no_anchors", warning),),
        std_log=std_log,
    )
    return dataclasses.replace(recovery, basis_maps=scene.maps.modes[0])


NO_ANCHORS = Anchors([], [], [])


def said(
    model: FieldModel, scene: Scene, anchors: Anchors
) -> tuple[Points, Float[Tensor, " n"], Float[Tensor, " n"]]:
    """What the kernel sees at anchors, y there, and how sure that is, on the scene's device."""
    points = scene.anchors(anchors)
    y, noise = targets(scene.mde_output, anchors), noise_log(anchors, float(model.kernel.noise))
    device = points.log_depth.device
    return points, torch.from_numpy(y).to(device), torch.from_numpy(noise).to(device)


def told(
    verdict: Verdict, anchors: Anchors, order: Int64[np.ndarray, " n"]
) -> tuple[tuple[Rejection, ...], tuple[Warning, ...]]:
    """Who is left out, and what to say of whom else; `order` has the number of each one judged."""
    marks = (verdict.wrong, verdict.strange, verdict.vouched)
    wrong, strange, vouched = (np.sort(order[which.cpu().numpy()]) for which in marks)
    rejected = tuple(Rejection(int(i), "outlier", "contradicted by the others") for i in wrong)
    warnings: tuple[Warning, ...] = ()
    if len(strange):
        text = f"used with less weight, contradicted by the others: {named(anchors, strange)}"
        warnings += (Warning("downweighted", text),)
    if len(vouched):
        text = (
            "used, but explained by neighbours alone; the relative depth seems to be wrong "
            f"there: {named(anchors, vouched)}"
        )
        warnings += (Warning("corroborated", text),)
    return rejected, warnings


def named(anchors: Anchors, which: Int64[np.ndarray, " m"]) -> str:
    """The first of some anchors, by number and depth, and how many more there are."""
    first = ", ".join(f"#{i} ({anchors.depth_m[i]:.3g} m)" for i in which[:5])
    return first + (f" and {len(which) - 5} more" if len(which) > 5 else "")


def spread(
    model: FieldModel, posterior: Posterior | Patchwork, *, level_known: bool = False
) -> float:
    """Factor on the posterior's deviation that makes it honest for this image."""
    residual, deviation = posterior.leave_one_out()
    n = len(residual)
    # A level that is known beforehand is one more to differ from.
    temper = tempered(strangeness(residual, deviation), n + level_known, model.patience)
    return model.calibration * n**-model.decay * temper


def strangeness(residual: Float[Tensor, " n"], deviation: Float[Tensor, " n"]) -> float:
    """Σ |z| √(π/2) of leave-one-out residuals, where each is 1 in the mean if z is unit normal."""
    return float((residual / deviation).abs().sum()) * math.sqrt(math.pi / 2)


def tempered(strangeness: float, n: int, patience: float) -> float:
    """The mean strangeness, begun with `patience` anchors of 1: an MDE that errs twice as much has
    twice the deviation, once anchors have told so. One anchor has no others to differ from."""
    return (patience + strangeness) / (patience + n - 1)


def noise_log(anchors: Anchors, default: float) -> Float64[np.ndarray, " n"]:
    """Standard deviation of each anchor's log-depth: its own where it is known."""
    if anchors.sigma_m is None:
        return np.full(len(anchors), default)
    return np.hypot(anchors.sigma_m / anchors.depth_m, LEAST_NOISE)
