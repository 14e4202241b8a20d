"""Linear fits with many parameters and sparse penalties: values at the nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import coo_array, csr_array, diags_array, eye_array
from scipy.sparse.linalg import splu

from scalefield.alignment.affine import Samples
from scalefield.alignment.uncertainty import fit_variance, left_out_indices, total_std
from scalefield.seeding import seeded_rng

PROBES = 256
"""Up to this number of anchors the propagated variance is exact; beyond, it is estimated with so
many vectors of random signs, to about 9 % of the variance."""


@dataclass(frozen=True, eq=False)
class GraphSmoother:
    """The θ that minimises Σ w (y − Xθ)² + θᵀPθ, for sparse X and P."""

    design: csr_array
    """X, one row for each anchor."""
    weight: Float64[np.ndarray, " n"]
    factor: Any
    """Sparse factors of XᵀWX + P."""

    @classmethod
    def of(
        cls, design: csr_array, weight: Float64[np.ndarray, " n"], penalty: csr_array
    ) -> GraphSmoother:
        """The smoother of a design and a penalty whose sum is positive definite."""
        normal = design.T @ diags_array(weight) @ design + penalty
        # Symmetric and positive definite, so that no row is exchanged for its pivot.
        factor = splu(
            normal.tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        return cls(design, weight, factor)

    def solve(self, y: Float64[np.ndarray, "n ..."]) -> Float64[np.ndarray, "k ..."]:
        """θ for these values at the anchors."""
        return self.factor.solve(self.design.T @ (diags_array(self.weight) @ y))

    def std_log(
        self, residuals: Float64[np.ndarray, " n"], samples: Samples, design: csr_array
    ) -> Float64[np.ndarray, " p"]:
        """std_log at pixels with these rows of the design, of a fit to log-depth."""
        n = len(residuals)
        probes = np.eye(n)
        if n > PROBES:
            signs = seeded_rng(0, "probes").choice([-1.0, 1.0], (n, PROBES))
            probes = signs / PROBES**0.5
        out = left_out_indices(n)
        columns = np.zeros((n, len(out)))
        columns[out, np.arange(len(out))] = 1
        leverage = np.sum(self.design[out] * self.solve(columns).T, axis=1)
        unit = self.solve(probes)
        variance = fit_variance(
            residuals[out],
            leverage,
            np.square(self.design[out] @ unit).sum(axis=1),
            samples.tau[out],
        )
        propagated = variance * np.square(design @ unit).sum(axis=1)
        if samples.tau.any():
            noise = self.solve(samples.tau[:, None] * probes)
            propagated += np.square(design @ noise).sum(axis=1)
        return total_std(variance, propagated)


def laplacian(
    first: Int64[np.ndarray, " e"],
    second: Int64[np.ndarray, " e"],
    weight: Float64[np.ndarray, " e"],
    nodes: int,
) -> csr_array:
    """L of a graph: θᵀLθ = Σ w (θ_first − θ_second)² over its edges."""
    edges = np.arange(len(first))
    incidence = coo_array(
        (np.repeat([1.0, -1.0], len(first)), (np.tile(edges, 2), np.concatenate([first, second]))),
        shape=(len(first), nodes),
    ).tocsr()
    return (incidence.T @ diags_array(weight) @ incidence).tocsr()


def grid_laplacian(shape: tuple[int, ...]) -> csr_array:
    """L of a grid of nodes, numbered as its flat indices, with edges of weight one."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    pairs = [
        (index.take(range(size - 1), axis).ravel(), index.take(range(1, size), axis).ravel())
        for axis, size in enumerate(shape)
    ]
    first, second = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return laplacian(first, second, np.ones(len(first)), index.size)


def ridge(strength: float, nodes: int) -> csr_array:
    """P of a pull of every node toward zero."""
    return strength * eye_array(nodes, format="csr")


def selection(nodes: Int64[np.ndarray, " n"], count: int) -> csr_array:
    """The design whose row i selects the value of a node."""
    return csr_array((np.ones(len(nodes)), nodes, np.arange(len(nodes) + 1)), (len(nodes), count))
