"""What a log-scale field is made of: `Recovery.explain()`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float64

from scalefield.anchors import Anchors
from scalefield.basis.spectral import SpectralStatistics
from scalefield.recovery import Recovery

if TYPE_CHECKING:
    from PIL import Image

OUTPUTS = ("explanation.jpg", "explanation.npz")
INFLUENCE_CELLS = (8, 10)
"""Rows and columns of the lattice of pixels over which influences are averaged."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The parts of ℓ, how much each explains, and how much each anchor determines it."""

    recovery: Recovery[np.ndarray]
    parts: dict[str, Float[np.ndarray, "h w"]]
    """Maps that sum to ℓ before limits. `basis`: the offset and each w_m E_m, on the generator's
    grid. `field`: those of `Field.decompose`, at the image's size."""
    shares: dict[str, float]
    """Each part's share of the variance of ℓ over the image, cov(part, ℓ) / var(ℓ); see
    `field.decomposition`."""
    anchors: Anchors
    """The anchors that the method was given."""
    influence: Float64[np.ndarray, " n"]
    """Mean of |∂ℓ(x)/∂yᵢ| over the image, one value for each anchor."""
    weights: dict[str, float] = field(default_factory=dict)
    """w_m by the name of the part (`basis` only)."""
    gating: dict[str, Float[np.ndarray, "h w"]] = field(default_factory=dict)
    """G_m by the name of the part (`basis` only)."""
    spectrum: SpectralStatistics | None = None
    """Spectrum of the embeddings with the energy α² of the targets (`basis` only)."""

    @property
    def ranked(self) -> list[str]:
        """The names of the parts, those that explain most of ℓ first."""
        return sorted(self.parts, key=lambda name: -abs(self.shares[name]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays; `names` has the order of parts, shares and weights."""
        names = list(self.parts)
        found = {
            "names": np.array(names),
            "parts": np.stack([self.parts[name] for name in names]).astype(np.float32),
            "shares": np.array([self.shares[name] for name in names]),
            "anchors_uv": np.stack([self.anchors.u, self.anchors.v], axis=1),
            "influence": self.influence,
        }
        if self.weights:
            found["weights"] = np.array([self.weights.get(name, np.nan) for name in names])
            found["gating"] = np.stack(list(self.gating.values())).astype(np.float32)
        if self.spectrum is not None and self.spectrum.energy is not None:
            found["eigenvalues"] = np.array(self.spectrum.eigenvalues)
            found["energy"] = np.array(self.spectrum.energy)
        return found

    def picture(self) -> Image.Image:
        """One picture of it; see `export.explanation`."""
        from scalefield.export.explanation import draw_explanation

        return draw_explanation(self)

    def save(self, folder: str | Path) -> Path:
        """Write explanation.jpg and explanation.npz into a folder, and return it."""
        from scalefield.export.explanation import jpeg
        from scalefield.io import write_atomic, write_npz

        folder = Path(folder)
        write_atomic(folder / OUTPUTS[0], jpeg(self.picture()))
        write_npz(folder / OUTPUTS[1], **self.arrays())
        return folder


def lattice(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of pixels spread over an image."""
    rows, columns = (
        ((np.arange(n) + 0.5) * size / n).astype(np.int64)
        for n, size in zip(INFLUENCE_CELLS, shape, strict=True)
    )
    grid = np.meshgrid(rows, columns, indexing="ij")
    return grid[0].ravel(), grid[1].ravel()
