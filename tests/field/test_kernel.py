import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scalefield.kernel import Kernel, Points, Term

from scalefield.errors import InputError

KERNEL = Kernel(
    2.0,
    1.5,
    (Term(0.15, 0.5, 0.6, "gaussian"), Term(0.2, 0.1, 0.3, "exponential")),
    0.02,
    slope=0.3,
    doubt=0.4,
)


def points(n, seed=0, k=4):
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    shapes = draw(n, 2), draw(n) * 2, draw(n, k) - 0.5
    return Points(*shapes, draw(n, 2, 3) - 0.5, 0.5 + draw(n, 2), draw(n) - 0.5)


def test_equals_the_formula_pair_by_pair():
    a, b = points(5, 1), points(4, 2)
    found = KERNEL(a, b)
    for i in range(5):
        for j in range(4):
            value = 2.0**2 + 1.5**2 * float(a.modes[i] @ b.modes[j])
            value += 0.3**2 * float(a.log_depth[i] * b.log_depth[j])
            value += 0.4**2 * float(a.mean[i] * b.mean[j])
            for t, (amplitude, length, depth, shape) in enumerate(
                ((0.15, 0.5, 0.6, "g"), (0.2, 0.1, 0.3, "e"))
            ):
                dp = np.asarray(a.position[i] - b.position[j]) / length
                dd = float(a.log_depth[i] - b.log_depth[j]) / depth
                de = np.asarray(a.embedding[i, t] - b.embedding[j, t])
                r = np.sqrt(dp @ dp + dd**2 + de @ de)
                correlation = np.exp(-(r**2) / 2) if shape == "g" else np.exp(-r)
                local = float(a.amplitude[i, t] * b.amplitude[j, t])
                value += amplitude**2 * local * correlation
            assert float(found[i, j]) == pytest.approx(value, rel=1e-6)


@given(n=st.integers(1, 25), seed=st.integers(0, 500))
def test_it_is_a_covariance(n, seed):
    """Symmetric, without negative eigenvalues; its diagonal is the variance."""
    a = points(n, seed)
    whole = KERNEL(a, a)
    torch.testing.assert_close(whole, whole.mT)
    assert float(torch.linalg.eigvalsh(whole).min()) > -1e-9
    torch.testing.assert_close(KERNEL.variance(a), whole.diagonal())


def test_it_can_be_learned():
    a = points(6)
    numbers = torch.tensor([0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)

    def total(x):
        return Kernel(1.0, 1.0, (Term(x[0], x[1], x[2], "gaussian"),), 0.1)(a, a).sum()

    assert torch.autograd.gradcheck(total, numbers)


def test_negative_numbers_are_refused():
    with pytest.raises(InputError, match="noise must not be negative"):
        Kernel(1.0, 1.0, (), -0.1)
