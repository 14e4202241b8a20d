"""Small worlds for the aligners: a relative map, and anchors on a metric one."""

from collections.abc import Callable, Iterator

import jaxtyping
import numpy as np
import pytest
import torch

from scalefield import Anchors, MDEOutput


@pytest.fixture(scope="session")
def relative() -> Callable[..., MDEOutput]:
    """A map of blobs between about 0.4 and 3, of either kind, in float64."""

    def make(shape: tuple[int, int] = (30, 40), kind: str = "depth", seed: int = 0) -> MDEOutput:
        rng = np.random.default_rng(seed)
        coarse = torch.from_numpy(np.exp(0.4 * rng.standard_normal((5, 6))))
        values = torch.nn.functional.interpolate(
            coarse[None, None], size=shape, mode="bicubic", align_corners=True
        )[0, 0].clamp(min=0.1)
        return MDEOutput(values, kind)

    return make


@pytest.fixture(scope="session")
def measure() -> Callable[..., Anchors]:
    """Anchors on n different pixels of a metric map."""

    def make(depth_m: np.ndarray, n: int, seed: int = 0, sigma_m: bool = False) -> Anchors:
        rng = np.random.default_rng(seed)
        pixel = rng.choice(depth_m.size, n, replace=False)
        v, u = np.divmod(pixel, depth_m.shape[1])
        sigma = rng.uniform(0.01, 0.5, n) if sigma_m else None
        return Anchors(u, v, np.asarray(depth_m)[v, u], sigma)

    return make


@pytest.fixture
def as_users_run_it() -> Iterator[None]:
    """Without the checks of annotations, which only tests have: our own errors must come."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
