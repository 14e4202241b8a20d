"""`field`: the ridge solve seen as a Gaussian process, with a kernel that bends and knows doubt."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.cues import grid_image, grid_shape, log_depth_and_level, sample, upsample
from scalefield.embedding import FieldMaps, FieldNet, FieldNetConfig, Layout
from scalefield.errors import InputError
from scalefield.files import read_bytes, write_atomic, write_json
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

EXACT_PAIRS = 1 << 24
"""Above so many pixel-anchor pairs the dense field is interpolated from nodes."""
SLICE_CELLS = 140
"""Nodes in the square root of the image's area; 640×480 pixels have one every four."""
NODES_A_LENGTH = 24
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""

STD_CELLS = 80
"""Cells along the longer side on which the deviation, which is smooth, is computed."""

LEAST_EVIDENCE = 6.0
EVIDENCE_AN_ANCHOR = 0.15
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
        try:
            values = json.loads(read_bytes(path))
            kernel, config = values.pop("kernel"), values.pop("net")
            terms = tuple(Term(**term) for term in kernel.pop("terms"))
            config["layout"] = Layout(**config["layout"])
            config["dilations"] = tuple(config["dilations"])
            net = FieldNet(FieldNetConfig(**config))
            model = cls(kernel=Kernel(terms=terms, **kernel), net=net, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(f"{path}: not a field model's configuration ({e})") from None
        try:
            state = load_file(path.with_name("model.safetensors"))
            net.load_state_dict({name: tensor.float() for name, tensor in state.items()})
        except (OSError, SafetensorError, RuntimeError) as e:
            raise InputError(f"{folder}: not the weights of such a field ({e})") from None
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
            mde_output.memo[self.net] = Scene(mde_output, maps, float(level))
        return mde_output.memo[self.net]


@lru_cache(maxsize=4)
def load_field(name: str | Path) -> FieldModel:
    """A field model by shipped name or folder."""
    shipped = WEIGHTS / name
    return FieldModel.load(shipped if shipped.is_dir() else name)


@dataclass(frozen=True, eq=False)
class Scene:
    """An image as the kernel sees it: what does not depend on the anchors."""

    mde_output: MDEOutput
    maps: FieldMaps
    level: float
    """Median of log D_MDE, which log-depth is taken around."""

    @property
    def unit(self) -> float:
        """Pixels in the square root of the image's area."""
        return math.sqrt(math.prod(self.mde_output.shape))

    @property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE around its median, at full resolution."""
        return self.mde_output.mde_depth.log() - self.level

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
            elif proof > LEAST_EVIDENCE / 2:
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
    """At most `most` anchors: those in one cell of (position, log-depth) become their mean.

    A cell's noise is that of a mean, and not less than its members' disagreement. The last value
    says which merged anchor each one went into.
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

    merged = Points(*(mean(values) for values in vars(points).values()))
    level = mean(y)
    spread = mean((y - level[member]) ** 2)
    return merged, level, (1 / total + spread).sqrt(), member


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
    log_depth = scene.log_depth.float()
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
    bends = dense_bends(posterior, scene, log_depth)
    return parts | dict(zip(term_names(kernel), bends, strict=True))


def dense_bends(
    posterior: Posterior, scene: Scene, log_depth: Float[Tensor, "h w"]
) -> list[Float[Tensor, "h w"]]:
    """Each term's part of E[ℓ] at every pixel; interpolated where the exact sum costs too much."""
    height, width = log_depth.shape
    bends = Bends(posterior)
    if not posterior.kernel.terms:
        return []
    if height * width * len(posterior.anchors) > EXACT_PAIRS:
        values = sliced_bends(bends, scene, log_depth)
        return list(values.mT.reshape(-1, height, width))
    # Bilinear upsampling as two matrices: a band of rows at a time needs no map of full size.
    maps = scene.maps.maps[0, scene.maps.layout.modes : -1]
    down, across = (
        between_matrix(maps.shape[1], height, maps),
        between_matrix(maps.shape[2], width, maps),
    )
    wide = maps @ across
    u = torch.arange(width, device=maps.device) / scene.unit
    values = torch.empty(height, width, len(posterior.kernel.terms), device=maps.device)
    band = max(1, PAIRS_AT_ONCE // (width * max(1, len(posterior.anchors))))
    for first in range(0, height, band):
        rows = slice(first, min(first + band, height))
        v = torch.arange(rows.start, rows.stop, device=maps.device) / scene.unit
        position = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).flatten(0, 1)
        some = torch.einsum("chw,hr->rwc", wide, down[:, rows]).flatten(0, 1)
        made = bends(scene.maps.layout, position, log_depth[rows].flatten(), some)
        values[rows] = made.reshape(-1, width, made.shape[1])
    return list(values.permute(2, 0, 1))


def between_matrix(cells: int, pixels: int, like: Tensor) -> Float[Tensor, "c p"]:
    """What `upsample` multiplies one side of a grid by."""
    return upsample(torch.eye(cells).to(like)[None, None], (cells, pixels))[0, 0]


class Bends:
    """The bending terms' parts of E[ℓ] at many points, in float32."""

    def __init__(self, posterior: Posterior) -> None:
        self.kernel, anchors = posterior.kernel, posterior.anchors
        self.centre = anchors.position.mean(dim=0), anchors.log_depth.mean()
        self.anchors, self.weights = [], []
        for j, term in enumerate(self.kernel.terms):
            z = self.scaled(j, anchors.position, anchors.log_depth, anchors.embedding[:, j])
            square = z.square().sum(dim=1, keepdim=True)
            # [x, ‖x‖², 1] · [−2a, 1, ‖a‖²] = ‖x − a‖², in one matrix product.
            self.anchors.append(
                torch.cat([-2 * z, torch.ones_like(square), square], dim=1).float().mT
            )
            weight = posterior.alpha * anchors.amplitude[:, j] * float(term.amplitude) ** 2
            self.weights.append(weight.float())

    def scaled(self, j: int, position: Tensor, log_depth: Tensor, embedding: Tensor) -> Tensor:
        """z_j around the anchors' middle, where float32 is fine enough."""
        term = self.kernel.terms[j]
        position = (position - self.centre[0].to(position)) / float(term.position_length)
        depth = (log_depth - self.centre[1].to(log_depth)) / float(term.depth_length)
        return torch.cat([position, depth[:, None], embedding], dim=1)

    def __call__(
        self,
        layout: Layout,
        position: Float[Tensor, "m 2"],
        log_depth: Float[Tensor, " m"],
        maps: Float[Tensor, "m c"],
    ) -> Float[Tensor, "m terms"]:
        """At points whose embeddings and amplitudes are `maps`."""
        made = []
        for j, term in enumerate(self.kernel.terms):
            embedding = maps[:, j * layout.channels : (j + 1) * layout.channels]
            z = self.scaled(j, position, log_depth, embedding)
            square = z.square().sum(dim=1, keepdim=True)
            r = torch.cat([z, square, torch.ones_like(square)], dim=1) @ self.anchors[j]
            if term.shape == "gaussian":
                correlation = r.mul_(-0.5).exp_()
            else:
                correlation = r.clamp_(min=0).sqrt_().neg_().exp_()
            amplitude = maps[:, layout.terms * layout.channels + j]
            made.append((correlation @ self.weights[j]) * amplitude)
        return torch.stack(made, dim=1)


def sliced_bends(
    bends: Bends, scene: Scene, log_depth: Float[Tensor, "h w"]
) -> Float[Tensor, "m terms"]:
    """Every pixel's bends in a large image, by interpolation.

    The bends are smooth in position and log-depth, so they are made at the nodes of a coarse grid
    over both, only where a pixel needs them, and interpolated linearly: a bilateral grid. Edges
    stay, because log-depth is a coordinate.
    """
    height, width = log_depth.shape
    device = log_depth.device
    rows, columns = grid_shape(height, width, round(SLICE_CELLS * max(height, width) / scene.unit))
    nearest = log_depth.min()
    reach = float(log_depth.max() - nearest)
    spacing = min(float(term.depth_length) for term in bends.kernel.terms) / NODES_A_LENGTH
    spacing = max(spacing, reach / MOST_NODES, 1e-6)
    nodes = int(reach / spacing) + 2

    def between(size: int, cells: int) -> tuple[Tensor, Tensor]:
        """The cell before each pixel, and how far the pixel is on its way to the next."""
        at = (torch.arange(size, device=device) + 0.5) * (cells / size) - 0.5
        at = at.clamp(0, cells - 1)
        before = at.floor().clamp(max=max(cells - 2, 0))
        return before.long(), at - before

    (v, along_v), (u, along_u) = between(height, rows), between(width, columns)
    at = (log_depth - nearest) / spacing
    node = at.floor().clamp(0, nodes - 2)
    along_d = at - node
    corners = []  # index and weight of the eight nodes around each pixel
    for dv in (0, 1):
        weight_v = along_v if dv else 1 - along_v
        for du in (0, 1):
            weight_u = along_u if du else 1 - along_u
            cell = (v + dv).clamp(max=rows - 1)[:, None] * columns + (u + du).clamp(max=columns - 1)
            for dd in (0, 1):
                weight = weight_v[:, None] * weight_u * (along_d if dd else 1 - along_d)
                corners.append((cell * nodes + node.long() + dd, weight))
    needed = torch.zeros(rows * columns * nodes, dtype=torch.bool, device=device)
    for index, _ in corners:
        needed[index.flatten()] = True
    (made,) = needed.nonzero(as_tuple=True)
    slot = needed.cumsum(0, dtype=torch.int32) - 1
    cell, depth_node = made.div(nodes, rounding_mode="floor"), made % nodes
    # Cells' centres in pixels, whose own centres are at integers.
    x = (cell % columns + 0.5) * (width / columns) - 0.5
    y = (cell.div(columns, rounding_mode="floor") + 0.5) * (height / rows) - 0.5
    position = torch.stack([x, y], dim=1)
    layout = scene.maps.layout
    maps = scene.maps.maps[:, layout.modes : -1]
    values = torch.empty(len(made), len(bends.kernel.terms), device=device)
    step = max(1, PAIRS_AT_ONCE // len(bends.weights[0]))
    for first in range(0, len(made), step):
        some = slice(first, first + step)
        seen = sample(maps, position[None, some], (height, width))[0]
        depth = nearest + depth_node[some] * spacing
        values[some] = bends(layout, position[some] / scene.unit, depth, seen)
    total = torch.zeros(height * width, values.shape[1], device=device)
    for index, weight in corners:
        total += values[slot[index.flatten()].long()] * weight.reshape(-1, 1)
    return total


def dense_std(posterior: Posterior, scene: Scene) -> Float[Tensor, "h w"]:
    """Standard deviation of ℓ, made on a coarse grid and upsampled."""
    shape = grid_shape(*scene.mde_output.shape, STD_CELLS)
    points, _ = scene.cells(shape)
    std = posterior.variance(points).sqrt().float()
    return upsample(std.reshape(1, 1, *shape), scene.mde_output.shape)[0, 0]
