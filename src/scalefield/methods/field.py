"""`field`: the ridge solve seen as a Gaussian process, with a kernel that bends and knows doubt."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.cues import grid_shape, sample, upsample
from scalefield.errors import InputError
from scalefield.files import read_bytes, write_json
from scalefield.generator import BasisMaps
from scalefield.kernel import Kernel, Points, Term
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import WEIGHTS, basis_maps, load_generator
from scalefield.posterior import Posterior, consistent
from scalefield.result import Recovery, Rejection
from scalefield.targets import targets

EXACT_ANCHORS = 2000
"""More anchors than this are merged with their neighbours before the solve."""

PAIRS_AT_ONCE = 1 << 18
"""Pixel-anchor pairs that are worked on at once: what a processor's cache holds."""

EXACT_PAIRS = 1 << 28
"""Above so many pixel-anchor pairs the dense field is interpolated from nodes."""
SLICE_CELLS = 160
"""Nodes along the longer side; an image of 640 pixels has one every four."""
NODES_A_LENGTH = 24
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""

STD_CELLS = 80
"""Cells along the longer side on which the deviation, which is smooth, is computed."""

LEAST_NOISE = 1e-3
"""However precise a measurement, its pixel and the map's agree to a part in a thousand at best."""


@dataclass(frozen=True)
class FieldModel:
    """A learned kernel, and the generator whose basis maps are its linear modes."""

    kernel: Kernel
    generator: str = "basis-depth-k50"
    """One without features, so that the model serves any depth map."""
    calibration: float = 1.0
    """Factor on the posterior's standard deviation, chosen on val."""
    outlier_limit: float = 2.5
    """Calibrated leave-one-out deviations beyond which an anchor counts as contradicted."""
    contamination: float = 0.2
    """Share of contradicted anchors from which they are rejected, not only reported: a few among
    many are mostly objects that the MDE missed, and dropping those makes the field worse."""

    def save(self, folder: str | Path) -> None:
        """Write config.json: the model is these few numbers."""
        write_json(Path(folder) / "config.json", dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: str | Path) -> FieldModel:
        """Read what `save` wrote."""
        path = Path(folder) / "config.json"
        try:
            values = json.loads(read_bytes(path))
            kernel = values.pop("kernel")
            terms = tuple(Term(**term) for term in kernel.pop("terms"))
            return cls(kernel=Kernel(terms=terms, **kernel), **values)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise InputError(f"{path}: not a field model's configuration ({e})") from None


@lru_cache(maxsize=4)
def load_field(name: str | Path) -> FieldModel:
    """A field model by shipped name or folder."""
    shipped = WEIGHTS / name
    return FieldModel.load(shipped if shipped.is_dir() else name)


@dataclass(frozen=True)
class Field:
    """A Gaussian process over position, depth and basis maps: bends to anchors, knows its doubt.

    ℓ minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ‖²_k: `basis` is the case of a kernel with linear modes
    only. It needs no features and no image, and serves any number of anchors.
    """

    model: str | Path | FieldModel = "field"
    """The shipped model, a folder that `FieldModel.save` wrote, or a model."""
    robust: bool = True
    """Reject anchors where the others contradict many of them; a few are only reported, and of
    fewer than five anchors none is doubted."""

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """Recover from one anchor or more."""
        model, maps = self.prepare(mde_output)
        return self.fit(mde_output, anchors, model, maps)

    def prepare(self, mde_output: MDEOutput) -> tuple[FieldModel, BasisMaps]:
        """What does not depend on the anchors: the model, and the image's basis maps."""
        model = self.model if isinstance(self.model, FieldModel) else load_field(self.model)
        generator = load_generator(model.generator, mde_output.prediction.device)
        return model, basis_maps(generator, mde_output)

    def fit(
        self, mde_output: MDEOutput, anchors: Anchors, model: FieldModel, maps: BasisMaps
    ) -> Recovery:
        """Only the solve and the field it gives, for maps made before."""
        posterior, rejected, notes = self.solve(mde_output, anchors, model, maps)
        log_scale = dense_mean(posterior, mde_output, maps)
        recovery = Recovery.from_log_scale(
            mde_output, anchors, log_scale, rejected=rejected, **notes
        )
        std_log = dense_std(posterior, mde_output, maps) * model.calibration
        weights = model.kernel.linear**2 * (posterior.anchors.basis.mT @ posterior.alpha)
        return dataclasses.replace(
            recovery,
            std_log=torch.where(mde_output.valid, std_log, torch.nan),
            weights=weights.float(),
            basis_maps=maps.basis_maps[0],
            gating=maps.gating[0],
        )

    def solve(
        self, mde_output: MDEOutput, anchors: Anchors, model: FieldModel, maps: BasisMaps
    ) -> tuple[Posterior, tuple[Rejection, ...], dict[str, tuple[str, ...]]]:
        """The posterior, the anchors rejected, and the report's `fallbacks` and `warnings`."""
        # In an order of their own, so that rounding does not depend on the user's.
        order = np.lexsort((anchors.depth_m, anchors.u, anchors.v))
        ordered = anchors[order]
        points = anchor_points(mde_output, ordered, maps)
        device = points.log_depth.device
        y = torch.from_numpy(targets(mde_output, ordered)).to(device)
        noise = torch.from_numpy(noise_log(ordered, float(model.kernel.noise))).to(device)
        member = torch.arange(len(anchors), device=device)
        notes: dict[str, tuple[str, ...]] = {}
        if len(anchors) > EXACT_ANCHORS:
            points, y, noise, member = merge(points, y, noise, EXACT_ANCHORS)
            merged = f"{len(anchors)} anchors were merged with neighbours into {len(y)}"
            notes["fallbacks"] = (merged,)
        rejected: tuple[Rejection, ...] = ()
        if self.robust:
            limit = model.outlier_limit * model.calibration
            # Six anchors are what it takes to know a scene; beyond them a share is meaningful.
            few = max(1.0, model.contamination * (len(y) - 6))
            kept = consistent(model.kernel, points, y, noise, limit=limit, few=few)
            strange = sorted(order[(~kept)[member].cpu().numpy()].tolist())
            if int((~kept).sum()) > few:
                rejected = tuple(Rejection(i, "contradicted by the others") for i in strange)
                points, y, noise = points[kept], y[kept], noise[kept]
            elif strange:
                named = ", ".join(f"#{i} ({anchors.depth_m[i]:.3g} m)" for i in strange[:5])
                more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
                notes["warnings"] = (f"used, but contradicted by the others: {named}{more}",)
        return Posterior.fit(model.kernel, points, y, noise), rejected, notes

    def decompose(self, mde_output: MDEOutput, anchors: Anchors) -> dict[str, Tensor]:
        """What log_scale is made of, as maps that sum to it: the anchors' median, the global
        correction, the linear modes, and each way of bending."""
        model, maps = self.prepare(mde_output)
        posterior, _, _ = self.solve(mde_output, anchors, model, maps)
        return dense_parts(posterior, mde_output, maps)


def noise_log(anchors: Anchors, default: float) -> Float64[np.ndarray, " n"]:
    """Standard deviation of each anchor's log-depth: its own where it is known."""
    if anchors.sigma_m is None:
        return np.full(len(anchors), default)
    return np.hypot(anchors.sigma_m / anchors.depth_m, LEAST_NOISE)


def anchor_points(mde_output: MDEOutput, anchors: Anchors, maps: BasisMaps) -> Points:
    """The pixels that the anchors fall in, as the kernel sees them, float64."""
    rows, columns = anchors.pixels(mde_output.shape)
    device = mde_output.prediction.device
    pixels = torch.from_numpy(np.stack([columns, rows], axis=1)).to(device).double()
    basis = sample(maps.basis_maps.double(), pixels[None], mde_output.shape)[0]
    log_depth = mde_output.mde_depth[rows, columns].double().log()
    return Points(pixels / max(mde_output.shape), log_depth, basis)


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
        weighted = values * (weight if values.ndim == 1 else weight[:, None])
        summed = values.new_zeros(len(cells), *values.shape[1:]).index_add(0, member, weighted)
        return summed / (total if values.ndim == 1 else total[:, None])

    merged = Points(mean(points.position), mean(points.log_depth), mean(points.basis))
    level = mean(y)
    spread = mean((y - level[member]) ** 2)
    return merged, level, (1 / total + spread).sqrt(), member


def dense_parts(
    posterior: Posterior, mde_output: MDEOutput, maps: BasisMaps
) -> dict[str, Float[Tensor, "h w"]]:
    """E[ℓ] at every pixel, split by what explains it. Linear parts are made on the grid and
    upsampled; bends are made at full resolution, where log-depth has its edges."""
    kernel, alpha = posterior.kernel, posterior.alpha.float()
    shape = mde_output.shape
    flat = torch.ones(shape, device=alpha.device)
    weights = (kernel.linear**2 * (posterior.anchors.basis.mT @ posterior.alpha)).float()
    modes = torch.einsum("bkhw,k->bhw", maps.basis_maps, weights)
    parts = {
        "median": flat * posterior.offset.float(),
        "global": flat * (kernel.constant**2 * posterior.alpha.sum()).float(),
        "modes": upsample(modes[:, None], shape)[0, 0],
    }
    bends = dense_bends(kernel, posterior.anchors.to(torch.float32), alpha, mde_output)
    names = [f"{term.shape} {i}" for i, term in enumerate(kernel.terms, start=1)]
    return parts | dict(zip(names, bends, strict=True))


def dense_bends(
    kernel: Kernel, anchors: Points, alpha: Float[Tensor, " n"], mde_output: MDEOutput
) -> list[Float[Tensor, "h w"]]:
    """Each term's part of E[ℓ] at every pixel; interpolated where the exact sum costs too much."""
    height, width = mde_output.shape
    log_depth = mde_output.mde_depth.log().float()
    v, u = (torch.arange(n, device=alpha.device) for n in (height, width))
    if height * width * len(alpha) <= EXACT_PAIRS:
        position = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).flatten(0, 1)
        bends = bends_at(kernel, anchors, alpha, position / max(height, width), log_depth.flatten())
    else:
        bends = sliced_bends(kernel, anchors, alpha, log_depth)
    return list(bends.mT.reshape(-1, height, width))


def bends_at(
    kernel: Kernel,
    anchors: Points,
    alpha: Float[Tensor, " n"],
    position: Float[Tensor, "m 2"],
    log_depth: Float[Tensor, " m"],
) -> Float[Tensor, "m terms"]:
    """Each term's part of E[ℓ] at points: what `Term` computes, a cache's worth at a time."""
    bends = torch.empty(len(log_depth), len(kernel.terms), device=alpha.device)
    step = max(1, PAIRS_AT_ONCE // len(alpha))
    for first in range(0, len(log_depth), step):
        some = slice(first, first + step)
        place = (position[some, :1] - anchors.position[:, 0]).square_()
        place += (position[some, 1:] - anchors.position[:, 1]).square_()
        depth = (log_depth[some, None] - anchors.log_depth).square_()
        for i, term in enumerate(kernel.terms):
            r = place * float(term.position_length) ** -2
            r.add_(depth, alpha=float(term.depth_length) ** -2)
            if term.shape == "gaussian":
                correlation = r.mul_(-0.5).exp_()
            else:
                correlation = r.sqrt_().neg_().exp_()
            bends[some, i] = correlation @ (alpha * float(term.amplitude) ** 2)
    return bends


def sliced_bends(
    kernel: Kernel, anchors: Points, alpha: Float[Tensor, " n"], log_depth: Float[Tensor, "h w"]
) -> Float[Tensor, "m terms"]:
    """`bends_at` for every pixel of a large image, by interpolation.

    The bends are smooth in position and log-depth, so they are made at the nodes of a coarse grid
    over both, only where a pixel needs them, and interpolated linearly: a bilateral grid. Edges
    stay, because log-depth is a coordinate.
    """
    height, width = log_depth.shape
    rows, columns = grid_shape(height, width, SLICE_CELLS)
    nearest = log_depth.min()
    reach = float(log_depth.max() - nearest)
    spacing = min(float(term.depth_length) for term in kernel.terms) / NODES_A_LENGTH
    spacing = max(spacing, reach / MOST_NODES, 1e-6)
    nodes = int(reach / spacing) + 2

    def between(size: int, cells: int) -> tuple[Tensor, Tensor]:
        """The cell before each pixel, and how far the pixel is on its way to the next."""
        at = (torch.arange(size, device=alpha.device) + 0.5) * (cells / size) - 0.5
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
    needed = torch.zeros(rows * columns * nodes, dtype=torch.bool, device=alpha.device)
    for index, _ in corners:
        needed[index.flatten()] = True
    (made,) = needed.nonzero(as_tuple=True)
    slot = needed.cumsum(0, dtype=torch.int32) - 1
    cell, depth_node = made.div(nodes, rounding_mode="floor"), made % nodes
    # Cells' centres in pixels, whose own centres are at integers.
    x = (cell % columns + 0.5) * (width / columns) - 0.5
    y = (cell.div(columns, rounding_mode="floor") + 0.5) * (height / rows) - 0.5
    position = torch.stack([x, y], dim=1) / max(height, width)
    values = bends_at(kernel, anchors, alpha, position, nearest + depth_node * spacing)
    total = torch.zeros(height * width, values.shape[1], device=alpha.device)
    for index, weight in corners:
        total += values[slot[index.flatten()].long()] * weight.reshape(-1, 1)
    return total


def dense_mean(
    posterior: Posterior, mde_output: MDEOutput, maps: BasisMaps
) -> Float[Tensor, "h w"]:
    """E[ℓ] at every pixel."""
    parts = iter(dense_parts(posterior, mde_output, maps).values())
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def grid_points(
    mde_output: MDEOutput, maps: BasisMaps, shape: tuple[int, int] | None = None
) -> Points:
    """The middle pixels of a grid's cells, as the kernel sees them; the grid is that of the maps
    unless another shape is given."""
    height, width = mde_output.shape
    rows, columns = shape or maps.basis_maps.shape[2:]
    device = maps.basis_maps.device
    v = ((torch.arange(rows, device=device) + 0.5) * (height / rows)).long()
    u = ((torch.arange(columns, device=device) + 0.5) * (width / columns)).long()
    pixels = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).flatten(0, 1).float()
    log_depth = mde_output.mde_depth.log().float()[v][:, u].flatten()
    basis = sample(maps.basis_maps, pixels[None], mde_output.shape)[0]
    return Points(pixels / max(height, width), log_depth, basis)


def dense_std(posterior: Posterior, mde_output: MDEOutput, maps: BasisMaps) -> Float[Tensor, "h w"]:
    """Standard deviation of ℓ, made on a coarse grid and upsampled."""
    shape = grid_shape(*mde_output.shape, STD_CELLS)
    std = posterior.variance(grid_points(mde_output, maps, shape)).sqrt()
    return upsample(std.reshape(1, 1, *shape), mde_output.shape)[0, 0]
