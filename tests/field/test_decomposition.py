import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield.field.decomposition import Decomposition


@given(parts=st.integers(1, 6), holes=st.booleans(), seed=st.integers(0, 500))
def test_shares_sum_to_one_and_are_those_of_the_variance(parts, holes, seed):
    rng = torch.Generator().manual_seed(seed)
    valid = torch.rand(9, 11, generator=rng) > (0.3 if holes else -1)
    maps = {str(k): k * torch.randn(9, 11, generator=rng) for k in range(1, parts + 1)}
    made = Decomposition({"global": torch.full((9, 11), 0.7), **maps}, valid)
    whole = torch.stack(list(made.parts.values())).sum(dim=0)
    torch.testing.assert_close(made.log_scale, whole)
    shares = made.shares
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert shares["global"] == pytest.approx(0, abs=1e-5)
    for name, part in made.parts.items():
        both = torch.stack([part[valid], whole[valid]]).double().cov()
        assert shares[name] == pytest.approx(float(both[0, 1] / both[1, 1]), abs=1e-5)


def test_a_part_against_the_others_has_a_negative_share():
    ramp = torch.linspace(0, 1, 12).reshape(3, 4)
    made = Decomposition({"up": 3 * ramp, "down": -ramp}, torch.ones(3, 4, dtype=torch.bool))
    assert made.shares == pytest.approx({"up": 1.5, "down": -0.5})


def test_a_field_that_does_not_vary_has_no_shares():
    made = Decomposition({"global": torch.full((3, 4), 2.5)}, torch.ones(3, 4, dtype=torch.bool))
    assert made.shares == {"global": 0.0}
