"""`field`: the ridge solve seen as a Gaussian process, with a kernel that bends and knows doubt."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Float64, Int32, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.checked import checked
from scalefield.cues import grid_image, grid_shape, log_depth_and_level, sample, upsample
from scalefield.embedding import FieldMaps, FieldNet, FieldNetConfig, Layout
from scalefield.errors import InputError, brief
from scalefield.files import read_json, write_atomic, write_json
from scalefield.integrity import verified
from scalefield.kernel import Kernel, Points, Term, term_names
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import WEIGHTS
from scalefield.posterior import Posterior, doubt
from scalefield.result import Recovery, Rejection
from scalefield.targets import targets

EXACT_ANCHORS = 2000
"""More anchors than this are merged with their neighbours before the solve."""

PAIRS_AT_ONCE = 1 << 18
"""Pixel-anchor pairs that are worked on at once: what a processor's cache holds."""

EXACT_PIXELS = 1 << 16
"""In images with more pixels the dense field is interpolated from nodes, …"""
KEPT_PIXELS = 1 << 19
"""… and up to so many, where each lies among them is kept for the next set of anchors."""
SLICE_CELLS = 140
"""Nodes in the square root of the image's area; 640×480 pixels have one every four."""
NODES_A_LENGTH = 24
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""

STD_CELLS = 80
"""Cells along the longer side on which the deviation, which is smooth, is computed."""

LEAST_EVIDENCE = 6.0
EVIDENCE_AN_ANCHOR = 0.1
"""Nats by which wrong anchors must explain the data better than a rough field does, at least and
for each anchor, before any is rejected: dropping those where the MDE missed an object makes the
field worse."""

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
            kernel["terms"] = tuple(checked(Term, term) for term in kernel["terms"])
            config["layout"] = checked(Layout, config["layout"])
            config["dilations"] = tuple(config["dilations"])
            with torch.device("meta"):  # sizes that the weights do not have cost no memory
                net = FieldNet(checked(FieldNetConfig, config))
            model = checked(cls, {**values, "kernel": checked(Kernel, kernel), "net": net})
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as e:
            raise InputError(f"{path}: not a field model's configuration ({brief(e)})") from None
        try:
            state = load_file(path.with_name("model.safetensors"))
            weights = {name: tensor.float() for name, tensor in state.items()}
            net.load_state_dict(weights, assign=True)
        except (OSError, SafetensorError, RuntimeError) as e:
            raise InputError(f"{folder}: not the weights of such a field ({brief(e)})") from None
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
                image = grid_image(image, log_depth.shape[2:])[None]
            if features is not None:
                features = features[None].float()
            if isinstance(self.net, FieldNet):
                self.net.to(log_depth.device)
                features = features if self.net.config.feature_channels else None
            maps = self.net(log_depth, image, features)
            lengths = [float(term.depth_length) for term in self.kernel.terms]
            step = min(lengths, default=1.0) / NODES_A_LENGTH
            mde_output.memo[self.net] = Scene(mde_output, maps, float(level), step)
        return mde_output.memo[self.net]


@lru_cache(maxsize=4)
def load_field(name: str | Path) -> FieldModel:
    """A field model by shipped name or folder."""
    shipped = WEIGHTS / name
    return FieldModel.load(verified(shipped) if shipped.is_dir() else name)


@dataclass(frozen=True, eq=False)
class Scene:
    """An image as the kernel sees it: what does not depend on the anchors."""

    mde_output: MDEOutput
    maps: FieldMaps
    level: float
    """Median of log D_MDE, which log-depth is taken around."""
    depth_step: float
    """Spacing of the nodes in log-depth, from which large images are interpolated."""

    @property
    def unit(self) -> float:
        """Pixels in the square root of the image's area."""
        return math.sqrt(math.prod(self.mde_output.shape))

    @cached_property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE around its median, at full resolution."""
        return (self.mde_output.mde_depth.log() - self.level).float()

    @cached_property
    def lattice(self) -> Lattice:
        """The nodes that this image's pixels need."""
        return Lattice.of(self)

    def pixels(self, rows: Int64[np.ndarray, " n"], columns: Int64[np.ndarray, " n"]) -> Points:
        """Single pixels, float64."""
        device = self.mde_output.prediction.device
        uv = torch.from_numpy(np.stack([columns, rows], axis=1)).to(device).double()
        values = sample(self.maps.maps.double(), uv[None], self.mde_output.shape)[0]
        log_depth = self.mde_output.mde_depth[rows, columns].double().log() - self.level
        return self.maps.layout.points(uv / self.unit, log_depth, values)

    def anchors(self, anchors: Anchors) -> Points:
        """The pixels that the anchors fall in."""
        return self.pixels(*anchors.pixels(self.mde_output.shape))

    def cells(self, shape: tuple[int, int]) -> tuple[Points, Int64[np.ndarray, "n 2"]]:
        """The middle pixels of a grid's cells, row by row, and their (row, column)."""
        height, width = self.mde_output.shape
        rows = ((np.arange(shape[0]) + 0.5) * (height / shape[0])).astype(np.int64)
        columns = ((np.arange(shape[1]) + 0.5) * (width / shape[1])).astype(np.int64)
        chosen = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.pixels(chosen[:, 0], chosen[:, 1]), chosen


@dataclass(frozen=True)
class Field:
    """A Gaussian process over position, depth and learned embeddings: bends to anchors, knows its
    doubt.

    ℓ minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ − μ‖²_k: `basis` is the case of a kernel with linear modes
    only. It serves any MDE and any number of anchors, none included; the image is optional.
    """

    model: str | Path | FieldModel = "field"
    """The shipped model, a folder that `FieldModel.save` wrote, or a model."""
    robust: bool = True
    """Reject anchors that the others contradict, where gross errors explain that better than a
    rough field does; else they are only named. Of fewer than five anchors none is doubted."""

    least_anchors: ClassVar[int] = 0

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
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
            std_log=dense_std(solved.posterior, scene) * solved.spread,
        )
        return dataclasses.replace(
            recovery,
            weights=solved.posterior.weights().float(),
            basis_maps=scene.maps.modes[0],
        )

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)

    def solve(self, scene: Scene, anchors: Anchors, model: FieldModel) -> Solved:
        """The posterior, and what there is to say about the anchors."""
        # In an order of their own, so that rounding does not depend on the user's.
        order = np.lexsort((anchors.depth_m, anchors.u, anchors.v))
        ordered = anchors[order]
        points = scene.anchors(ordered)
        device = points.log_depth.device
        y = torch.from_numpy(targets(scene.mde_output, ordered)).to(device)
        noise = torch.from_numpy(noise_log(ordered, float(model.kernel.noise))).to(device)
        member = torch.arange(len(anchors), device=device)
        rejected: tuple[Rejection, ...] = ()
        fallbacks: tuple[str, ...] = ()
        warnings: tuple[str, ...] = ()
        if len(anchors) > EXACT_ANCHORS:
            points, y, noise, member = merge(points, y, noise, EXACT_ANCHORS)
            fallbacks = (f"{len(anchors)} anchors were merged with neighbours into {len(y)}",)
        if self.robust:
            kept, proof = doubt(model.kernel, points, y, noise)
            strange = sorted(order[(~kept)[member].cpu().numpy()].tolist())
            if proof > max(LEAST_EVIDENCE, EVIDENCE_AN_ANCHOR * len(y)):
                rejected = tuple(Rejection(i, "contradicted by the others") for i in strange)
                points, y, noise = points[kept], y[kept], noise[kept]
            elif strange and proof > 0:
                named = ", ".join(f"#{i} ({anchors.depth_m[i]:.3g} m)" for i in strange[:5])
                more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
                warnings = (f"used, but contradicted by the others: {named}{more}",)
        posterior = Posterior.fit(model.kernel, points, y, noise)
        return Solved(posterior, spread(model, posterior), rejected, fallbacks, warnings)

    def decompose(self, mde_output: MDEOutput, anchors: Anchors) -> dict[str, Tensor]:
        """What log_scale is made of, as maps that sum to it: the global scale, the learned mean,
        the slope over log-depth, each linear mode, and each way of bending."""
        model = self.load()
        scene = model.scene(mde_output)
        return dense_parts(self.solve(scene, anchors, model).posterior, scene, each_mode=True)

    def speakers(
        self, mde_output: MDEOutput, anchors: Anchors, u: int, v: int
    ) -> Float64[np.ndarray, " n"]:
        """How much each anchor speaks for the pixel (u, v): ∂ℓ/∂yᵢ, 0 for those rejected."""
        model = self.load()
        scene = model.scene(mde_output)
        solved = self.solve(scene, anchors, model)
        if solved.fallbacks:
            raise InputError(f"{len(anchors)} anchors were merged, and no longer speak one by one")
        gone = {r.anchor for r in solved.rejected}
        order = [i for i in np.lexsort((anchors.depth_m, anchors.u, anchors.v)) if i not in gone]
        weights = np.zeros(len(anchors))
        point = scene.pixels(np.array([v]), np.array([u]))
        weights[order] = solved.posterior.speakers(point)[0].cpu().numpy()
        return weights


@dataclass(frozen=True, eq=False)
class Solved:
    """What the anchors said."""

    posterior: Posterior
    spread: float
    """Factor on the posterior's deviation that makes it honest for this image."""
    rejected: tuple[Rejection, ...]
    fallbacks: tuple[str, ...]
    warnings: tuple[str, ...]


def expected(model: FieldModel, scene: Scene) -> Recovery:
    """Depth without any anchor: the learned level and mean, with a deviation to match."""
    shape = scene.mde_output.shape
    mean = upsample(scene.maps.mean, shape)[0, 0]
    log_scale = mean + (float(scene.maps.level) - scene.level)
    cells = grid_shape(*shape, STD_CELLS)
    points, _ = scene.cells(cells)
    bent = model.kernel.variance(points) - model.kernel.constant**2
    variance = model.level_std**2 + model.calibration**2 * bent
    std_log = upsample(variance.sqrt().float().reshape(1, 1, *cells), shape)[0, 0]
    factor = math.exp(model.level_std)
    warning = (
        "no anchors: this is the depth to be expected of such an image, wrong by a factor of "
        f"{factor:.2g} or more in one case of three; one measured point removes most of that"
    )
    recovery = Recovery.from_log_scale(
        scene.mde_output, NO_ANCHORS, log_scale, warnings=(warning,), std_log=std_log
    )
    return dataclasses.replace(recovery, basis_maps=scene.maps.modes[0])


NO_ANCHORS = Anchors([], [], [])


def spread(model: FieldModel, posterior: Posterior) -> float:
    """Factor on the posterior's deviation that makes it honest for this image."""
    residual, deviation = posterior.leave_one_out()
    n = len(residual)
    temper = tempered(strangeness(residual, deviation), n, model.patience)
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


def merge(
    points: Points, y: Float[Tensor, " n"], noise: Float[Tensor, " n"], most: int
) -> tuple[Points, Float[Tensor, " m"], Float[Tensor, " m"], Int64[Tensor, " n"]]:
    """At most `most` anchors: those in one cell of (position, log-depth) become one.

    Where they differ by no more than their noise, it is their mean, with a mean's noise. Where they
    differ by more, the field has something to say there that a mean would blur, and the one in
    their middle speaks for all. The last value says which merged anchor each one went into.
    """
    size = 1 / 128
    while True:
        place = torch.cat([points.position / size, points.log_depth[:, None] / (8 * size)], dim=1)
        cells, member = place.floor().long().unique(dim=0, return_inverse=True)
        if len(cells) <= most:
            break
        size *= 1.15
    weight = noise**-2
    total = torch.zeros(len(cells), dtype=y.dtype, device=y.device).index_add(0, member, weight)

    def mean(values: Tensor) -> Tensor:
        flat = values.reshape(len(values), -1)
        summed = flat.new_zeros(len(cells), flat.shape[1])
        summed = summed.index_add(0, member, flat * weight[:, None]) / total[:, None]
        return summed.reshape(-1, *values.shape[1:])

    level = mean(y)
    deviation = (y - level[member]).abs()
    least = torch.full_like(level, torch.inf).scatter_reduce(0, member, deviation, "amin")
    middle = torch.zeros_like(cells[:, 0])
    (nearest,) = (deviation == least[member]).nonzero(as_tuple=True)
    middle[member[nearest]] = nearest
    alike = mean(deviation**2) <= mean(noise**2)

    def merged(values: Tensor) -> Tensor:
        flags = alike.reshape(-1, *[1] * (values.ndim - 1))
        return torch.where(flags, mean(values), values[middle])

    together = Points(*(merged(values) for values in vars(points).values()))
    return together, merged(y), torch.where(alike, total.rsqrt(), noise[middle]), member


def dense_mean(posterior: Posterior, scene: Scene) -> Float[Tensor, "h w"]:
    """E[ℓ] at every pixel."""
    parts = iter(dense_parts(posterior, scene).values())
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def dense_parts(
    posterior: Posterior, scene: Scene, *, each_mode: bool = False
) -> dict[str, Float[Tensor, "h w"]]:
    """E[ℓ] at every pixel, split by what explains it. Linear parts are made on the grid and
    upsampled; bends are made at full resolution, where log-depth has its edges."""
    kernel, alpha, anchors = posterior.kernel, posterior.alpha, posterior.anchors
    shape = scene.mde_output.shape
    log_depth = scene.log_depth
    flat = torch.ones_like(log_depth)
    constant = posterior.offset + kernel.constant**2 * alpha.sum()
    slope = kernel.slope**2 * (anchors.log_depth @ alpha)
    trust = 1 + kernel.doubt**2 * (anchors.mean @ alpha)
    parts = {
        "global": flat * constant.float(),
        "mean": upsample(scene.maps.mean, shape)[0, 0] * trust.float(),
        "slope": log_depth * slope.float(),
    }
    weights = posterior.weights().float()
    if each_mode:
        modes = upsample(scene.maps.modes, shape)[0] * weights[:, None, None]
        parts |= {f"mode {k}": mode for k, mode in enumerate(modes, start=1)}
    else:
        modes = torch.einsum("bkhw,k->bhw", scene.maps.modes, weights)
        parts["modes"] = upsample(modes[:, None], shape)[0, 0]
    if not kernel.terms:
        return parts
    bends = dense_bends(posterior, scene, each_mode)
    return parts | dict(zip(term_names(kernel) if each_mode else ["bends"], bends, strict=True))


def dense_bends(posterior: Posterior, scene: Scene, each_term: bool) -> Float[Tensor, "terms h w"]:
    """What the bending terms say at every pixel, each alone or in sum; in large images by
    interpolation between nodes."""
    height, width = scene.mde_output.shape
    middle = posterior.offset.new_tensor([width / 2, height / 2]) / scene.unit
    bends = Bends(posterior, middle)
    if height * width > EXACT_PIXELS:
        lattice = scene.lattice
        values = torch.cat([bends(seen) for seen in lattice.sights.split(bends.step)])
        if not each_term:
            values = values.sum(dim=1, keepdim=True)
        made = lattice.spread(values, scene)
    else:
        v, u = torch.meshgrid(
            torch.arange(height, device=scene.log_depth.device),
            torch.arange(width, device=scene.log_depth.device),
            indexing="ij",
        )
        pixels = torch.stack([u, v], dim=-1).flatten(0, 1).float()
        sights = Sights.at(scene, pixels, scene.log_depth.flatten())
        made = torch.cat([bends(seen) for seen in sights.split(bends.step)])
        if not each_term:
            made = made.sum(dim=1, keepdim=True)
    return made.mT.reshape(-1, height, width)


class Sights(NamedTuple):
    """What the bending terms look at in n points, so that a matrix product gives all distances."""

    design: Float[Tensor, "n c"]
    """Position p and log-depth d around their middles, 1, ‖p‖², d², and φ_j and ‖φ_j‖² of all j."""
    amplitude: Float[Tensor, "n j"]

    @classmethod
    def at(
        cls, scene: Scene, pixels: Float[Tensor, "n 2"], log_depth: Float[Tensor, " n"]
    ) -> Sights:
        """Points of an image by their pixel (u, v), which need not be whole, and log-depth."""
        layout, shape = scene.maps.layout, scene.mde_output.shape
        maps = scene.maps.maps[:, layout.modes : -1]
        values = sample(maps, pixels[None], shape)[0]
        middle = pixels.new_tensor([shape[1] / 2, shape[0] / 2])
        embedding, amplitude = values.split([layout.terms * layout.channels, layout.terms], dim=1)
        embedding = embedding.unflatten(1, (layout.terms, layout.channels))
        return cls(design((pixels - middle) / scene.unit, log_depth, embedding), amplitude)

    def split(self, step: int) -> Iterator[Sights]:
        """A few points at a time."""
        for design, amplitude in zip(
            self.design.split(step), self.amplitude.split(step), strict=True
        ):
            yield Sights(design, amplitude)


def design(
    position: Float[Tensor, "n 2"],
    log_depth: Float[Tensor, " n"],
    embedding: Float[Tensor, "n j e"],
) -> Float[Tensor, "n c"]:
    """The columns of `Sights.design`."""
    d = log_depth[:, None]
    squares = position.square().sum(dim=1, keepdim=True), d.square()
    columns = [position, d, torch.ones_like(d), *squares]
    return torch.cat([*columns, embedding.flatten(1), embedding.square().sum(dim=2)], dim=1)


class Bends:
    """The bending terms' parts of E[ℓ] at many points, in float32."""

    def __init__(self, posterior: Posterior, middle: Float[Tensor, " 2"]) -> None:
        self.terms, anchors = posterior.kernel.terms, posterior.anchors
        self.step = max(1, PAIRS_AT_ONCE // max(1, len(anchors)))
        position = anchors.position - middle
        count, terms, channels = anchors.embedding.shape
        self.products, self.weights = [], []
        for j, term in enumerate(self.terms):
            near, deep = float(term.position_length) ** -2, float(term.depth_length) ** -2
            own, d = anchors.embedding[:, j], anchors.log_depth
            # ‖x − a‖² = ‖x‖² − 2 xᵀa + ‖a‖², with the lengths on the anchors' side.
            square = (
                near * position.square().sum(dim=1) + deep * d.square() + own.square().sum(dim=1)
            )
            product = position.new_zeros(count, 6 + terms * (channels + 1))
            product[:, :2] = -2 * near * position
            product[:, 2] = -2 * deep * d
            product[:, 3], product[:, 4], product[:, 5] = square, near, deep
            product[:, 6 + j * channels : 6 + (j + 1) * channels] = -2 * own
            product[:, 6 + terms * channels + j] = 1
            self.products.append(product.float().mT.contiguous())
            weight = posterior.alpha * anchors.amplitude[:, j] * float(term.amplitude) ** 2
            self.weights.append(weight.float())

    def __call__(self, seen: Sights) -> Float[Tensor, "m terms"]:
        """Each term at some points."""
        made = []
        for term, product, weight in zip(self.terms, self.products, self.weights, strict=True):
            r = seen.design @ product
            if term.shape == "gaussian":
                correlation = r.mul_(-0.5).exp_()
            else:
                correlation = r.clamp_(min=0).sqrt_().neg_().exp_()
            made.append(correlation @ weight)
        return torch.stack(made, dim=1) * seen.amplitude


@dataclass(frozen=True, eq=False)
class Lattice:
    """A bilateral grid: nodes over position and log-depth, only those that a pixel needs.

    The bends are smooth in both, so they are made at the nodes and interpolated linearly between
    the eight around a pixel. Edges stay, because log-depth is a coordinate.
    """

    sights: Sights
    """What the kernel sees at the nodes."""
    cells: tuple[int, int]
    nearest: float
    spacing: float
    nodes: int
    """Nodes in log-depth, the first of them at `nearest`."""
    slot: Int32[Tensor, " all"]
    """The number of each possible node among those that are needed."""
    kept: tuple[Int32[Tensor, "m 8"], Float[Tensor, "m 8"]] | None
    """Numbers and weights of the nodes around every pixel, in images that are not too large."""

    @classmethod
    def of(cls, scene: Scene) -> Lattice:
        """The lattice of an image."""
        height, width = scene.mde_output.shape
        cells = grid_shape(height, width, round(SLICE_CELLS * max(height, width) / scene.unit))
        nearest, farthest = (float(x) for x in scene.log_depth.aminmax())
        spacing = max(scene.depth_step, (farthest - nearest) / MOST_NODES, 1e-6)
        nodes = int((farthest - nearest) / spacing) + 2
        needed = torch.zeros(
            math.prod(cells) * nodes, dtype=torch.bool, device=scene.maps.maps.device
        )
        empty = torch.zeros(0, dtype=torch.int32)
        plan = cls(
            Sights(empty[:, None].float(), empty[:, None].float()),
            cells,
            nearest,
            spacing,
            nodes,
            empty,
            None,
        )
        for band in bands(height, width):
            needed[plan.around(scene, band)[0].flatten()] = True
        (made,) = needed.nonzero(as_tuple=True)
        slot = needed.cumsum(0, dtype=torch.int32) - 1
        cell = made.div(nodes, rounding_mode="floor")
        # Cells' centres in pixels, whose own centres are at integers.
        u = (cell % cells[1] + 0.5) * (width / cells[1]) - 0.5
        v = (cell.div(cells[1], rounding_mode="floor") + 0.5) * (height / cells[0]) - 0.5
        depth = nearest + (made % nodes) * spacing
        sights = Sights.at(scene, torch.stack([u, v], dim=1), depth)
        plan = dataclasses.replace(plan, sights=sights, slot=slot)
        if height * width > KEPT_PIXELS:
            return plan
        index, weight = plan.around(scene, slice(0, height))
        return dataclasses.replace(plan, kept=(slot[index], weight))

    def around(
        self, scene: Scene, rows: slice
    ) -> tuple[Int64[Tensor, "m 8"], Float[Tensor, "m 8"]]:
        """The eight nodes around each pixel of some rows, among all that are possible, and their
        weights."""
        height, width = scene.mde_output.shape
        device = scene.log_depth.device

        def between(first: int, last: int, size: int, cells: int) -> tuple[Tensor, Tensor]:
            """The cell before each pixel, and how far the pixel is on its way to the next."""
            at = (torch.arange(first, last, device=device) + 0.5) * (cells / size) - 0.5
            at = at.clamp(0, cells - 1)
            before = at.floor().clamp(max=max(cells - 2, 0))
            return before.long(), at - before

        v, along_v = between(rows.start, rows.stop, height, self.cells[0])
        u, along_u = between(0, width, width, self.cells[1])
        at = (scene.log_depth[rows] - self.nearest) / self.spacing
        node = at.floor().clamp(0, self.nodes - 2)
        along_d = at - node
        indices, weights = [], []
        for dv in (0, 1):
            weight_v = (along_v if dv else 1 - along_v)[:, None]
            row = (v + dv).clamp(max=self.cells[0] - 1)[:, None] * self.cells[1]
            for du in (0, 1):
                weight_u = along_u if du else 1 - along_u
                cell = row + (u + du).clamp(max=self.cells[1] - 1)
                for dd in (0, 1):
                    indices.append(cell * self.nodes + node.long() + dd)
                    weights.append(weight_v * weight_u * (along_d if dd else 1 - along_d))
        return torch.stack(indices, dim=-1).flatten(0, 1), torch.stack(weights, dim=-1).flatten(
            0, 1
        )

    def spread(self, values: Float[Tensor, "n t"], scene: Scene) -> Float[Tensor, "m t"]:
        """Values at the nodes, interpolated at every pixel."""
        height, width = scene.mde_output.shape
        if self.kept is not None:
            return interpolated(values, *self.kept)
        made = []
        for band in bands(height, width):
            index, weight = self.around(scene, band)
            made.append(interpolated(values, self.slot[index], weight))
        return torch.cat(made)


def bands(height: int, width: int) -> Iterator[slice]:
    """Rows of an image, a few at a time."""
    step = max(1, PAIRS_AT_ONCE // width)
    for first in range(0, height, step):
        yield slice(first, min(first + step, height))


def interpolated(
    values: Float[Tensor, "n t"], index: Int32[Tensor, "m 8"], weight: Float[Tensor, "m 8"]
) -> Float[Tensor, "m t"]:
    """Weighted sums of some rows of `values`."""
    return nnf.embedding_bag(index, values, mode="sum", per_sample_weights=weight)


def dense_std(posterior: Posterior, scene: Scene) -> Float[Tensor, "h w"]:
    """Standard deviation of ℓ, made on a coarse grid and upsampled."""
    shape = grid_shape(*scene.mde_output.shape, STD_CELLS)
    points, _ = scene.cells(shape)
    std = posterior.variance(points).sqrt().float()
    return upsample(std.reshape(1, 1, *shape), scene.mde_output.shape)[0, 0]
