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
from collections.abc import Callable
from dataclasses import dataclass
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
    Kernel,
    KernelInputs,
    TermFeatures,
    linear_columns,
    term_names,
)
from scalefield.field.lattice import Lattice, PixelTiles, nearest
from scalefield.field.observations import Observations, thin
from scalefield.runtime.threads import map_threads

TINY = 1e-12
"""Least prior variance, where a kernel has no stationary part."""
CHUNK_NODES = 1024
"""Local systems that one thread of a processor solves at once."""
CHUNK_PIXELS = 1 << 14
"""Pixels that one thread of a processor evaluates at once: their covariances with a few dozen
anchors stay in its cache."""
CUDA_PIXELS = 3 << 16
"""Pixels that are evaluated at once on a GPU."""


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

    def std(self, variance: Float[Tensor, "*m"], prior: Float[Tensor, "*m"]) -> Float[Tensor, "*m"]:
        """Calibrated standard deviation, from the posterior variance and the prior variance of the
        stationary part."""
        if not isinstance(self.factor, Tensor):
            return self.learned * self.factor * variance.sqrt()
        remaining = (variance / prior.clamp(min=TINY)).clamp(min=TINY)
        weight = (self.remaining / remaining).clamp(max=1)
        log_factor = self.factor.log()
        log_factor = torch.where(log_factor < 0, weight * log_factor, log_factor)
        return self.learned * variance.sqrt() * log_factor.exp()


UNCALIBRATED = Calibration()
"""The standard deviation of the posterior itself."""


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
    """Share of the prior variance of the stationary part that the anchors near a pixel remove: 0
    where the field is extrapolated, near 1 beside an anchor of similar depth."""


class JointPosterior(NamedTuple):
    """ℓ at several pixels ~ N(mean, covariance)."""

    mean: Float[Tensor, " m"]
    covariance: Float[Tensor, "m m"]


@dataclass(frozen=True, eq=False)
class FieldFit:
    """The posterior of the log-scale field over one image."""

    kernel: Kernel
    image: ImageInputs
    observations: Observations
    linear: LinearPosterior
    features: TermFeatures
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
        stationary, prior, bound = self.map_cells(self.cell_sums(systems))
        mean = self.image.linear_map(self.coefficients()) + stationary
        return self.rendered(mean, prior, bound, systems)

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
        return RenderedField(mean, self.calibration.std(total * prior, prior), 1 - near)

    def render_exactly(self) -> RenderedField:
        """The field where every pixel has the same few anchors, from one system for all of them."""
        kernel, linear, lattice = self.kernel, self.linear, self.lattice
        index = self.observations.mask.nonzero()[:, 0]
        anchors = self.features.at(index)
        covariance = kernel.local_covariance(self.features.at(index[None]))[0]
        cholesky = Cholesky.of(covariance + torch.diag(self.observations.noise[index] ** 2))
        whitening = cholesky.inverse_factor()
        alpha = (whitening.mT @ (whitening @ linear.residual[index])).float()
        values, vectors = torch.linalg.eigh(linear.covariance)
        root = vectors * values.clamp(min=0).sqrt()
        H = (whitening @ linear.H[index] @ root).float()
        root, whitening = root.float(), whitening.float()
        *others, last = LINEAR_TERMS
        modes = last.std(kernel) * root[linear_columns(len(root))[last.name]]
        single = TermFeatures(*(x.float() for x in anchors))
        tiles = PixelTiles.of(self.image, lattice, linear=True)

        def evaluate(cells: Int64[Tensor, " c"]) -> Float[Tensor, "4 c p"]:
            inputs = tiles.inputs(cells)
            pixels = kernel.term_features(
                inputs.position, inputs.log_depth, inputs.embedding, inputs.amplitude
            )
            repeated = TermFeatures(*(x.expand(len(cells), *x.shape) for x in single))
            cross = kernel.cross_covariance(repeated, pixels)
            white = whitening @ cross
            prior = pixels.amplitude.square().sum(dim=-1)
            variance = prior - white.square().sum(dim=1)
            # √Cov[θ] (H(x) − Σᵢ smootherᵢ H(aᵢ)), of the modes and the other terms one by one
            linear = kernel.linear_features(inputs, others) @ root[: -len(modes)]
            linear = linear.add_(inputs.modes @ modes).sub_(white.mT @ H)
            total = variance + linear.square_().sum(dim=-1)
            return torch.stack([alpha @ cross, total, variance, prior])

        stationary, total, variance, prior = self.map_cells(evaluate)
        mean = self.image.linear_map(self.coefficients()) + stationary
        least = 0.25 * self.observations.noise[index].square().amin() if len(index) else 0.0
        std = self.calibration.std(total.clamp(min=least), prior)
        return RenderedField(mean, std.float(), 1 - (variance / prior.clamp(min=TINY)).clamp(0, 1))

    def map_cells(
        self, function: Callable[[Int64[Tensor, " c"]], Float[Tensor, "r c p"]]
    ) -> Float[Tensor, "r h w"]:
        """The images of what a function returns at the pixels of cells, of a few at a time."""
        lattice = self.lattice
        on_gpu = lattice.device.type == "cuda"
        index = torch.arange(len(lattice.corners), device=lattice.device)
        step = max(1, (CUDA_PIXELS if on_gpu else CHUNK_PIXELS) // lattice.cell_px**2)
        if self.static:
            parts = [function(index)]
        elif on_gpu:
            parts = [function(chunk) for chunk in index.split(step)]
        else:
            parts = map_threads(function, [(chunk,) for chunk in index.split(step)])
        return lattice.image(torch.cat(parts, dim=1))

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
        local, pixel = self.features.at(neighbours), kernel.features(at)
        z, amplitude = pixel.z[:, None].float(), pixel.amplitude[:, None].float()
        joint = TermFeatures(  # the pixel itself comes first
            torch.cat([z, local.z.float()], dim=1),
            torch.cat([amplitude, local.amplitude.float() * mask[..., None]], dim=1),
        )
        covariance = kernel.local_covariance(joint, reference=z)
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
        systems, at = self.at_pixels(rows, columns), self.image.pixels(rows, columns)
        linear, H = self.linear, self.kernel.linear_features(at)
        residual = linear.residual[systems.neighbours] * systems.mask
        stationary = (systems.smoother * residual).sum(dim=1)
        mean = linear.offset + at.mean + H @ linear.weights + stationary
        return mean, systems.total_variance(linear.covariance)

    def at_pixels(self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"]) -> LocalSystems:
        """The systems of the anchors nearest to single pixels."""
        near = self.near(torch.stack([columns, rows], dim=1).double())
        return self.solve_all(near, (rows, columns), self.linear.residual[:, None])

    def joint(
        self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"], most: int = 1000
    ) -> JointPosterior:
        """Mean and calibrated covariance of ℓ at a list of pixels, given their
        `nearest_observations`."""
        kernel, linear, noise = self.kernel, self.linear, self.observations.noise
        index = self.nearest_observations(rows, columns, most)
        at, features = self.image.pixels(rows, columns), self.features.at(index)
        own, H = kernel.features(at), kernel.linear_features(at)
        covariance = kernel.stationary(features, features) + torch.diag(noise[index] ** 2)
        cholesky = Cholesky.of(covariance)
        cross = kernel.stationary(features, own)
        smoother = cholesky.solve(cross)
        change = H - smoother.mT @ linear.H[index]
        stationary = kernel.stationary(own, own) - cross.mT @ smoother
        mean = linear.offset + at.mean + H @ linear.weights + smoother.mT @ linear.residual[index]
        covariance = stationary + change @ linear.covariance @ change.mT
        variance = covariance.diagonal().clamp(min=TINY)
        std = self.calibration.std(variance, own.amplitude.square().sum(dim=-1))
        factor = std / variance.sqrt()
        return JointPosterior(mean, covariance * factor[:, None] * factor)

    def nearest_observations(
        self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"], most: int
    ) -> Int64[Tensor, " a"]:
        """Index of all observations if there are at most `most` of them; otherwise of as many of
        those nearest to each pixel as that allows."""
        index = self.observations.mask.nonzero()[:, 0]
        if len(index) <= most:
            return index
        uv, chosen = torch.stack([columns, rows], dim=1).double(), index[:0]
        for k in range(1, self.config.neighbours + 1):
            config = dataclasses.replace(self.config, neighbours=k)
            near, there = dataclasses.replace(self, config=config).near(uv)
            nearest_k = near[there].unique()
            if len(nearest_k) > most:
                break
            chosen = nearest_k
        return chosen if len(chosen) else nearest_k[thin(nearest_k >= 0, most)[0]]

    def smoother_weights(self, row: int, column: int) -> Float[Tensor, " n"]:
        """∂E[ℓ]/∂yᵢ at one pixel: how much each anchor determines the field there."""
        pixel = (torch.tensor([x], device=self.image.device) for x in (row, column))
        systems = self.at_pixels(*pixel)
        weights = self.linear.whitened @ (self.linear.covariance @ systems.columns[0])
        return weights.index_add(0, systems.neighbours[0], systems.smoother[0] * systems.mask[0])

    def coefficients(self) -> dict[str, Float[Tensor, " _"]]:
        """The coefficients of each linear term, in the units of its features."""
        theta, columns = self.linear.weights, linear_columns(len(self.linear.weights))
        found = {
            term.name: term.prior_mean + term.std(self.kernel) * theta[columns[term.name]]
            for term in LINEAR_TERMS
        }
        return {**found, "global": self.linear.offset + found["global"]}

    def parts(self) -> dict[str, Float[Tensor, "h w"]]:
        """Maps that sum to E[ℓ], by name."""
        systems, parts = self.systems(), self.image.linear_parts(self.coefficients())
        for j, name in enumerate(term_names(self.kernel)):
            only = self.features.amplitude.new_zeros(len(self.kernel.terms))
            only[j] = 1
            features = self.features._replace(amplitude=self.features.amplitude * only)
            alone = dataclasses.replace(self, features=features)
            parts[name] = alone.map_cells(alone.cell_sums(systems))[0]
        return parts

    def cell_sums(
        self, systems: LocalSystems
    ) -> Callable[[Int64[Tensor, " c"]], Float[Tensor, "r_2 c p"]]:
        """A function that returns Σᵢ k(x, aᵢ) solvedᵢ of each solved column at the pixels of cells,
        blended bilinearly between the nodes of a cell; and the prior variance of the stationary
        part, and an upper bound of its posterior variance."""
        tiles = PixelTiles.of(self.image, self.lattice)
        predictors, (_, _, noise, mask) = (systems.neighbours, systems.solved), self.observations
        variance = torch.where(mask, noise**2, torch.inf)
        return tiles.sums(self.kernel, self.features, predictors, variance, static=self.static)


def fit(
    kernel: Kernel,
    image: ImageInputs,
    observations: Observations,
    config: InferenceConfig,
    *,
    blocks: Blocks | None = None,
    offset: Float[Tensor, ""] | None = None,
    prior: LinearPrior | None = None,
    lattice: Lattice | None = None,
    static: bool = False,
    memo: Memo | None = None,
) -> FieldFit:
    """Condition the field on observations; `offset` is the prior mean of the global log-scale, and
    `prior` that of the linear part, if it is not N(0, I).

    `lattice` and `static` are given where shapes must not depend on the anchors. `memo` keeps
    the solutions of blocks from edit to edit.
    """
    lattice = lattice or Lattice.of(image.shape, len(observations.y), config, image.device)
    features = kernel.features(observations.inputs)
    H = kernel.linear_features(observations.inputs)
    blocks = (blocks or Blocks.split(observations, config)).within(observations.mask)
    solutions = BlockSolutions.of(kernel, observations, features, H, blocks, memo=memo)
    linear = LinearPosterior.fit(observations, H, blocks, solutions, offset=offset, prior=prior)
    return FieldFit(kernel, image, observations, linear, features, config, lattice, static)
