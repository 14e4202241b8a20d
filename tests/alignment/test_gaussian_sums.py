import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.alignment import gaussian_sums as module
from scalefield.alignment.gaussian_sums import (
    PATCH_NODES,
    gaussian_sums,
    gaussian_sums_on_image,
    solved_on_image,
)


def slow_sums(points, coefficients, bandwidth, queries):
    v, u = np.meshgrid(*queries, indexing="ij")
    squared = (v[..., None] - points[:, 0]) ** 2 + (u[..., None] - points[:, 1]) ** 2
    return np.einsum("kn,hwn->khw", coefficients, np.exp(-squared / (2 * bandwidth**2)))


def assemble(points, coefficients, bandwidth, queries, **options):
    points, coefficients, *queries = map(torch.from_numpy, (points, coefficients, *queries))
    sums = torch.full((len(coefficients), *map(len, queries)), torch.nan).double()
    for down, across, tile in gaussian_sums(
        points, coefficients, bandwidth, tuple(queries), **options
    ):
        assert sums[:, down, across].isnan().all()  # no pixel is visited twice
        sums[:, down, across] = tile
    return sums.numpy()


@given(
    n=st.integers(1, 20),
    k=st.integers(1, 5),
    bandwidth=st.floats(0.5, 100),
    numbers=st.integers(20, 5000),
    seed=st.integers(0, 2**32 - 1),
)
def test_gaussian_sums_tiles_equal_the_slow_sums(n, k, bandwidth, numbers, seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 50, (n, 2)).astype(float)
    coefficients = rng.uniform(0, 1, (k, n))
    queries = (np.arange(70.0), np.arange(3, 50, 7.0))
    with pytest.MonkeyPatch.context() as patch:  # tiles of any size
        patch.setattr(module, "TILE_NUMBERS", numbers)
        fast = assemble(points, coefficients, bandwidth, queries)
    wanted = slow_sums(points, coefficients, bandwidth, queries)
    # Relative accuracy even where sums are tiny; below 1e-290 digits go to underflow.
    np.testing.assert_allclose(fast, wanted, rtol=1e-9, atol=1e-290)


@given(
    shape=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    bandwidth=st.floats(5, 200),
    cluster=st.floats(0.05, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30)
def test_gaussian_sums_on_image_interpolated_patches_equal_the_sums_at_every_pixel(
    shape, bandwidth, cluster, seed
):
    """The relative accuracy holds wherever a sum is not negligible, also far from a cluster."""
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rng.uniform(0, cluster, (80, 2)) * shape)
    coefficients = torch.from_numpy(rng.uniform(0, 1, (2, 80)))
    reach = 9.8
    found = torch.full((2, *shape), torch.nan).double()
    for down, across, sums in gaussian_sums_on_image(points, coefficients, bandwidth, shape, reach):
        assert found[:, down, across].isnan().all()
        found[:, down, across] = sums
    queries = tuple(np.arange(n, dtype=float) for n in shape)
    wanted = slow_sums(points.numpy(), coefficients.numpy(), bandwidth, queries)
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-16)


@pytest.mark.parametrize("resolved", [0.0, module.RESOLVED])
@given(
    shape=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    bandwidth=st.floats(5, 200),
    cluster=st.floats(0.05, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20)
def test_solved_on_image_ratio_of_sums_is_that_of_every_pixel(
    resolved, shape, bandwidth, cluster, seed
):
    """The ratio is interpolated where it is smooth and computed at every pixel elsewhere."""
    rng = np.random.default_rng(seed)
    points = torch.from_numpy(rng.uniform(0, cluster, (80, 2)) * shape)
    weight, value = rng.uniform(0.1, 1, (2, 80))
    coefficients = torch.from_numpy(np.stack([weight, weight * value]))

    def smoothed(sums):  # tends to one half far from all points, over less than a bandwidth
        return ((sums[1] + 5e-7) / (sums[0] + 1e-6))[None]

    found = torch.full(shape, torch.nan).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RESOLVED", resolved)
        tiles = solved_on_image(points, coefficients, bandwidth, shape, reach=9.8, solve=smoothed)
        for down, across, (ratio,) in tiles:
            assert found[down, across].isnan().all()
            found[down, across] = ratio
    queries = tuple(np.arange(n, dtype=float) for n in shape)
    wanted = smoothed(slow_sums(points.numpy(), coefficients.numpy(), bandwidth, queries))[0]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_solved_on_image_smooth_ratio_is_interpolated():
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.uniform(0, 200, (400, 2)))
    calls = []
    maps = solved_on_image(
        points, torch.ones(1, 400).double(), 50.0, (200, 200), reach=9.8,
        solve=lambda sums: calls.append(sums.shape) or sums / (sums + 1),
    )  # fmt: skip
    assert sum(ratio.numel() for _, _, ratio in maps) == 200 * 200
    assert {rows * columns for _, rows, columns in calls} == {PATCH_NODES * 2 * PATCH_NODES}


@pytest.mark.parametrize(("n", "bandwidth"), [(PATCH_NODES, 50.0), (500, 10.0)])
def test_gaussian_sums_on_image_patches_are_made_only_where_they_save_work(
    n, bandwidth, monkeypatch
):
    monkeypatch.setattr(module, "_chebyshev", None)  # not to be called
    points = torch.zeros(n, 2).double()
    tiles = gaussian_sums_on_image(points, torch.ones(1, n).double(), bandwidth, (9, 9), 9.8)
    (_, _, sums) = next(tiles)
    assert float(sums[0, 0, 0]) == n


@pytest.mark.parametrize("axis", [0, 1])
def test_gaussian_sums_reach_leaves_out_what_is_far_beyond_a_tile(axis):
    points = np.zeros((2, 2))
    points[1, axis] = 100
    queries = (np.array([0.0]), np.array([0.0]))
    ones = np.ones((1, 2))
    assert assemble(points, ones, 50.0, queries)[0, 0, 0] == pytest.approx(1 + np.exp(-2))
    assert assemble(points, ones, 50.0, queries, reach=1.9)[0, 0, 0] == 1


def test_gaussian_sums_of_infinite_bandwidth_are_plain_sums():
    points = np.array([[0.0, 0.0], [9.0, 5.0]])
    queries = (np.arange(3.0), np.arange(4.0))
    np.testing.assert_array_equal(assemble(points, np.ones((1, 2)), np.inf, queries), 2)
