import numpy as np
import pytest

import scalefield as sf
from scalefield.inputs import from_array
from scalefield.methods.superpixel_graph import (
    SMALLEST_WEIGHT,
    SuperpixelGraph,
    pixel_graph,
    region_laplacian,
)


def test_region_laplacian_weighs_borders_by_length_and_step():
    regions = np.zeros((4, 6), int)
    regions[:, 3:], regions[2:, 3:] = 1, 2
    log_depth = np.where(regions == 2, 0.1, 0.0)
    found = region_laplacian(regions, log_depth, step=0.1).toarray()
    # Borders: 0–1 has 2 pixels and no step, 0–2 has 2, 1–2 has 3, both with a step of 0.1.
    mean, fall = 7 / 3, np.exp(-1)
    a, b, c = 2 / mean, 2 / mean * fall, 3 / mean * fall
    np.testing.assert_allclose(found, [[a + b, -a, -b], [-a, a + c, -c], [-b, -c, b + c]])
    steep = region_laplacian(regions, 100 * log_depth, step=0.1).toarray()
    assert steep[0, 2] == pytest.approx(-2 / mean * SMALLEST_WEIGHT)
    assert region_laplacian(np.zeros((3, 3), int), np.zeros((3, 3)), 0.1).toarray() == [[0]]


def test_pixel_graph_costs_more_across_a_step():
    log_depth = np.array([[0.0, 0.0, 0.3]])
    graph = pixel_graph(log_depth, step=0.1).toarray()
    assert graph[0, 1] == pytest.approx(1)
    assert graph[1, 2] == pytest.approx(4)


def test_superpixel_graph_gives_each_superpixel_its_own_scale():
    """Of two level halves with a step between, each follows its anchor."""
    depth = np.ones((10, 20))
    depth[:, 10:] = 3.0
    regions = (depth > 2).astype(int)
    method = SuperpixelGraph(space="depth")
    anchors = sf.Anchors([2, 17, 4], [2, 7, 8], [2.0, 9.0, 2.0])
    found = method.fit(from_array(depth, "depth"), regions, anchors).depth_m.numpy()
    np.testing.assert_allclose(found[:, :10], 2.0, rtol=1e-3)
    np.testing.assert_allclose(found[:, 10:], 9.0, rtol=1e-3)


def test_superpixel_graph_spreads_scales_to_superpixels_without_anchors():
    """Three stripes in a row and anchors in the outer two: the middle one is their mean."""
    regions = np.repeat([0, 1, 2], 4)[None].repeat(6, axis=0)
    mde_output = from_array(np.ones((6, 12)), "depth")
    method = SuperpixelGraph(smoothness=1e-6)
    anchors = sf.Anchors([0, 11], [0, 5], [1.0, 4.0])
    found = method.fit(mde_output, regions, anchors).depth_m.numpy()
    np.testing.assert_allclose(found[:, 4:8], 2.0, rtol=1e-3)


def test_superpixel_graph_refinement_stops_at_a_discontinuity():
    depth = np.ones((9, 20))
    depth[:, 10:] = 8.0
    regions = np.zeros(depth.shape, int)
    # One superpixel: what its scale leaves at an anchor is corrected on the anchor's side only.
    anchors = sf.Anchors([9, 0, 19], [4, 4, 4], [1.5, 1.0, 8.0])
    found = SuperpixelGraph().fit(from_array(depth, "depth"), regions, anchors).depth_m.numpy()
    ratio = found / depth
    assert ratio[4, 9] > 1.2 * ratio[4, 0]
    assert ratio[4, 9] == pytest.approx(1.5, rel=0.02)
    assert ratio[4, 10] == pytest.approx(ratio[4, 19], rel=0.1)
    assert ratio[4, 8] > 1.1 * ratio[4, 10]


@pytest.mark.parametrize("option", ["compactness", "smoothness", "step"])
def test_superpixel_graph_refuses_options(option):
    with pytest.raises(sf.InputError, match=option):
        SuperpixelGraph(**{option: 0.0})
    with pytest.raises(sf.InputError, match="superpixels"):
        SuperpixelGraph(superpixels=0)
