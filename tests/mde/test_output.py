import pytest
import torch

from scalefield.mde.output import MDEOutput


@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_disparities_below_a_thousandth_of_the_99th_percentile_are_equally_far(unit):
    """Nearer ones are inverted as they are, in any unit."""
    disparity = torch.linspace(0.002, 1.0, 200)
    disparity[:3] = torch.tensor([0.0, 0.0005, 0.001])
    depth = MDEOutput(unit * disparity[None], "disparity").mde_depth[0] * unit
    high = float(disparity[197])
    wanted = [1 / (1e-3 * high)] * 2
    assert depth[:2].tolist() == pytest.approx(wanted, rel=1e-5)
    torch.testing.assert_close(depth[2:], 1 / disparity[2:], rtol=1e-5, atol=0)
