import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield.basis.grids import (
    GRID_CELLS,
    geometric_cues,
    grid_log_depth,
    grid_shape,
    sample,
    upsample,
)


@given(
    grid=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 1000),
)
def test_a_sample_at_a_pixel_is_the_dense_field_there(grid, shape, seed):
    """The law that lets anchors and field agree: E at an anchor is E upsampled, at that pixel."""
    rng = torch.Generator().manual_seed(seed)
    maps = torch.randn(2, 3, *grid, generator=rng, dtype=torch.float64)
    dense = upsample(maps, shape)
    v, u = torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij")
    pixels = torch.stack([u.flatten(), v.flatten()], dim=1).double().expand(2, -1, 2)
    sampled = sample(maps, pixels, shape)
    torch.testing.assert_close(sampled.mT.reshape(2, 3, *shape), dense, atol=1e-9, rtol=0)


def test_grid_shape_grid_keeps_the_aspect_ratio_and_never_exceeds_the_image():
    assert grid_shape(480, 640) == (120, GRID_CELLS)
    assert grid_shape(375, 1242) == (48, GRID_CELLS)
    assert grid_shape(30, 20) == (30, 20)
    assert grid_shape(1, 5000) == (1, GRID_CELLS)


@given(scale=st.floats(1e-6, 1e6))
def test_the_scale_of_the_mde_leaves_no_trace_in_the_cues(scale):
    depth = torch.rand(1, 50, 70, dtype=torch.float64) + 0.5
    torch.testing.assert_close(grid_log_depth(depth), grid_log_depth(depth * scale))


def test_grid_log_depth_is_the_mean_logarithm_of_each_cell():
    depth = torch.rand(1, 4 * GRID_CELLS, 4 * GRID_CELLS, dtype=torch.float64) + 0.5
    cells = depth.log().reshape(GRID_CELLS, 4, GRID_CELLS, 4).mean(dim=(1, 3))
    expected = cells - cells.flatten().median()
    torch.testing.assert_close(grid_log_depth(depth)[0, 0], expected)


def test_cues_are_log_depth_its_gradient_and_coordinates():
    v, u = np.mgrid[0:5, 0:8]
    log_depth = torch.from_numpy(0.3 * u - 0.2 * v).double()[None, None]
    cues = geometric_cues(log_depth)[0]
    assert cues.shape == (5, 5, 8)
    torch.testing.assert_close(cues[0], log_depth[0, 0])
    torch.testing.assert_close(cues[1, :, 1:-1], torch.full((5, 6), 0.3, dtype=torch.float64))
    torch.testing.assert_close(cues[2, 1:-1], torch.full((3, 8), -0.2, dtype=torch.float64))
    assert cues[3, 0].tolist() == pytest.approx(((np.arange(8) + 0.5) / 4 - 1).tolist())
    assert cues[4, :, 0].tolist() == pytest.approx(((np.arange(5) + 0.5) / 2.5 - 1).tolist())
