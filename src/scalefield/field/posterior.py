"""The field given anchors: fit once, then evaluate anywhere.

`fit` estimates the linear part from blocks of anchors (`blocks`). `FieldFit` evaluates the
stationary part by local kriging, a nearest-neighbour Gaussian process (Vecchia, 1988; Datta,
Banerjee, Finley and Gelfand, 2016; MuyGPs, Muyskens, Priest, Goumiri and Schneider, 2021): at every
node of a lattice over the image (`lattice`) the k nearest anchors make one small system, and all
systems are factorised in one batch. With no more than k anchors every node has the exact system.
The cost hardly depends on the number of anchors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.field.blocks import Blocks, BlockSolutions, LinearPosterior, LinearPrior, Memo
from scalefield.field.cholesky import Cholesky
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import (
    LINEAR_TERMS,
    Features,
    Inputs,
    Kernel,
    KernelInputs,
    SumFeatures,
    SumInputs,
    TermFeatures,
    linear_columns,
)
from scalefield.field.lattice import Lattice, Window, cell_weights, nearest
from scalefield.field.observations import Observations
from scalefield.runtime.threads import map_threads

TINY = 1e-12
"""Least prior variance, where a kernel has no stationary part."""
CHUNK_NODES = 1024
"""Local systems that one thread of a processor solves at once."""
CHUNK_PIXELS = 20 << 10
"""Pixels that one thread of a processor evaluates at once: their covariances with a few dozen
anchors stay in its cache."""
CUDA_PIXELS = 3 << 16
"""Pixels that are evaluated at once on a GPU."""
DIRECTIONS = 16
"""Half-planes that stand for the convex hull of the anchors."""
MIN_MARGIN = 0.02
"""Least distance from the hull of n anchors at which the field is extrapolated, in units of the
position; it is 1/n where that is more, for the hull of few anchors leaves out much of the image."""
DEPTH_MARGIN = 0.4
"""Log-depth beyond the nearest and the farthest of many anchors at which the field is extrapolated;
1/n is added."""


class Calibration(NamedTuple):
    """Factors that turn the posterior's standard deviation into that of the errors.

    An estimator that errs half as much as in training has leave-one-out residuals half as large,
    and then the standard deviation is halved too: but only at pixels that the anchors determine
    about as well as they determine each other. Where more of the prior variance is left, the
    learned factor holds, because no residual tells about such pixels.
    """

    learned: float = 1.0
    """The model's factor for all images."""
    factor: float | Float[Tensor, ""] = 1.0
    """This image's factor, from leave-one-out residuals; near 1 with few anchors."""
    remaining: float | Float[Tensor, ""] = 1.0
    """Median share of the prior variance that is left at an anchor given the others."""

    @property
    def at_anchors(self) -> float | Float[Tensor, ""]:
        """The factor at pixels that are determined as well as the anchors are by each other."""
        return self.learned * self.factor

    def std(
        self,
        variance: Float[Tensor, "*m"],
        prior: Float[Tensor, "*m"],
        lost: float | Float[Tensor, "*m"] = 0.0,
    ) -> Float[Tensor, "*m"]:
        """Calibrated standard deviation, from the posterior variance and the prior variance of the
        stationary part, of which a share is added where the field is extrapolated."""
        if not isinstance(self.factor, Tensor):
            factor: float | Tensor = self.factor
        else:
            remaining = (variance / prior.clamp(min=TINY)).clamp(min=TINY)
            weight = (self.remaining / remaining).clamp(max=1)
            log_factor = self.factor.log()
            factor = torch.where(log_factor < 0, weight * log_factor, log_factor).exp()
        return ((self.learned * factor) ** 2 * variance + lost * prior).sqrt()


UNCALIBRATED = Calibration()
"""The standard deviation of the posterior itself."""


class Extent(NamedTuple):
    """The part of an image and of its depths that observations enclose."""

    reach: Float[Tensor, " k"]
    """Farthest position along each of `DIRECTIONS` directions: half-planes around the hull."""
    depth: Float[Tensor, " 2"]
    """Minus the least log-depth, and the largest."""
    few: Float[Tensor, ""]
    """1/n for n pixels."""

    @classmethod
    def of(cls, observations: Observations) -> Extent:
        """The extent of the observations of the mask."""
        given, mask = observations.inputs, observations.mask
        pixels = given.pixels if isinstance(given, SumInputs) else given
        if isinstance(given, SumInputs):
            mask = (given.weights * mask[:, None] != 0).any(dim=0)
        out = ~mask[:, None]
        along = pixels.position @ cls.directions(pixels.position)
        along = along.masked_fill(out, -torch.inf)
        depth = torch.stack([-pixels.log_depth, pixels.log_depth], dim=1)
        depth = depth.masked_fill(out, -torch.inf)
        return cls(along.amax(dim=0), depth.amax(dim=0), 1 / mask.sum().clamp(min=1).to(along))

    @staticmethod
    def directions(like: Tensor) -> Float[Tensor, "2 k"]:
        """Unit vectors, of the type and on the device of a tensor."""
        angle = torch.arange(DIRECTIONS, device=like.device).to(like) * (2 * math.pi / DIRECTIONS)
        return torch.stack([angle.cos(), angle.sin()])

    def beyond(self, position: Float[Tensor, "m 2"]) -> Float[Tensor, " m"]:
        """Distance of positions from the hull, in units of the margin; 0 within it."""
        along = position @ self.directions(position) - self.reach.to(position)
        return along.amax(dim=1).clamp(min=0) / self.few.to(position).clamp(min=MIN_MARGIN)

    def share(
        self, beyond: Float[Tensor, "*s"], log_depth: Float[Tensor, "*s"]
    ) -> Float[Tensor, "*s"]:
        """How far pixels are enclosed: near 1 within the extent, near 0 well beyond it in position
        or in depth, from their distance `beyond` the hull."""
        nearest, farthest = self.depth.to(log_depth)
        excess = torch.maximum(-log_depth - nearest, log_depth - farthest).clamp(min=0)
        return torch.exp(-(beyond**4) - (excess / (DEPTH_MARGIN + self.few.to(excess))) ** 4)


class LocalSystems(NamedTuple):
    """The systems C of the anchors near m positions, solved and evaluated at a pixel of each."""

    neighbours: Int64[Tensor, "m k"]
    mask: Bool[Tensor, "m k"]
    """Whether the position has so many neighbours."""
    solved: Float[Tensor, "m k r"]
    """C⁻¹ applied to r columns of values at the neighbours; 0 where there is no neighbour."""
    smoother: Float[Tensor, "m k"]
    """C⁻¹k(x): weights of the neighbours' residuals in the mean at the pixel."""
    columns: Float[Tensor, "m w"]
    """H(x) − Σᵢ smootherᵢ H(aᵢ): what θ adds to the mean at the pixel."""
    prior: Float[Tensor, " m"]
    """Prior variance of the stationary part at the pixel."""
    variance: Float[Tensor, " m"]
    """Its posterior variance."""

    def total_variance(self, covariance: Float[Tensor, "w w"]) -> Float[Tensor, " m"]:
        """Var[ℓ] at the pixels, given Cov[θ]."""
        linear = ((self.columns @ covariance) * self.columns).sum(dim=1)
        return (self.variance + linear).clamp(min=0)


class RenderedField(NamedTuple):
    """The field at every pixel."""

    mean: Float[Tensor, "h w"]
    """E[ℓ]."""
    std: Float[Tensor, "h w"]
    """Calibrated standard deviation of ℓ, computed at the nodes and interpolated."""
    support: Float[Tensor, "h w"]
    """Share of the prior variance of the stationary part that the anchors near a pixel remove, 0
    beyond their `Extent`: near 1 beside an anchor of similar depth."""


@dataclass(frozen=True, eq=False)
class FieldFit:
    """The posterior of the log-scale field over one image."""

    kernel: Kernel
    image: ImageInputs
    observations: Observations
    linear: LinearPosterior
    features: Features
    """Features of the anchors."""
    config: InferenceConfig
    lattice: Lattice
    """The nodes of the local solves."""
    static: bool = False
    """Whether no shape may depend on the values of the anchors, and nothing may wait for a GPU."""
    calibration: Calibration = UNCALIBRATED

    def over(self, image: ImageInputs) -> FieldFit:
        """The same posterior over the same image at another size."""
        anchors = len(self.observations.y)
        lattice = Lattice.of(image.shape, anchors, self.config, image.device)
        return dataclasses.replace(self, image=image, lattice=lattice)

    def render(self) -> RenderedField:
        """The field at every pixel."""
        if len(self.observations.y) <= self.config.neighbours and not self.static:
            return self.render_exactly()
        systems = self.systems()
        mean, prior, bound = self.map_windows(self.blended(systems, linear=True))
        return self.rendered(mean, prior, bound, systems)

    def blended(
        self, systems: LocalSystems, *, linear: bool
    ) -> Callable[[Window], Float[Tensor, "r_2 h w"]]:
        """A function that returns `cell_sums` at the pixels of a window, with or without the linear
        part of E[ℓ] in the first row."""
        sums = self.cell_sums(systems)

        def evaluate(window: Window) -> Float[Tensor, "r_2 h w"]:
            inputs = self.image.window(window.rows, window.columns)
            pixels = self.lattice.features(self.kernel.features(inputs), window)
            maps = self.lattice.image(sums(window.cells.flatten(), pixels), window)
            if linear:
                maps[0] += self.linear_mean(inputs).unflatten(0, window.shape)
            return maps

        return evaluate

    def rendered(
        self,
        mean: Float[Tensor, "h w"],
        prior: Float[Tensor, "h w"],
        bound: Float[Tensor, "h w"],
        systems: LocalSystems,
    ) -> RenderedField:
        """The field of a given mean, with the prior variance of its stationary part, an upper bound
        of its posterior variance, and the systems at all nodes.

        The shares of the prior variance that are left are interpolated between the nodes. Near an
        anchor, which may be far from any node, the bound is closer, and the whole variance is
        reduced by as much.
        """
        at_nodes = systems.prior.clamp(min=TINY)
        total = systems.total_variance(self.linear.covariance) / at_nodes
        left = (systems.variance / at_nodes).clamp(0, 1)
        total, left = self.lattice.interpolate(torch.stack([total, left]))
        prior = prior.clamp(min=TINY)
        near = left.minimum((bound / prior).clamp(min=0))
        total = total * (near / left.clamp(min=TINY)).clamp(max=1)
        enclosed = self.extent.share(self.beyond_extent(mean), self.image.log_depth)
        std = self.calibration.std(total * prior, prior, 1 - enclosed)
        return RenderedField(mean, std, enclosed * (1 - near))

    def render_exactly(self) -> RenderedField:
        """The field where every pixel has the same few anchors, from one system for all of them."""
        kernel, linear = self.kernel, self.linear
        index = self.observations.mask.nonzero()[:, 0]
        noise, anchors = self.observations.noise[index], self.features.at(index[None])
        covariance = kernel.own_covariance(anchors)[0]
        whitening = Cholesky.of(covariance + torch.diag(noise**2)).inverse_factor()
        alpha = (whitening.mT @ (whitening @ linear.residual[index])).float()
        values, vectors = torch.linalg.eigh(linear.covariance)
        root = vectors * values.clamp(min=0).sqrt()
        H = (whitening @ linear.H[index] @ root).float()
        root, whitening = root.float(), whitening.float()
        if isinstance(anchors, SumFeatures):  # of their pixels
            weights = anchors.weights[0].float()
            alpha, whitening = alpha @ weights, whitening @ weights
            anchors = TermFeatures(*(x[None] for x in anchors.pixels))
        single = TermFeatures(*(x.float() for x in anchors))

        def evaluate(window: Window) -> Float[Tensor, "5 h w"]:
            inputs = self.image.window(window.rows, window.columns)
            own, pixels = kernel.linear_features(inputs).mT, kernel.features(inputs)
            mean = linear.offset.float() + inputs.mean + linear.weights.float() @ own
            pixels = self.lattice.features(pixels, window)
            own = self.lattice.tiles((root.mT @ own).unflatten(1, window.shape))
            repeated = TermFeatures(*(x.expand(len(own), *x.shape[1:]) for x in single))
            cross = kernel.covariance(repeated, pixels)
            white = whitening @ cross
            prior = pixels.amplitude.square().sum(dim=-1)
            variance = prior - white.square().sum(dim=1)
            # √Cov[θ] (H(x) − Σᵢ smootherᵢ H(aᵢ))
            total = variance + own.sub_(H.mT @ white).square_().sum(dim=1)
            maps = self.lattice.image(torch.stack([alpha @ cross, total, variance, prior]), window)
            maps[0] += mean.unflatten(0, window.shape)
            return torch.cat([maps, self.lost(inputs).unflatten(0, window.shape)[None].to(maps)])

        mean, total, variance, prior, lost = self.map_windows(evaluate)
        least = 0.25 * noise.square().amin() if len(index) else 0.0
        std = self.calibration.std(total.clamp(min=least), prior, lost)
        support = (1 - lost) * (1 - (variance / prior.clamp(min=TINY)).clamp(0, 1))
        return RenderedField(mean, std.float(), support)

    @cached_property
    def extent(self) -> Extent:
        """What the anchors enclose."""
        return Extent.of(self.observations)

    def beyond_extent(self, like: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
        """`Extent.beyond` of every pixel, of the type of a map."""
        height, width = self.image.shape
        rows, columns = (torch.arange(n, device=like.device).to(like) for n in (height, width))
        v = self.image.position(rows, torch.zeros_like(rows))[:, 1]
        u = self.image.position(torch.zeros_like(columns), columns)[:, 0]
        far = torch.zeros_like(like)
        for (x, y), reach in zip(
            Extent.directions(like).mT.unbind(), self.extent.reach.to(like).unbind(), strict=True
        ):
            far = torch.maximum(far, (x * u) + (y * v - reach)[:, None])
        return far / self.extent.few.to(like).clamp(min=MIN_MARGIN)

    def lost(self, inputs: KernelInputs) -> Float[Tensor, " m"]:
        """Share of what the anchors tell of the stationary part that is lost at pixels, because
        they lie beyond the extent: as much of its prior variance is added there."""
        extent = self.extent
        return 1 - extent.share(extent.beyond(inputs.position), inputs.log_depth)

    def map_windows(
        self, function: Callable[[Window], Float[Tensor, "r h w"]]
    ) -> Float[Tensor, "r h w"]:
        """The images of what a function returns of the pixels of windows."""
        parts = self.of_windows(function)
        maps = parts[0][1].new_empty(len(parts[0][1]), *self.image.shape)
        for window, part in parts:
            maps[:, window.rows, window.columns] = part
        return maps

    def of_windows(
        self,
        function: Callable[[Window], Float[Tensor, "r h w"]],
        cells: Int64[Tensor, " c"] | None = None,
    ) -> list[tuple[Window, Float[Tensor, "r h w"]]]:
        """What a function returns of the pixels of windows of the image, or of those around some
        cells; on several threads of a processor."""
        on_gpu = self.image.device.type == "cuda"
        pixels = CUDA_PIXELS if on_gpu else CHUNK_PIXELS
        if self.static:  # one window
            pixels = len(self.lattice.corners) * self.lattice.cell_px**2
        windows = self.lattice.windows(pixels, cells)
        if on_gpu:
            parts = [function(window) for window in windows]
        else:
            parts = map_threads(function, [(window,) for window in windows])
        return list(zip(windows, parts, strict=True))

    def linear_mean(self, inputs: Inputs) -> Float[Tensor, " m"]:
        """E[ℓ] at pixels without its stationary part."""
        H, linear = self.kernel.linear_features(inputs), self.linear
        return linear.offset.to(H) * inputs.level + inputs.mean + linear.weights.to(H) @ H.mT

    def systems(self) -> LocalSystems:
        """The local systems at all nodes, solved for the residuals of the linear part."""
        near = self.near(self.lattice.node_uv, row_length=self.lattice.nodes[1])
        return self.solve_all(near, self.lattice.node_pixels, self.linear.residual[:, None])

    def near(
        self, uv: Float[Tensor, "m 2"], row_length: int = 1
    ) -> tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]]:
        """The anchors nearest to positions, and whether there are so many.

        Positions may come in rows of `row_length`, of which a GPU makes use.
        """
        position = self.image.pixel_uv(self.observations.inputs.position)
        mask, k = self.observations.mask, self.config.neighbours
        return nearest(uv, position, mask, k, row_length, at_once=self.static)

    def solve_all(
        self,
        near: tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]],
        pixels: tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]],
        values: Float[Tensor, "n r"],
    ) -> LocalSystems:
        """`solve` at the rows and columns of one pixel for each system, on several threads."""
        at = self.image.pixels(*pixels)
        if pixels[0].is_cuda or self.static:
            return self.solve(*near, at, values)
        parts = [slice(i, i + CHUNK_NODES) for i in range(0, len(near[0]), CHUNK_NODES)]
        chunks = [(near[0][part], near[1][part], at[part], values) for part in parts]
        return LocalSystems(*map(torch.cat, zip(*map_threads(self.solve, chunks), strict=True)))

    def solve(
        self,
        neighbours: Int64[Tensor, "m k"],
        mask: Bool[Tensor, "m k"],
        at: KernelInputs,
        values: Float[Tensor, "n r"],
    ) -> LocalSystems:
        """The systems of given neighbours for columns of values at the anchors; `at` are the
        kernel's inputs at one pixel for each of them."""
        kernel, H = self.kernel, self.linear.H
        assert isinstance(self.features, TermFeatures)
        local, pixel = self.features.at(neighbours), kernel.features(at)
        z, amplitude = pixel.z[:, None].float(), pixel.amplitude[:, None].float()
        joint = TermFeatures(  # the pixel itself comes first
            torch.cat([z, local.z.float()], dim=1),
            torch.cat([amplitude, local.amplitude.float() * mask[..., None]], dim=1),
        )
        covariance = kernel.covariance(joint, joint, torch.float64).double()
        prior, cross, covariance = covariance[:, 0, 0], covariance[:, 0, 1:], covariance[:, 1:, 1:]
        noise = torch.where(mask, self.observations.noise[neighbours] ** 2, 1.0)
        covariance.diagonal(dim1=1, dim2=2).add_(noise)
        right = torch.cat([values[neighbours] * mask[..., None], cross[..., None]], dim=-1)
        solved = Cholesky.of(covariance).solve(right)
        smoother = solved[..., -1]
        columns = kernel.linear_features(at) - torch.einsum("mk,mkw->mw", smoother, H[neighbours])
        variance = prior - (cross * smoother).sum(dim=1)
        return LocalSystems(neighbours, mask, solved[..., :-1], smoother, columns, prior, variance)

    def predict(
        self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """E[ℓ] and Var[ℓ] at single pixels, each from its own nearest anchors."""
        systems, linear = self.at_pixels(rows, columns), self.linear
        residual = linear.residual[systems.neighbours] * systems.mask
        mean = self.linear_mean(self.image.pixels(rows, columns))
        mean = mean + (systems.smoother * residual).sum(dim=1)
        return mean, systems.total_variance(linear.covariance)

    def at_pixels(self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"]) -> LocalSystems:
        """The systems of the anchors nearest to single pixels."""
        near = self.near(torch.stack([columns, rows], dim=1).double())
        return self.solve_all(near, (rows, columns), self.linear.residual[:, None])

    def coefficients(self) -> dict[str, Float[Tensor, " _"]]:
        """The coefficients of each linear term, in the units of its features."""
        theta, columns = self.linear.weights, linear_columns(len(self.linear.weights))
        found = {
            term.name: term.prior_mean + term.std(self.kernel) * theta[columns[term.name]]
            for term in LINEAR_TERMS
        }
        return {**found, "global": self.linear.offset + found["global"]}

    def cell_sums(
        self, systems: LocalSystems
    ) -> Callable[[Int64[Tensor, " c"], TermFeatures], Float[Tensor, "r_2 c p"]]:
        """A function that returns Σᵢ k(x, aᵢ) solvedᵢ of each solved column at the pixels of cells,
        given their features, blended bilinearly between the nodes of a cell; the prior variance of
        the stationary part g(x); and the least of 2 vᵢ + 2 Var[g(x) − g(aᵢ)], an upper bound of its
        variance given anchors with the variances v."""
        lattice, (_, _, noise, mask) = self.lattice, self.observations
        assert isinstance(self.features, TermFeatures)
        single = TermFeatures(*(x.float() for x in self.features))
        variance = torch.where(mask, noise**2, torch.inf)
        level = 0.5 * (variance.float() + single.amplitude.square().sum(dim=1))

        def sums(cells: Int64[Tensor, " c"], pixels: TermFeatures) -> Float[Tensor, "r_2 c p"]:
            corners = lattice.corners[cells]
            predictors = systems.neighbours[corners], systems.solved[corners]
            union, alpha = cell_weights(*predictors, static=self.static)
            covariance = self.kernel.covariance(single.at(union), pixels)
            at_nodes = torch.bmm(alpha.permute(0, 3, 1, 2).flatten(1, 2), covariance)
            blended = at_nodes.unflatten(1, (-1, 4)).mul_(lattice.blending).sum(dim=2)
            prior = pixels.amplitude.square().sum(dim=-1)
            most = covariance.sub_(level[union][..., None]).amax(dim=1)
            rows = torch.stack([prior, 2 * prior - 4 * most], dim=1)
            return torch.cat([blended, rows], dim=1).transpose(0, 1)

        return sums


def fit(
    kernel: Kernel,
    image: ImageInputs,
    observations: Observations,
    config: InferenceConfig,
    *,
    blocks: Blocks | None = None,
    prior: LinearPrior | None = None,
    lattice: Lattice | None = None,
    static: bool = False,
    memo: Memo | None = None,
) -> FieldFit:
    """Condition the field on observations; `prior` is that of the linear part, as in
    `LinearPosterior.fit`.

    `lattice` and `static` are given where shapes must not depend on the anchors. `memo` keeps
    the solutions of blocks from edit to edit.
    """
    lattice = lattice or Lattice.of(image.shape, len(observations.y), config, image.device)
    features: Features = kernel.features(observations.inputs)
    if isinstance(features, TermFeatures):
        features = TermFeatures(*(x.contiguous() for x in features))
    H = kernel.linear_features(observations.inputs).contiguous()
    blocks = (blocks or Blocks.split(observations, config)).within(observations.mask)
    solutions = BlockSolutions.of(kernel, observations, features, H, blocks, memo=memo)
    linear = LinearPosterior.fit(observations, H, blocks, solutions, prior=prior)
    return FieldFit(kernel, image, observations, linear, features, config, lattice, static)
