import torch

from scalefield.field.linalg import Cholesky


def test_cholesky_solves_and_has_determinant_and_diagonal_of_the_inverse():
    root = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = root @ root.mT + torch.eye(6)
    inverse, made = torch.linalg.inv(matrices), Cholesky.of(matrices)
    right = torch.linspace(-1, 1, 3 * 6 * 2, dtype=torch.float64).reshape(3, 6, 2)
    torch.testing.assert_close(made.solve(right), inverse @ right)
    torch.testing.assert_close(made.inverse_diagonal(), inverse.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(made.half_log_det(), 0.5 * torch.logdet(matrices))
