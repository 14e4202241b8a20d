"""Settings of the inference of `field`."""

from __future__ import annotations

from dataclasses import dataclass, field

from scalefield.validation import require


@dataclass(frozen=True)
class OutlierConfig:
    """Settings of the outlier search (`scalefield.field.outliers`)."""

    min_anchors: int = 5
    """Among fewer anchors none is called an outlier: there is no majority."""
    error_std: float = 0.8
    """Standard deviation of an outlier's error in log-depth."""
    prior_counts: tuple[float, float] = (2.0, 6.0)
    """Beta prior of the share of outliers, as counts of outliers and inliers."""
    max_share: float = 0.45
    """Largest share of outliers in a block."""
    roughness: tuple[float, ...] = (2.0, 1.0, 0.6)
    """Factors on the field's prior standard deviation that are compared."""
    roughness_log_std: float = 0.7
    """Prior standard deviation of the logarithm of that factor."""
    iterations: int = 12
    """Largest number of steps of the search."""
    anchors_per_step: int = 16
    """In each step, at most one of so many anchors of a block becomes an outlier, but at least one
    of a block may."""
    min_relative_gain: float = 0.4
    """Least gain of an anchor that becomes an outlier, relative to the highest in its block."""
    gross_log_error: float = 2.08
    """Deviations from the block's median beyond this (a factor of 8) are misplaced decimal points
    and wrong units: they need no evidence that any anchor is an outlier."""
    min_weight: float = 0.1
    """Outliers are rejected if their relative weight, rounded to tenths, is not above this."""
    sharpness: float = 2.0
    """Factor on the log-odds of being an outlier where they become a weight."""
    neighbours: int = 10
    """Nearest anchors that can corroborate an anchor."""
    agreement_std: float = 0.12
    """Standard deviation of the difference in log-depth or log-scale between an anchor and a
    neighbour on the same object."""
    corroboration_log_odds: float = -1.1
    """Prior log-odds that an anchor in conflict with the field lies on an object that the estimator
    missed, rather than being an outlier."""


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of the nearest-neighbour Gaussian process (`scalefield.field.posterior`)."""

    neighbours: int = 12
    """Nearest anchors that each local solve uses. With no more anchors than this, the solution is
    that of the exact Gaussian process."""
    cell_px: tuple[int, int] = (8, 16)
    """Least and largest spacing of the local solves in pixels, which follows that of the anchors.
    Predictions are blended bilinearly between them."""
    max_cell_spacing: float = 2.5
    """Cells larger than this many times the spacing of the anchors are halved, also below the least
    size: the neighbours of their corners would leave out the anchors in their middle."""
    max_cells: int = 160
    """Largest number of cells along the image's longer side; cells of larger images grow."""
    block_size: int = 128
    """Largest block of anchors; blocks are taken as independent given the linear part. With no more
    anchors than this, the linear part and the leave-one-out residuals are exact."""
    outliers: OutlierConfig = field(default_factory=OutlierConfig)

    def __post_init__(self) -> None:
        for name in ("neighbours", "max_cells", "block_size"):
            require(getattr(self, name) >= 1, name, "1 or more", getattr(self, name))
        require(self.max_cell_spacing >= 1, "max_cell_spacing", "1 or more", self.max_cell_spacing)
        least, largest = self.cell_px
        require(1 <= least <= largest, "cell_px", "1 or more, in order", self.cell_px)
