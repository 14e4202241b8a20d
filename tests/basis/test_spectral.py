import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield.basis.spectral import spectral_statistics


@given(n=st.integers(1, 15), k=st.integers(2, 8), seed=st.integers(0, 1000))
def test_spectral_statistics_agrees_with_the_definitions(n, k, seed):
    """Against the eigendecompositions of C = MMᵀ and MᵀM, written out."""
    rng = np.random.default_rng(seed)
    M, y = rng.normal(size=(n, k)), rng.normal(size=n)
    gating = rng.random((k, 3, 4))
    found = spectral_statistics(torch.from_numpy(M), torch.from_numpy(gating), torch.from_numpy(y))
    s, U = np.linalg.eigh(M @ M.T)
    s, U = s[::-1], U[:, ::-1]
    m = min(n, k)
    np.testing.assert_allclose(found.eigenvalues, s[:m], atol=1e-9)
    assert found.eta1 == pytest.approx(s[0] / s.sum())
    np.testing.assert_allclose(found.energy, (U[:, :m].T @ y) ** 2, atol=1e-6)
    leading = np.linalg.eigh(M.T @ M)[1][:, -1]
    assert found.similarity == pytest.approx(abs(leading[0]), abs=1e-6)
    assert found.g0_mean == pytest.approx(gating[0].mean())
    assert found.g0_var == pytest.approx(gating[0].var())


def test_spectral_statistics_world_of_the_global_channel_alone():
    M = torch.zeros(10, 4)
    M[:, 0] = 0.2
    found = spectral_statistics(M, torch.full((4, 2, 2), 0.25))
    assert (found.eta1, found.similarity) == pytest.approx((1.0, 1.0))
    assert found.energy is None


def test_spectral_statistics_embeddings_of_zero_have_no_share():
    assert spectral_statistics(torch.zeros(3, 4), torch.full((4, 2, 2), 0.25)).eta1 == 0


def test_the_targets_energy_along_the_leading_eigenvector():
    """Targets along u₁ alone have a share of one; orthogonal ones none."""
    torch.manual_seed(0)
    M = torch.randn(6, 3, dtype=torch.float64)
    gating = torch.full((3, 2, 2), 1 / 3)
    U, _, _ = torch.linalg.svd(M, full_matrices=False)
    along = spectral_statistics(M, gating, 2.5 * U[:, 0])
    assert along.alpha1_share == pytest.approx(1)
    assert along.alpha1_dominance > 1e6
    mixed = spectral_statistics(M, gating, 3 * U[:, 0] + 4 * U[:, 1])
    assert mixed.alpha1_share == pytest.approx(9 / 25)
    assert mixed.alpha1_dominance == pytest.approx(3 / 4)
    assert spectral_statistics(M, gating).alpha1_share is None
    alone = spectral_statistics(M[:1], gating, torch.ones(1))
    assert (alone.alpha1_share, alone.alpha1_dominance) == (pytest.approx(1), float("inf"))
