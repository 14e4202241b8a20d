"""The paper's method: image-adaptive basis maps, weighted by a ridge regression on the anchors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from scalefield.alignment.uncertainty import (
    EXACT,
    LinearSmoother,
    coarse_pixels,
    fit_std,
    product,
    to_image,
)
from scalefield.anchors import Anchors
from scalefield.basis.generator import BasisMaps, Generator
from scalefield.basis.grids import grid_log_depth, sample, upsample
from scalefield.basis.pretrained import load_generator
from scalefield.basis.ridge import Ridge, Solution, anchor_weights, solve, targets
from scalefield.basis.spectral import spectral_statistics
from scalefield.explanation import Explanation, lattice
from scalefield.field.condition import condition
from scalefield.field.decomposition import Decomposition
from scalefield.field.model import load_field
from scalefield.field.observations import Readings
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery, Solver
from scalefield.runtime.devices import full_precision, on_device
from scalefield.validation import require_choice

NumBasisMaps = Literal[8, 30, 50]
"""K of the generators that come with the package."""


@dataclass(frozen=True)
class Basis(Method):
    """The paper's method: ℓ = Eᵀw with learned, image-adaptive basis maps E.

    w minimises Σ ωᵢ (E(aᵢ)ᵀw − yᵢ)² + λ‖w‖² over the anchors, in closed form.
    """

    generator: str | Path | Generator = "auto"
    """A shipped name (see `io.weights.shipped`), a folder that `Generator.save` wrote, a generator,
    or "auto": the shipped one, which uses no features (F = 0) and so serves any depth map."""
    k: NumBasisMaps = 50
    """K, the number of basis maps of the shipped generator. 50 is better than 8 with few and with
    many anchors (results/places); the paper uses 8 for few."""
    ridge: Ridge | None = None
    """Settings of the solve; None for those that the generator was trained with."""
    estimate_shift: bool = True
    """Use an affine-invariant map at the shift that `field` estimates from the anchors. False is
    the paper: D_MDE = 1 / disparity, with the shift that the map happens to have."""

    def __post_init__(self) -> None:
        require_choice("k", self.k, get_args(NumBasisMaps))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        return self.solver(mde_output)(anchors)

    def solver(self, mde_output: MDEOutput) -> Solver:
        """The method for one image; the generator runs once."""
        generator = self.load(mde_output.prediction.device)
        if not (mde_output.affine and self.estimate_shift):
            return partial(self.fit, mde_output, generator, basis_maps(generator, mde_output))
        model = load_field("field")
        image = model.image_inputs(mde_output)
        maps = basis_maps(generator, image.as_output(mde_output))

        def solve_with_shift(anchors: Anchors) -> Recovery[Tensor]:
            noise_std = float(model.kernel.noise_std)
            readings = Readings.of(anchors, image.shape, noise_std, image.device)
            posterior = condition(model, image, readings)
            shift = image.shift_interval(posterior.shift)
            shifted = posterior.image.as_output(mde_output)
            return self.fit(shifted, generator, maps, anchors, kind=mde_output.kind, shift=shift)

        return solve_with_shift

    def fit(
        self,
        mde_output: MDEOutput,
        generator: Generator,
        maps: BasisMaps,
        anchors: Anchors,
        **report: Any,
    ) -> Recovery[Tensor]:
        """The solve for existing basis maps: the cost of an added anchor.

        `report` has further values of the report.
        """
        fit = WeightFit.of(maps, mde_output, anchors, self.ridge or generator.config.ridge)
        # Upsampling is linear: ℓ is combined on the grid and one map is upsampled, not K.
        log_scale = upsample(fit.solution.log_scale(maps.basis_maps)[:, None], mde_output.shape)
        recovery = Recovery.from_log_scale(
            mde_output,
            anchors,
            log_scale[0, 0],
            std_log=fit.std_log(),
            leave_one_out_log=fit.leave_one_out_log(),
            weights=fit.solution.weights[0].float(),
            basis_maps=maps.basis_maps[0],
            gating=maps.gating[0],
            **report,
        )
        return replace(recovery, explainer=partial(fit.explain, mde_output, anchors))

    def prepare(self) -> None:
        """Load the generator."""
        self.load()

    def load(self, device: torch.device | str = "cpu") -> Generator:
        """The generator itself."""
        if isinstance(self.generator, Generator):
            return cast(Generator, on_device(self.generator, torch.device(device)))
        name = f"basis-depth-k{self.k}" if self.generator == "auto" else self.generator
        return load_generator(name, torch.device(device))


@torch.no_grad()
def basis_maps(generator: Generator, mde_output: MDEOutput) -> BasisMaps:
    """E and G of one image, with a batch dimension of one."""
    # The logarithm first: float64 maps may hold depths that float32 cannot.
    log_depth = grid_log_depth(mde_output.mde_depth[None], generator.config.cells).float()
    features = None if mde_output.features is None else mde_output.features[None].float()
    if not generator.config.feature_channels or generator.config.zero_features:
        features = None
    with full_precision():
        return generator(features, log_depth)


def anchor_embeddings(maps: BasisMaps, mde_output: MDEOutput, anchors: Anchors) -> Tensor:
    """M, with M_im = E_m(a_i) at the pixel each anchor falls in (Eq. 12)."""
    return embeddings(maps, mde_output.shape, *anchors.pixels(mde_output.shape))


def embeddings(
    maps: BasisMaps, shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray
) -> Float[Tensor, "n k"]:
    """E at pixels of an image of this shape."""
    pixels = torch.from_numpy(np.stack([columns, rows], axis=1)).to(maps.basis_maps)
    return sample(maps.basis_maps, pixels[None], shape)[0]


def penalised_design(
    embedded: Float64[np.ndarray, "n k"], ridge: Ridge
) -> tuple[Float64[np.ndarray, "n m"], Float64[np.ndarray, "m m"]]:
    """The design and the penalty of the linear fit, with a free constant for the median."""
    penalty = np.diag([ridge.ridge_global, *[ridge.ridge] * (embedded.shape[1] - 1)])
    if ridge.centre != "median":
        return embedded, penalty
    # The median takes what a free constant would, nearly: with it one anchor leaves nothing.
    return np.insert(embedded, 0, 1.0, axis=1), np.pad(penalty, ((1, 0), (1, 0)))


@dataclass(frozen=True, eq=False)
class WeightFit:
    """The weights of an image's basis maps that fit its anchors, and how well they do."""

    maps: BasisMaps
    shape: tuple[int, int]
    """Height and width of the image."""
    ridge: Ridge
    solution: Solution
    residuals: Float64[np.ndarray, " n"]
    """Targets minus their fitted values."""
    smoother: LinearSmoother
    """The fit as a linear function of the targets."""
    tau: Float64[np.ndarray, " n"]
    """Standard deviation of the measured log-depths; 0 where it is not known."""

    @classmethod
    def of(
        cls, maps: BasisMaps, mde_output: MDEOutput, anchors: Anchors, ridge: Ridge
    ) -> WeightFit:
        """Solve for the weights."""
        M, omega = anchor_embeddings(maps, mde_output, anchors), anchor_weights(anchors)
        y = torch.from_numpy(targets(mde_output, anchors)).to(M.device)
        solution = solve(M[None], y[None], torch.from_numpy(omega).to(M.device)[None], ridge)
        residuals = y - solution.offset - M.double() @ solution.weights[0]
        design, penalty = penalised_design(M.detach().double().cpu().numpy(), ridge)
        return cls(
            maps,
            mde_output.shape,
            ridge,
            solution,
            residuals.detach().cpu().numpy(),
            LinearSmoother.of(design, omega, penalty),
            anchors.sigma_log(0.0),
        )

    def leave_one_out_log(self) -> tuple[float, ...]:
        """log D̂ − log depth at each anchor, D̂ predicted by the others: r / (1 − S_ii), which is
        exact but for the median of the targets. Empty with one anchor."""
        if len(self.residuals) < 2:
            return ()
        left = 1 - self.smoother.leverage
        return tuple((-self.residuals / left.clip(min=EXACT)).tolist())

    def std_log(self) -> Float[Tensor, "h w"]:
        """std_log of the weighted basis maps, which are linear in the targets."""
        at_pixels = self.design(*coarse_pixels(self.shape))
        slopes = np.ones(len(self.residuals)), np.ones(len(at_pixels))
        std_log = fit_std(self.smoother, self.residuals, self.tau, slopes, at_pixels)
        return to_image(std_log, self.shape, self.maps.basis_maps.device)

    def design(self, rows: np.ndarray, columns: np.ndarray) -> Float64[np.ndarray, "p m"]:
        """The design at pixels."""
        embedded = embeddings(self.maps, self.shape, rows, columns)
        return penalised_design(embedded.detach().double().cpu().numpy(), self.ridge)[0]

    def explain(
        self, mde_output: MDEOutput, anchors: Anchors, recovery: Recovery[np.ndarray]
    ) -> Explanation:
        """The weighted basis maps with their gates, and the spectrum of the embeddings."""
        weights, gating = self.solution.weights[0], self.maps.gating[0].cpu()
        E = self.maps.basis_maps[0].detach()
        weighted = (E * weights.to(E)[:, None, None]).cpu()
        parts = {f"E{m}": part for m, part in enumerate(weighted)}
        offset = self.solution.offset[0].to(weighted).expand_as(weighted[0])
        whole = Decomposition(
            {"offset": offset, **parts}, torch.ones_like(offset, dtype=torch.bool)
        )
        M = anchor_embeddings(self.maps, mde_output, anchors).detach().cpu()
        y = torch.from_numpy(targets(mde_output, anchors))
        slopes = product(self.design(*lattice(self.shape)), self.smoother.gain)
        return Explanation(
            recovery,
            {name: part.numpy() for name, part in whole.parts.items()},
            whole.shares,
            anchors,
            np.abs(slopes).mean(axis=0),
            weights=dict(zip(parts, weights.tolist(), strict=True)),
            gating=dict(zip(parts, gating.numpy(), strict=True)),
            spectrum=spectral_statistics(M, gating, y),
        )
