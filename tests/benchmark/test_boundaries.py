import numpy as np
import pytest

from scalefield.benchmark.boundaries import boundary_scores


def test_boundary_scores_of_the_true_map_are_one_whatever_its_scale():
    true = np.ones((20, 30))
    true[5:12, 8:20] = 3.0
    scores = boundary_scores(7 * true, true)
    assert scores == pytest.approx((1, 1, 1))


def test_boundary_scores_of_a_blurred_edge_fall_and_those_of_a_flat_map_are_zero():
    true = np.ones((20, 30))
    true[:, 15:] = 2.0
    blurred = np.exp(np.interp(np.arange(30), [10, 20], [0, np.log(2)]))[None].repeat(20, 0)
    # One direction of four has boundaries; each step of the blurred edge is a factor of 1.07.
    assert boundary_scores(true, true).recall == pytest.approx(0.25)
    assert 0 < boundary_scores(blurred, true).precision < 0.05
    assert boundary_scores(np.ones_like(true), true) == (0, 0, 0)


def test_boundary_scores_leave_unknown_pixels_out():
    true = np.ones((4, 6))
    true[:, 3:] = 2.0
    known = np.ones_like(true, dtype=bool)
    known[:, 3] = False
    assert boundary_scores(true, true, known) == (0, 0, 0)
