"""The covariance function of `field`: k(x, x') between the log-scales of two pixels.

    k(x, x') = constant² + mode² · E(x)ᵀE(x') + slope² · d(x) d(x') + mean_weight² · μ(x) μ(x')
               + s(x) s(x') + plane² · q(x)ᵀq(x')
               + Σ_j amplitude_j² · a_j(x) a_j(x') · κ_j(‖z_j(x) − z_j(x')‖)

The first terms are linear in features of a pixel: the global scale, the modes E (the paper's basis
maps, whose ridge regression is this term alone), a slope over the relative log-depth d, the weight
of the learned mean function μ, the unknown shift of an affine-invariant map (`shift`), and a plane
in disparity: adding βᵀ(u, v, ½) to 1/D, with (u, v) the position, changes the log-scale by
−D βᵀ(u, v, ½) to first order, hence q = D (u, v, ½). Such an error keeps flat surfaces flat.

The stationary terms κ_j are RBF or exponential (Matérn-1/2) covariances over z_j: position and
log-depth, each divided by its lengthscale, and a learned embedding φ_j. Pixels covary when they are
close, at a similar depth, and alike in the embedding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor

from scalefield.errors import InputError

if TYPE_CHECKING:
    from scalefield.field.image_inputs import ImageInputs

Family = Literal["rbf", "exponential"]

PLANE_LEVEL = 0.5
"""Third coordinate of a plane in disparity: as large as the position at the border of the image."""
MAX_RELATIVE_DEPTH = 2.0
"""Depth relative to the image's median from which a plane in disparity has its largest effect: the
first-order term overestimates it farther away."""

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, eq=False)
class KernelInputs:
    """What the kernel is evaluated on, at n pixels (of b images at once, in training)."""

    position: Float[Tensor, "*b n 2"]
    """(u, v) from the image's centre, in units of the square root of the image's area."""
    log_depth: Float[Tensor, "*b n"]
    """d: log D_MDE minus its median over the image."""
    modes: Float[Tensor, "*b n k"]
    """E: the values of the linear modes."""
    embedding: Float[Tensor, "*b n j e"]
    """φ_j: one embedding for each stationary term."""
    amplitude: Float[Tensor, "*b n j"]
    """a_j > 0: local amplitude of each stationary term."""
    mean: Float[Tensor, "*b n"]
    """μ: the learned mean function, up to a constant."""
    shift: Float[Tensor, "*b n"]
    """s: change of log D_MDE for one standard deviation of the map's shift; 0 if it is known."""

    def __len__(self) -> int:
        return self.log_depth.shape[-1]

    def __getitem__(self, index: Tensor | slice | int) -> KernelInputs:
        """The inputs at an index of the first axis."""
        return KernelInputs(*(values[index] for values in vars(self).values()))

    def joined(self, other: KernelInputs) -> KernelInputs:
        """The pixels of one image followed by those of `other`."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return KernelInputs(*(torch.cat(pair) for pair in pairs))

    @property
    def plane(self) -> Float[Tensor, "*b n 3"]:
        """q: change of the log-scale for unit coefficients of a plane in disparity."""
        homogeneous = nnf.pad(self.position, (0, 1), value=PLANE_LEVEL)
        return homogeneous * bounded_relative_depth(self.log_depth)[..., None]

    def to(self, dtype: torch.dtype) -> KernelInputs:
        """The same inputs in another precision."""
        return KernelInputs(*(values.to(dtype) for values in vars(self).values()))


class ScaleFactors(NamedTuple):
    """Factors on prior deviations; tensors have one for each of b images."""

    smooth: float | Float[Tensor, "*b"]
    """Of the modes and the RBF terms."""
    rough: float | Float[Tensor, "*b"]
    """Of the exponential terms."""
    plane: float | Float[Tensor, "*b"]
    """Of the plane."""


class TermFeatures(NamedTuple):
    """Inputs of the stationary terms at pixels."""

    z: Float[Tensor, "*b n j d"]
    """z_j: position and log-depth divided by their lengthscales, and the embedding."""
    amplitude: Float[Tensor, "*b n j"]
    """amplitude_j · a_j(x): standard deviation that the term explains at the pixel."""

    def at(self, index: Tensor) -> TermFeatures:
        """The features at an index of the first axis."""
        return TermFeatures(self.z[index], self.amplitude[index])


@dataclass(frozen=True)
class StationaryTerm:
    """One stationary term: amplitude² · a(x) a(x') · κ(‖z(x) − z(x')‖)."""

    amplitude: float | Tensor
    """Standard deviation of the log-scale that it explains where a = 1."""
    position_lengthscale: float | Tensor
    """Lengthscale of position, in units of the square root of the image's area."""
    depth_lengthscale: float | Tensor
    """Lengthscale of log-depth."""
    family: Family
    """rbf: κ(r) = exp(−r²/2). exponential: κ(r) = exp(−r), Matérn-1/2."""


class LinearTerm(NamedTuple):
    """One linear part of the log-scale: cᵀx, with normal coefficients c and features x."""

    name: str
    std: Callable[[Kernel], float | Tensor]
    """Prior standard deviation of the coefficients."""
    features: Callable[[KernelInputs], Float[Tensor, "*b n w"]]
    """x at pixels."""
    map: Callable[[ImageInputs, Float[Tensor, " w"]], Tensor]
    """cᵀx over an image, given c: (1, 1, h, w) on the network's grid, or (h, w) at its pixels."""
    on_grid: bool
    """Whether the map is on the network's grid."""
    width: int = 1
    """Number of coefficients; 0 for as many as there are left."""
    factor: Literal["smooth", "plane"] | None = None
    """The one of the `ScaleFactors` that multiplies the deviation."""
    prior_mean: float = 0.0
    """Prior mean of the coefficients."""


LINEAR_TERMS = (
    LinearTerm(
        "global",
        std=lambda kernel: kernel.constant_std,
        features=lambda inputs: torch.ones_like(inputs.log_depth)[..., None],
        map=lambda image, c: c * torch.ones_like(image.maps.mean),
        on_grid=True,
    ),
    LinearTerm(
        "slope",
        std=lambda kernel: kernel.slope_std,
        features=lambda inputs: inputs.log_depth[..., None],
        map=lambda image, c: c * image.log_depth,
        on_grid=False,
    ),
    LinearTerm(
        "mean",
        std=lambda kernel: kernel.mean_weight_std,
        features=lambda inputs: inputs.mean[..., None],
        map=lambda image, c: c * image.maps.mean,
        on_grid=True,
        prior_mean=1.0,
    ),
    LinearTerm(
        "shift",
        std=lambda kernel: 1.0,
        features=lambda inputs: inputs.shift[..., None],
        map=lambda image, c: c * (0.0 if image.shift is None else image.shift),
        on_grid=False,
    ),
    LinearTerm(
        "plane",
        std=lambda kernel: kernel.plane_std,
        features=lambda inputs: inputs.plane,
        map=lambda image, c: image.plane(c),
        on_grid=False,
        width=3,
        factor="plane",
    ),
    LinearTerm(
        "modes",
        std=lambda kernel: kernel.mode_std,
        features=lambda inputs: inputs.modes,
        map=lambda image, c: torch.einsum("k,bkhw->bhw", c, image.maps.modes)[:, None],
        on_grid=True,
        width=0,
        factor="smooth",
    ),
)
"""The linear part of the kernel."""


@dataclass(frozen=True)
class Kernel:
    """The covariance function; its hyperparameters are learned by `scalefield.training.field`."""

    constant_std: float | Tensor
    """Prior standard deviation of the global log-scale around the anchors' median."""
    mode_std: float | Tensor
    """Prior standard deviation of the weights of the modes."""
    terms: tuple[StationaryTerm, ...]
    noise_std: float | Tensor
    """Standard deviation of an anchor's log-depth where the anchor has none of its own."""
    slope_std: float | Tensor = 0.0
    """Prior standard deviation of the slope of the log-scale over log-depth."""
    mean_weight_std: float | Tensor = 0.0
    """Prior standard deviation of the mean function's weight around one."""
    plane_std: float | Tensor = 0.0
    """Prior standard deviation of the coefficients of a plane in disparity, relative to the
    disparity of the image's median pixel."""

    def __post_init__(self) -> None:
        stds = (
            "constant_std",
            "mode_std",
            "noise_std",
            "slope_std",
            "mean_weight_std",
            "plane_std",
        )
        for name in stds:
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not value >= 0:
                raise InputError(f"{name} must not be negative, found {value}")

    def scaled(self, factors: ScaleFactors) -> Kernel:
        """The kernel with its prior deviations multiplied by factors, those of b images by one
        for each."""

        def broadcast(factor: float | Tensor, axes: int) -> float | Tensor:
            if not isinstance(factor, Tensor) or factor.ndim == 0:
                return factor
            return factor[(..., *[None] * axes)]

        of_family = {"rbf": factors.smooth, "exponential": factors.rough}
        terms = tuple(
            dataclasses.replace(t, amplitude=t.amplitude * broadcast(of_family[t.family], 1))
            for t in self.terms
        )
        return dataclasses.replace(
            self,
            terms=terms,
            mode_std=self.mode_std * broadcast(factors.smooth, 2),
            plane_std=self.plane_std * broadcast(factors.plane, 2),
        )

    def __call__(self, a: KernelInputs, b: KernelInputs) -> Float[Tensor, "*b n m"]:
        """Covariance of every pair."""
        linear = self.linear_features(a) @ self.linear_features(b).mT
        return linear + self.stationary(self.features(a), self.features(b))

    def linear_features(
        self, inputs: KernelInputs, terms: Sequence[LinearTerm] = LINEAR_TERMS
    ) -> Float[Tensor, "*b n w"]:
        """H of the linear part HHᵀ: the features of its terms times their prior deviations."""
        return torch.cat([term.std(self) * term.features(inputs) for term in terms], dim=-1)

    def linear_stds(self, columns: int) -> Float[Tensor, " w"]:
        """Prior deviations of the coefficients, for this number of columns of H."""
        stds = torch.zeros(columns, dtype=torch.float64)
        for term, part in zip(LINEAR_TERMS, linear_columns(columns).values(), strict=True):
            stds[part] = float(term.std(self))
        return stds

    def features(self, inputs: KernelInputs) -> TermFeatures:
        """What the stationary terms are evaluated on."""
        z, amplitude = self.term_features(
            inputs.position, inputs.log_depth, inputs.embedding, inputs.amplitude
        )
        return TermFeatures(z.contiguous(), amplitude.contiguous())

    def term_features(
        self,
        position: Float[Tensor, "*b n 2"],
        log_depth: Float[Tensor, "*b n"],
        embedding: Float[Tensor, "*b n j e"],
        amplitude: Float[Tensor, "*b n j"],
    ) -> TermFeatures:
        """The features of pixels, from those of the kernel's inputs that the terms depend on.

        In memory the pixels come last, which suits the products of many pixels with few anchors.
        """
        if not self.terms:
            return TermFeatures(position[..., None, :][..., :0, :], amplitude[..., :0])
        rows = []
        for j, term in enumerate(self.terms):
            rows.append((position / term.position_lengthscale).mT)
            rows.append((log_depth / term.depth_lengthscale)[..., None, :])
            rows.append(embedding[..., j, :].mT)
        z = torch.cat(rows, dim=-2).unflatten(-2, (len(self.terms), -1))
        scaled = [term.amplitude * amplitude[..., j] for j, term in enumerate(self.terms)]
        return TermFeatures(z.movedim(-1, -3), torch.stack(scaled, dim=-2).mT)

    def stationary(self, a: TermFeatures, b: TermFeatures) -> Float[Tensor, "*b n m"]:
        """Covariance of every pair by the stationary terms."""
        total = a.z.new_zeros(*a.z.shape[:-2], b.z.shape[-3])
        for covariance in self.stationary_terms(a, b):
            total = total + covariance
        return total

    def stationary_terms(self, a: TermFeatures, b: TermFeatures) -> list[Float[Tensor, "*b n m"]]:
        """Covariance of every pair by each stationary term."""
        return [
            a.amplitude[..., :, None, j]
            * b.amplitude[..., None, :, j]
            * correlation(term, squared_distance(a.z[..., j, :], b.z[..., j, :]))
            for j, term in enumerate(self.terms)
        ]

    def covariance_parts(
        self, inputs: KernelInputs
    ) -> tuple[Float[Tensor, "*b n n"], tuple[Float[Tensor, "*b n n"], ...]]:
        """Covariance of every pair in parts: the one without a factor, and those whose deviations
        the three `ScaleFactors` multiply."""
        features = self.features(inputs)

        def linear(factor: str | None) -> Float[Tensor, "*b n n"]:
            terms = [term for term in LINEAR_TERMS if term.factor == factor]
            H = self.linear_features(inputs, terms)
            return H @ H.mT

        unscaled, plane, smooth = linear(None), linear("plane"), linear("smooth")
        rough = torch.zeros_like(smooth)
        for term, covariance in zip(
            self.terms, self.stationary_terms(features, features), strict=True
        ):
            if term.family == "rbf":
                smooth = smooth + covariance
            else:
                rough = rough + covariance
        return unscaled, (smooth, rough, plane)

    def local_covariance(
        self, features: TermFeatures, reference: Float[Tensor, "c 1 j d"] | None = None
    ) -> Float[Tensor, "c n n"]:
        """`stationary` within each of many small sets, in float64.

        Distances are matrix products in float64 of features relative to a reference, the mean of
        each set by default: rounded distances between anchors on one pixel would make the matrix
        indefinite. The correlations are evaluated in float32.
        """
        reference = features.z.mean(dim=1, keepdim=True) if reference is None else reference
        relative, (c, n) = features.z - reference, features.z.shape[:2]
        total = torch.zeros(c, n, n, dtype=torch.float64, device=relative.device)
        for j, term in enumerate(self.terms):
            z, amplitude = relative[:, :, j].double(), features.amplitude[..., j].float()
            norm = -0.5 * z.square().sum(dim=-1, keepdim=True)
            exponent = torch.baddbmm(norm, z, z.mT).add_(norm.mT).float()  # −½ distance²
            # The root of a rounded distance of zero is not zero.
            exponent.diagonal(dim1=-2, dim2=-1).zero_()
            covariance = correlation_(term, exponent)
            total += covariance.mul_(amplitude[..., None]).mul_(amplitude[:, None])
        return total

    def cross_covariance(
        self, anchors: TermFeatures, pixels: TermFeatures
    ) -> Float[Tensor, "c u p"]:
        """`stationary` between few anchors and many pixels of each of c cells, in float32.

        Distances are matrix products of features relative to the cell's middle pixel, which keeps
        their cancellation harmless.
        """
        middle = pixels.z[:, pixels.z.shape[1] // 2, None]
        y, x = (anchors.z - middle).transpose(1, 2), (pixels.z - middle).permute(0, 2, 3, 1)
        norm_y = y.square() @ y.new_full((y.shape[3], 1), -0.5)
        norm_x = x.square().sum(dim=2, keepdim=True).mul_(-0.5)
        y = torch.cat([y, torch.ones_like(norm_y), norm_y], dim=3)
        x = torch.cat([x, norm_x, torch.ones_like(norm_x)], dim=2)
        exponent = torch.bmm(y.flatten(0, 1), x.flatten(0, 1)).unflatten(0, y.shape[:2])
        for j, term in enumerate(self.terms):
            correlation_(term, exponent[:, j])  # of −½ distance²
        exponent.mul_(anchors.amplitude.mT[..., None]).mul_(pixels.amplitude.mT[:, :, None])
        return exponent.sum(dim=1)

    def variance(self, inputs: KernelInputs) -> Float[Tensor, "*b n"]:
        """k(x, x) at every pixel."""
        linear = self.linear_features(inputs).square().sum(dim=-1)
        return linear + self.features(inputs).amplitude.square().sum(dim=-1)


def linear_columns(columns: int) -> dict[str, slice]:
    """The columns of H of each linear term, of so many in all."""
    ends = [*accumulate(term.width for term in LINEAR_TERMS[:-1]), columns]
    starts = [0, *ends]
    return {term.name: slice(*ab) for term, *ab in zip(LINEAR_TERMS, starts, ends, strict=False)}


def bounded_relative_depth(log_depth: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Depth relative to the image's median, at most `MAX_RELATIVE_DEPTH`."""
    return log_depth.exp().clamp(max=MAX_RELATIVE_DEPTH)


def correlation(term: StationaryTerm, square: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """κ of squared distances."""
    if term.family == "rbf":
        return (-0.5 * square).exp()
    # The derivative of the root is infinite at zero, where its value hardly matters.
    return (-(square + 1e-12).sqrt()).exp()


def correlation_(term: StationaryTerm, exponent: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """κ of −½ distance², in place: 2ˣ is several times as fast as eˣ on most processors."""
    if term.family == "exponential":
        return exponent.clamp_(max=0).mul_(-2 * LOG2_E**2).sqrt_().neg_().exp2_()
    return exponent.mul_(LOG2_E).exp2_()


def term_names(kernel: Kernel) -> list[str]:
    """Names of the stationary terms in a decomposition."""
    return [f"{term.family} {j}" for j, term in enumerate(kernel.terms, start=1)]


def squared_distance(a: Float[Tensor, "*b n z"], b: Float[Tensor, "*b m z"]) -> Tensor:
    """‖a − b‖² of every pair by matrix products: in float64 the cancellation is harmless."""
    norms = a.square().sum(dim=-1)[..., :, None] + b.square().sum(dim=-1)[..., None, :]
    return (norms - 2 * a @ b.mT).clamp(min=0)
