"""Small generated worlds for the tests of `field`: kernels, images, anchors."""

import math

import numpy as np
import torch

from scalefield.anchors import Anchors
from scalefield.field.config import InferenceConfig
from scalefield.field.exact import ExactPosterior
from scalefield.field.image_inputs import ChannelLayout, FieldMaps, ImageInputs
from scalefield.field.kernel import Kernel, KernelInputs, StationaryTerm
from scalefield.field.observations import Observations
from scalefield.field.posterior import FieldFit, fit
from scalefield.mde.output import MDEOutput

KERNEL = Kernel(
    constant_std=2.0,
    mode_std=1.5,
    terms=(
        StationaryTerm(0.15, 0.5, 0.6, "rbf"),
        StationaryTerm(0.2, 0.1, 0.3, "exponential"),
    ),
    noise_std=0.02,
    slope_std=0.3,
    mean_weight_std=0.4,
    plane_std=0.2,
)
"""Two stationary terms with very different lengthscales, and every kind of linear feature."""

SMOOTH_KERNEL = Kernel(
    constant_std=2.0,
    mode_std=0.2,
    terms=(StationaryTerm(0.2, 0.25, 1.0, "rbf"),),
    noise_std=0.02,
    slope_std=0.1,
)
"""One RBF term that is smooth over a quarter of the image."""


def kernel_inputs(n: int, seed: int = 0, modes: int = 4) -> KernelInputs:
    """Inputs of `KERNEL` at n random pixels, without an image."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    first = draw(n, 2), draw(n) * 2, draw(n, modes) - 0.5
    rest = draw(n, 2, 3) - 0.5, 0.5 + draw(n, 2), draw(n) - 0.5, 0.1 * draw(n)
    return KernelInputs(*first, *rest)


def problem(n: int, seed: int, noise: float = 0.02) -> tuple:
    """Inputs, targets and noise of n anchors, without an image."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(n, generator=rng, dtype=torch.float64) * 0.3 + 1
    return kernel_inputs(n, seed), y, torch.full((n,), noise, dtype=torch.float64)


def observations_of(n: int, seed: int, noise: float = 0.02) -> Observations:
    """The same as `Observations`, all of them anchors."""
    inputs, y, sigma = problem(n, seed, noise)
    return Observations(inputs, y, sigma, torch.ones(n, dtype=torch.bool))


def slanted_wall(shape: tuple[int, int], box: bool = True) -> np.ndarray:
    """Relative depth of a wall, with a box in front of it or without."""
    height, width = shape
    v, u = np.mgrid[0:height, 0:width]
    depth = 1 + u / width + 0.4 * v / height
    if box:
        depth[height // 4 : height // 2, width // 3 : 2 * width // 3] *= 0.5
    return depth


def image_inputs(
    shape: tuple[int, int],
    kernel: Kernel = KERNEL,
    *,
    seed: int = 0,
    grid: tuple[int, int] = (5, 6),
    box: bool = True,
    variation: float = 1.0,
) -> ImageInputs:
    """An image whose maps are drawn at random on a coarse grid.

    `variation` is the size of the embeddings, amplitudes and modes; 0 leaves a stationary kernel.
    """
    rng = torch.Generator().manual_seed(seed)
    layout = ChannelLayout(modes=4, terms=len(kernel.terms), embedding_size=3)
    maps = variation * (torch.rand(1, layout.total, *grid, generator=rng) - 0.5)
    last = layout.total - 1
    maps[:, last - layout.terms : last] += 1
    depth = torch.from_numpy(slanted_wall(shape, box))
    maps = FieldMaps(maps, torch.zeros(1), layout)
    return ImageInputs(depth.float(), maps, depth.float().log().median())


def random_pixels(shape: tuple[int, int], n: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Rows and columns of n different pixels."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(math.prod(shape), n, replace=False)
    rows, columns = np.divmod(chosen, shape[1])
    return torch.from_numpy(rows), torch.from_numpy(columns)


def observe_pixels(
    image: ImageInputs,
    rows: torch.Tensor,
    columns: torch.Tensor,
    *,
    seed: int = 0,
    noise: float = 0.02,
) -> Observations:
    """A smooth field measured at pixels with normal errors."""
    inputs = image.pixels(rows, columns)
    u, v = inputs.position.unbind(dim=1)
    rng = torch.Generator().manual_seed(seed)
    error = noise * torch.randn(len(rows), generator=rng, dtype=torch.float64)
    y = 1 + 0.3 * torch.sin(3 * u + 0.7) + 0.2 * torch.cos(4 * v) + error
    sigma = torch.full((len(rows),), noise, dtype=torch.float64)
    return Observations(inputs, y, sigma, torch.ones(len(rows), dtype=torch.bool))


def exact_of(fitted: FieldFit) -> ExactPosterior:
    """The float64 oracle given the same observations."""
    inputs, y, noise, mask = fitted.observations
    return ExactPosterior.fit(
        fitted.kernel, inputs[mask], y[mask], noise[mask], fitted.linear.offset
    )


def all_pixels(image: ImageInputs) -> KernelInputs:
    """The kernel's inputs at every pixel, row by row."""
    height, width = image.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return image.pixels(rows.flatten(), columns.flatten())


def fit_pixels(
    image: ImageInputs, n: int, kernel: Kernel = KERNEL, *, seed: int = 0, **config
) -> FieldFit:
    """The field given n random pixels, with `InferenceConfig(**config)`."""
    observed = observe_pixels(image, *random_pixels(image.shape, n, seed), seed=seed)
    return fit(kernel, image, observed, InferenceConfig(**config))


def room(seed: int = 0, shape: tuple[int, int] = (45, 60)) -> tuple[MDEOutput, np.ndarray]:
    """A box in front of a slanted wall; the true depth in metres deviates from it smoothly."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    depth = 1 + u / shape[1] * rng.uniform(0.5, 2)
    depth[10:30, 20:40] *= 0.5
    log_scale = 0.4 * np.sin(3 * u / shape[1] + rng.uniform(0, 6)) + 0.2 * v / shape[0]
    return MDEOutput(torch.from_numpy(depth).float(), "depth"), 2.5 * depth * np.exp(log_scale)


def draw_anchors(depth_m: np.ndarray, n: int, seed: int = 0) -> Anchors:
    """Anchors on n different pixels of a metric map."""
    rows, columns = (pixels.numpy() for pixels in random_pixels(depth_m.shape, n, seed))
    return Anchors(columns, rows, depth_m[rows, columns])


def with_depth(anchors: Anchors, depth_m: np.ndarray) -> Anchors:
    """The same anchors with other depths."""
    return Anchors(anchors.u, anchors.v, depth_m)


def absrel(recovery, depth_m: np.ndarray) -> float:
    """Mean |D̂ − D| / D over all pixels."""
    return float(np.nanmean(np.abs(recovery.depth_m.numpy() - depth_m) / depth_m))
