import pytest
import torch

from scalefield.basis.grids import upsample
from scalefield.deviation import dense_std, std_cells
from test_scene import SHAPE, posterior_of, room


@pytest.mark.parametrize("n", [1, 9, 300])
def test_the_deviation_is_the_posterior_s(n):
    posterior, scene = posterior_of(room(), n)
    cells = std_cells(scene, n)
    found = dense_std(posterior, scene)
    expected = posterior.variance(cells.points).sqrt().float().reshape(1, 1, *cells.shape)
    torch.testing.assert_close(found, upsample(expected, SHAPE)[0, 0], atol=1e-5, rtol=1e-4)
