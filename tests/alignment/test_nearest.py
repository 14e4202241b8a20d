import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.alignment import nearest
from scalefield.alignment.nearest import nearest_points


def gathered(points, shape, k, wanted=None):
    """Index and d² by pixel, and the mask of pixels that were yielded."""
    index, squared = np.full((2, k, shape[0] * shape[1]), -1)
    for pixel, who, how_far in nearest_points(points, shape, k, torch.device("cpu"), wanted):
        # As an array: numpy takes a tensor of one element for a number.
        index[:, pixel.numpy()], squared[:, pixel.numpy()] = who, how_far
    return index, squared


@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    n=st.integers(1, 40),
    k=st.integers(1, 6),
    crowded=st.booleans(),
)
@settings(max_examples=40)
def test_nearest_points_equals_a_search_at_every_pixel(seed, shape, n, k, crowded):
    rng = np.random.default_rng(seed)
    k = min(k, n)
    points = rng.integers(0, [-(-size // 8) if crowded else size for size in shape], (n, 2))
    with pytest.MonkeyPatch.context() as patch:  # several rounds of cutting, several chunks
        patch.setattr(nearest, "MANY_CANDIDATES", 5)
        patch.setattr(nearest, "SMALLEST_TILE", 2)
        patch.setattr(nearest, "PIXELS_AT_ONCE", 300)
        index, squared = gathered(points, shape, k)
    grid = np.indices(shape).reshape(2, -1).T
    distances = ((grid[:, None] - points) ** 2).sum(axis=2)
    # A stable sort takes the first of equally near points, as the tiles do.
    np.testing.assert_array_equal(index.T, np.argsort(distances, axis=1, kind="stable")[:, :k])
    np.testing.assert_array_equal(squared.T, np.sort(distances, axis=1)[:, :k])


def test_nearest_points_large_images_do_not_overflow_the_keys():
    shape = (9, 60_000)  # d² · 2^bits passes 2³¹
    points = np.array([[4, 0], [8, 59_999], [0, 30_000]])
    _, squared = gathered(points, shape, 3)
    assert squared.max() == 8**2 + 59_999**2
    assert squared.min() == 0


def test_nearest_points_only_the_tiles_that_are_wanted_are_made():
    wanted = np.zeros((64, 96), dtype=bool)
    wanted[40, 70] = True
    index, _ = gathered(np.array([[0, 0], [63, 95]]), wanted.shape, 1, wanted)
    assert index[0].reshape(wanted.shape)[40, 70] == 1
    assert np.count_nonzero(index >= 0) == 32 * 32
