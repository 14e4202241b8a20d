import numpy as np

from scalefield import Anchors
from scalefield.methods.median import Median


def test_median_ratio_scales_the_whole_map(relative):
    mde_output = relative()
    rows, columns = np.array([3, 8, 20]), np.array([5, 30, 12])
    mde_depth = mde_output.mde_depth.numpy()
    anchors = Anchors(columns, rows, mde_depth[rows, columns] * np.array([2.0, 5.0, 100.0]))
    recovery = Median()(mde_output, anchors)
    np.testing.assert_allclose(recovery.depth_m, 5 * mde_depth, rtol=1e-6)
    np.testing.assert_allclose(recovery.report.residuals_log, np.log([2.5, 1, 0.05]), atol=1e-6)
