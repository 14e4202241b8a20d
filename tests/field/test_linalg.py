import pytest
import torch

from scalefield.field.linalg import Factorisation, factorise


@pytest.fixture
def matrices():
    root = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return root @ root.mT + torch.eye(6)


@pytest.mark.parametrize("kind", ["factor", "inverse"])
def test_factorisation_solves_and_has_determinant_and_diagonal_of_the_inverse(matrices, kind):
    """By the Cholesky factor as on a processor, and by the inverse as on a GPU."""
    inverse = torch.linalg.inv(matrices)
    made = factorise(matrices)
    assert made.factor is not None
    if kind == "inverse":
        made = Factorisation(None, inverse, made.half_log_det)
    right = torch.linspace(-1, 1, 3 * 6 * 2, dtype=torch.float64).reshape(3, 6, 2)
    torch.testing.assert_close(made.solve(right), inverse @ right)
    torch.testing.assert_close(made.inverse_diagonal(), inverse.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(made.half_log_det, 0.5 * torch.logdet(matrices))
