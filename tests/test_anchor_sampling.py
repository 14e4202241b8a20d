import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scalefield.anchor_sampling import (
    DROP_SEQUENCE,
    NUDGE,
    REGIMES,
    _nearest_valid,
    anchor_grid_shape,
    depth_mask,
    drop_anchors,
    sample_anchors,
)
from scalefield.errors import InputError
from scalefield.seeding import seeded_rng

MASKS = st.tuples(st.integers(1, 24), st.integers(1, 24)).flatmap(lambda s: arrays(bool, s))


def ramp(shape: tuple[int, int]) -> np.ndarray:
    """A depth that is different at every pixel."""
    return 1 + np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)


def pixel_set(anchors) -> set[tuple[int, int]]:
    return set(zip(anchors.v.astype(int), anchors.u.astype(int), strict=True))


def test_depth_mask_keeps_known_depths_in_range_that_are_not_sky() -> None:
    depth_m = np.array([[np.nan, 0.05, 0.1, 5.0], [10.0, 10.5, np.inf, 7.0]])
    sky = np.zeros((2, 4), bool)
    sky[1, 3] = True
    expected = [[False, False, True, True], [True, False, False, False]]
    assert depth_mask(depth_m, (0.1, 10.0), sky).tolist() == expected


@given(MASKS, st.sampled_from([*REGIMES, 1, 9, 40]), st.text(max_size=5))
def test_sample_anchors_gives_the_wanted_number_of_distinct_valid_pixels(
    mask, regime, name
) -> None:
    if not mask.any():
        with pytest.raises(InputError, match="no pixel with a known depth"):
            sample_anchors(ramp(mask.shape), mask, regime, seed=0, name=name)
        return
    depth_m = ramp(mask.shape)
    anchors = sample_anchors(depth_m, mask, regime, seed=0, name=name)
    rows, columns = anchors.pixels(mask.shape)
    assert mask[rows, columns].all()
    assert len(pixel_set(anchors)) == len(anchors)
    assert (anchors.depth_m == depth_m[rows, columns]).all()
    low, high = REGIMES.get(regime, (regime, regime))
    assert min(low, mask.sum()) <= len(anchors) <= min(high, mask.sum())


@pytest.mark.parametrize("regime", REGIMES)
def test_sample_anchors_every_number_of_the_interval_is_drawn(regime) -> None:
    mask = np.ones((60, 80), bool)
    low, high = REGIMES[regime]
    drawn = {
        len(sample_anchors(ramp(mask.shape), mask, regime, seed=0, name=str(i))) for i in range(300)
    }
    assert drawn == set(range(low, high + 1))


def test_sample_anchors_depends_on_seed_and_name_only() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((50, 70)) < 0.2
    depth_m = ramp(mask.shape)
    first = [pixel_set(sample_anchors(depth_m, mask, "high", seed=0, name=n)) for n in "abc"]
    np.random.default_rng().random(5)
    again = [pixel_set(sample_anchors(depth_m, mask, "high", seed=0, name=n)) for n in "cba"]
    assert first == again[::-1]
    assert first[0] != first[1]
    assert first[0] != pixel_set(sample_anchors(depth_m, mask, "high", seed=1, name="a"))
    # The stream itself is pinned: published tables must survive a new version.
    assert seeded_rng(0, "a").integers(1000, size=3).tolist() == [34, 287, 277]


def test_sample_anchors_candidates_outside_the_mask_move_to_the_nearest_valid_pixel() -> None:
    rng = np.random.default_rng(3)
    mask = rng.random((40, 40)) < 0.3
    anchors = sample_anchors(ramp(mask.shape), mask, 16, seed=0, name="x")  # exactly 4 × 4
    valid = np.argwhere(mask)
    centres = [(v, u) for v in range(5, 40, 10) for u in range(5, 40, 10)]
    found = pixel_set(anchors)
    for centre in centres:
        distances = ((valid - centre) ** 2).sum(1)
        nearest = {tuple(p) for p in valid[distances == distances.min()]}
        assert found & nearest


@given(MASKS)
def test_sample_anchors_moved_candidates_equal_a_search_over_all_pixels(mask) -> None:
    if not mask.any():
        return
    v, u = (i.ravel() for i in np.indices(mask.shape))
    found = np.stack(_nearest_valid(mask, v, u), axis=1)
    valid = np.argwhere(mask)
    for pixel, moved in zip(np.argwhere(np.ones_like(mask)), found, strict=True):
        square = ((valid - pixel) ** 2).sum(axis=1)
        nearest = valid[square == square.min()]
        # Of equally near ones the upper, then the left one.
        assert tuple(moved) == tuple(nearest[np.argmin(nearest @ NUDGE)])


def test_sample_anchors_full_mask_gives_the_centres_of_the_cells() -> None:
    mask = np.ones((30, 40), bool)
    anchors = sample_anchors(ramp(mask.shape), mask, 12, seed=5, name="x")
    assert pixel_set(anchors) == {(v, u) for v in (5, 15, 25) for u in (5, 15, 25, 35)}


@given(st.integers(1, 600), st.integers(1, 2000), st.integers(1, 2000))
def test_anchor_grid_shape_holds_n_cells_with_less_than_a_row_in_excess(n, height, width) -> None:
    rows, columns = anchor_grid_shape(n, (height, width))
    assert n <= rows * columns < n + rows


@pytest.mark.parametrize(("n", "shape"), [(110, (375, 1242)), (515, (480, 640)), (13, (480, 640))])
def test_anchor_grid_shape_cells_are_nearly_square(n, shape) -> None:
    rows, columns = anchor_grid_shape(n, shape)
    assert 0.7 < (shape[1] / columns) / (shape[0] / rows) < 1.45


def slow_drop(points: list[tuple[int, int]]) -> tuple[int, int]:
    """The point to remove: smallest sorted list of distances to the others, then row order."""
    return min(
        points,
        key=lambda p: (
            sorted((p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 for q in points if q != p),
            p,
        ),
    )


@given(MASKS)
def test_drop_anchors_equals_its_slow_reference_and_is_nested(mask) -> None:
    if not mask.any():
        return
    sets = drop_anchors(ramp(mask.shape), mask, seed=0, name="x")
    available = int(mask.sum())
    assert list(sets) == [n for n in DROP_SEQUENCE if n <= available]
    points = sorted(pixel_set(sample_anchors(ramp(mask.shape), mask, 9, seed=0, name="x")))
    for n, anchors in sets.items():
        while len(points) > n:
            points.remove(slow_drop(points))
        assert sorted(pixel_set(anchors)) == points


def test_sample_anchors_errors_name_what_was_wanted() -> None:
    mask = np.ones((4, 4), bool)
    with pytest.raises(InputError, match="no anchor regime 'dense'; there are low, medium, high"):
        sample_anchors(ramp((4, 4)), mask, "dense", seed=0, name="x")
    with pytest.raises(InputError, match="at least 1, found 0"):
        sample_anchors(ramp((4, 4)), mask, 0, seed=0, name="x")
