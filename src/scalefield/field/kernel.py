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
from typing import Literal, NamedTuple, TypeAlias, overload

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from scalefield.errors import InputError

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

    @property
    def level(self) -> Float[Tensor, "*b n"]:
        """How much of the global log-scale each of them has: all of it."""
        return torch.ones_like(self.log_depth)

    def changed(self, log_depth: Float[Tensor, "t n"], level: Float[Tensor, "t 1"]) -> KernelInputs:
        """The inputs for several changes of log D_MDE and of its median, the shift being known."""
        every = {name: x.expand(len(level), *x.shape) for name, x in vars(self).items()}
        every["log_depth"] = self.log_depth + log_depth - level
        return KernelInputs(**{**every, "shift": torch.zeros_like(log_depth)})

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


@dataclass(frozen=True, eq=False)
class SumInputs:
    """What the kernel is evaluated on for n weighted sums of the log-scales of m pixels, to which
    unit normal numbers of the camera are added with weights of their own."""

    pixels: KernelInputs
    weights: Float64[Tensor, "n m"]
    camera: Float64[Tensor, "n 3"]

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: Tensor | slice | int) -> SumInputs:
        """The sums at an index."""
        return SumInputs(self.pixels, self.weights[index], self.camera[index])

    def sum(self, values: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
        """The weighted sums of values at the pixels."""
        return (self.weights @ values[..., None])[..., 0]

    @property
    def level(self) -> Float[Tensor, "*b n"]:
        """How much of the global log-scale each sum has."""
        return self.sum(self.pixels.level)

    @property
    def log_depth(self) -> Float[Tensor, "*b n"]:
        """The sums of d."""
        return self.sum(self.pixels.log_depth)

    @property
    def mean(self) -> Float[Tensor, "*b n"]:
        """The sums of μ."""
        return self.sum(self.pixels.mean)

    @property
    def modes(self) -> Float[Tensor, "*b n k"]:
        """The sums of E."""
        return self.weights @ self.pixels.modes

    @property
    def position(self) -> Float[Tensor, "n 2"]:
        """The position of a sum that is one pixel's log-scale; infinite for the others."""
        single = (self.weights != 0).sum(dim=1) == 1
        position = self.pixels.position[self.weights.abs().argmax(dim=1)]
        return torch.where((single & (self.level == 1))[:, None], position, torch.inf)

    def changed(self, log_depth: Float[Tensor, "t m"], level: Float[Tensor, "t 1"]) -> SumInputs:
        """`KernelInputs.changed` of the pixels."""
        return SumInputs(self.pixels.changed(log_depth, level), self.weights, self.camera)


Inputs: TypeAlias = KernelInputs | SumInputs


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

    def masked(self, mask: Bool[Tensor, "*b n"]) -> TermFeatures:
        """The same without what the terms explain outside a mask."""
        return TermFeatures(self.z, self.amplitude * mask[..., None])


class SumFeatures(NamedTuple):
    """Inputs of the stationary terms for `SumInputs`."""

    pixels: TermFeatures
    weights: Float64[Tensor, "*b n m"]
    camera: Float64[Tensor, "*b n 3"]

    def at(self, index: Tensor) -> SumFeatures:
        """The features at an index of the sums."""
        return SumFeatures(self.pixels, self.weights[index], self.camera[index])

    def masked(self, mask: Bool[Tensor, "*b n"]) -> SumFeatures:
        """The same with zero for the sums outside a mask."""
        return SumFeatures(self.pixels, *(x * mask[..., None] for x in self[1:]))


Features: TypeAlias = TermFeatures | SumFeatures


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
    width: int = 1
    """Number of coefficients; 0 for as many as there are left."""
    factor: Literal["smooth", "plane"] | None = None
    """The one of the `ScaleFactors` that multiplies the deviation."""
    prior_mean: float = 0.0
    """Prior mean of the coefficients."""


LINEAR_TERMS = (
    LinearTerm(
        "global", lambda k: k.constant_std, lambda x: torch.ones_like(x.log_depth)[..., None]
    ),
    LinearTerm("slope", lambda k: k.slope_std, lambda x: x.log_depth[..., None]),
    LinearTerm("mean", lambda k: k.mean_weight_std, lambda x: x.mean[..., None], prior_mean=1.0),
    LinearTerm("shift", lambda k: 1.0, lambda x: x.shift[..., None]),
    LinearTerm("plane", lambda k: k.plane_std, lambda x: x.plane, width=3, factor="plane"),
    LinearTerm("modes", lambda k: k.mode_std, lambda x: x.modes, width=0, factor="smooth"),
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
        for name in (
            "constant_std",
            "mode_std",
            "noise_std",
            "slope_std",
            "mean_weight_std",
            "plane_std",
        ):
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
        self, inputs: Inputs, terms: Sequence[LinearTerm] = LINEAR_TERMS
    ) -> Float[Tensor, "*b n w"]:
        """H of the linear part HHᵀ: the features of its terms times their prior deviations. In
        memory the pixels come last."""
        if isinstance(inputs, SumInputs):
            return inputs.weights @ self.linear_features(inputs.pixels, terms)
        columns = [(term.std(self) * term.features(inputs)).mT for term in terms]
        return torch.cat(columns, dim=-2).mT

    def linear_width(self, inputs: Inputs) -> int:
        """Number of columns of H."""
        return sum(term.width for term in LINEAR_TERMS) + inputs.modes.shape[-1]

    def linear_stds(self, columns: int) -> Float[Tensor, " w"]:
        """Prior deviations of the coefficients, for this number of columns of H."""
        stds = torch.zeros(columns, dtype=torch.float64)
        for term, part in zip(LINEAR_TERMS, linear_columns(columns).values(), strict=True):
            stds[part] = float(term.std(self))
        return stds

    @overload
    def features(self, inputs: KernelInputs) -> TermFeatures: ...
    @overload
    def features(self, inputs: SumInputs) -> SumFeatures: ...
    def features(self, inputs: Inputs) -> Features:
        """What the stationary terms are evaluated on. In memory the pixels come last, which suits
        the products of many pixels with few anchors."""
        if isinstance(inputs, SumInputs):
            return SumFeatures(self.features(inputs.pixels), inputs.weights, inputs.camera)
        log_depth, rows, amplitudes = inputs.log_depth[..., None, :], [], []
        if not self.terms:
            return TermFeatures(
                inputs.position[..., None, :][..., :0, :], inputs.amplitude[..., :0]
            )
        for j, term in enumerate(self.terms):
            rows.append((inputs.position / term.position_lengthscale).mT)
            rows.append(log_depth / term.depth_lengthscale)
            rows.append(inputs.embedding[..., j, :].mT)
            amplitudes.append(term.amplitude * inputs.amplitude[..., j])
        z = torch.cat(rows, dim=-2).unflatten(-2, (len(self.terms), -1))
        return TermFeatures(z.movedim(-1, -3), torch.stack(amplitudes, dim=-2).mT)

    def stationary(self, a: Features, b: Features) -> Float[Tensor, "*b n m"]:
        """Covariance of every pair by the stationary terms and by the camera."""
        total = camera_covariance(a, b)
        for covariance in self.stationary_terms(a, b):
            total = total + covariance
        return total

    def stationary_terms(self, a: Features, b: Features) -> list[Float[Tensor, "*b n m"]]:
        """Covariance of every pair by each stationary term."""
        if isinstance(a, SumFeatures):
            return [a.weights @ x for x in self.stationary_terms(a.pixels, b)]
        if isinstance(b, SumFeatures):
            return [x @ b.weights.mT for x in self.stationary_terms(a, b.pixels)]
        return [
            a.amplitude[..., :, None, j]
            * b.amplitude[..., None, :, j]
            * correlation(term, squared_distance(a.z[..., j, :], b.z[..., j, :]))
            for j, term in enumerate(self.terms)
        ]

    def covariance_parts(
        self, inputs: Inputs
    ) -> tuple[Float[Tensor, "*b n n"], tuple[Float[Tensor, "*b n n"], ...]]:
        """Covariance of every pair in parts: the one without a factor, and those whose deviations
        the three `ScaleFactors` multiply."""
        features = self.features(inputs)

        def linear(factor: str | None) -> Float[Tensor, "*b n n"]:
            terms = [term for term in LINEAR_TERMS if term.factor == factor]
            H = self.linear_features(inputs, terms)
            return H @ H.mT

        unscaled, plane, smooth = linear(None), linear("plane"), linear("smooth")
        unscaled = unscaled + camera_covariance(features, features)
        rough = torch.zeros_like(smooth)
        for term, covariance in zip(
            self.terms, self.stationary_terms(features, features), strict=True
        ):
            if term.family == "rbf":
                smooth = smooth + covariance
            else:
                rough = rough + covariance
        return unscaled, (smooth, rough, plane)

    def own_covariance(self, a: Features) -> Float64[Tensor, "c n n"]:
        """`stationary` within each of c sets, in float64."""
        if isinstance(a, SumFeatures):
            return self.stationary(a, a)
        return self.covariance(a, a, torch.float64).double()

    def prior_variance(self, a: Features) -> Float[Tensor, " n"]:
        """Diagonal of `stationary` of a with itself."""
        if isinstance(a, SumFeatures):
            return self.stationary(a, a).diagonal()
        return a.amplitude.square().sum(dim=-1)

    def covariance(
        self, a: TermFeatures, b: TermFeatures, precision: torch.dtype = torch.float32
    ) -> Float[Tensor, "c n m"]:
        """`stationary` of each of c pairs of sets in float32, several times as fast; it has no
        derivatives.

        −½ distance² is a product of matrices of features relative to one of b, which keeps its
        cancellation harmless. Between the anchors themselves it wants float64: rounded distances of
        close ones would make the matrix indefinite.
        """
        reference = b.z[:, b.z.shape[1] // 2 :][:, :1]
        y, x = (a.z - reference).to(precision), (b.z - reference).to(precision).permute(0, 2, 3, 1)
        own, others = a.amplitude.float(), b.amplitude.float()
        total = own.new_zeros(len(y), y.shape[1], x.shape[3])
        for j, term in enumerate(self.terms):
            yj, xj = y[:, :, j], x[:, j]
            norm = -0.5 * xj.square().sum(dim=1, keepdim=True)
            exponent = torch.baddbmm(norm.expand(-1, yj.shape[1], -1), yj, xj)
            exponent = exponent.sub_(0.5 * yj.square().sum(dim=2, keepdim=True)).float()
            covariance = correlation_(term, exponent).mul_(own[..., j, None])
            total += covariance.mul_(others[:, None, :, j])
        return total

    def variance(self, inputs: KernelInputs) -> Float[Tensor, "*b n"]:
        """k(x, x) at every pixel."""
        linear = self.linear_features(inputs).square().sum(dim=-1)
        return linear + self.features(inputs).amplitude.square().sum(dim=-1)


def camera_covariance(a: Features, b: Features) -> Float[Tensor, "*b n m"]:
    """Covariance of every pair by what both depend on the camera."""
    if isinstance(a, SumFeatures) and isinstance(b, SumFeatures):
        return a.camera @ b.camera.mT
    n, m = (x.z.shape[:-2] if isinstance(x, TermFeatures) else x.weights.shape[:-1] for x in (a, b))
    return (
        b[0].new_zeros(*n, m[-1]) if isinstance(b, TermFeatures) else b.weights.new_zeros(*n, m[-1])
    )


def linear_columns(columns: int) -> dict[str, slice]:
    """The slice of H that belongs to each linear term, of `columns` columns in all."""
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
