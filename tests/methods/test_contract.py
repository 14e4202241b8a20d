"""Properties of every method for all kinds of maps and anchors."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import scalefield as sf
from scalefield.api import recover_from
from scalefield.inputs import from_array
from scalefield.mde.output import MDEOutput
from scalefield.methods import METHODS
from scalefield.methods.basis import Basis
from scalefield.methods.field import Field
from scalefield.methods.interpolate import Interpolate
from scalefield.methods.log_kernel import LogKernel
from scalefield.methods.median import Median

SHAPE = (24, 32)


LABELS = np.indices(SHAPE).sum(axis=0) // 14  # diagonal stripes
VARIANTS = {
    "global-ransac": ("global", {"fit": "ransac"}),
    "global-median_mad": ("global", {"fit": "median_mad"}),
    "global-disparity": ("global", {"space": "disparity"}),
    "piecewise-continuous": ("piecewise", {"variant": "continuous"}),
    "piecewise-5-equal": ("piecewise", {"bins": 5, "edges": "equal_width", "space": "disparity"}),
    "lwlr-exact": ("lwlr", {"stride": 1, "bandwidth": "adaptive"}),
    "lwlr-narrow": ("lwlr", {"stride": 1, "bandwidth": 0.3, "space": "disparity"}),
    "lwlr-drop": ("lwlr", {"drop_outliers": True}),
    "grid-4x5": ("grid", {"rows": 4, "columns": 5, "space": "disparity"}),
    "region-labels": ("region", {"labels": LABELS}),
    "region-strict": ("region", {"labels": LABELS, "strict": True, "space": "disparity"}),
    "knn-depth": ("knn", {"k": 3, "space": "depth"}),
    "interpolate-disparity": ("interpolate", {"linear_in": "disparity"}),
    "log_kernel-narrow": ("log_kernel", {"bandwidth_px": 0.1}),
}
BUILDERS = {
    **METHODS,
    # Enough for so small an image.
    "region": lambda: METHODS["region"](superpixels=10),
    "superpixel_graph": lambda: METHODS["superpixel_graph"](superpixels=10),
}
BUILDERS |= {
    variant: (lambda name=name, options=options: METHODS[name](**options))
    for variant, (name, options) in VARIANTS.items()
}


def smooth() -> np.ndarray:
    v, u = np.indices(SHAPE)
    return 1.5 + np.sin(u / 5) * 0.6 + v / 20


def holed(*values: float) -> np.ndarray:
    depth = smooth()
    depth[3:6, 4:9] = values[0]
    depth[-1, -len(values) :] = values
    return depth


wide = np.geomspace(1e-6, 1e6, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
MAPS = {
    "depth": (smooth(), "depth"),
    "disparity": (1 / smooth(), "disparity"),
    "constant": (np.full(SHAPE, 0.7), "depth"),
    "constant-disparity": (np.full(SHAPE, 0.7), "disparity"),
    "tiny": (1e-6 * smooth(), "depth"),
    "huge": (1e6 * smooth(), "depth"),
    "huge-disparity": (1e6 / smooth(), "disparity"),
    "wide": (wide, "depth"),
    "wide-disparity": (wide[::-1].copy(), "disparity"),
    "float16": (smooth().astype(np.float16), "depth"),
    "float16-disparity": ((1 / smooth()).astype(np.float16), "disparity"),
    "holes": (holed(np.nan, 0, -1, np.inf), "depth"),
    "holes-disparity": (1 / holed(np.nan, -np.inf, np.nan), "disparity"),
    "relu-disparity": (np.maximum(1 / smooth() - 0.5, 0), "disparity"),
    "shifted-disparity": (1 / smooth() - 0.6, "disparity"),
}

scattered = np.random.default_rng(1).permutation(SHAPE[0] * SHAPE[1])[:40]
ANCHORS = {
    "one": ([7], [9], [3.0]),
    "two": ([7, 25], [9, 15], [3.0, 4.0]),
    "row": (range(2, 30, 3), [10] * 10, np.linspace(2, 9, 10)),
    "repeated": ([7, 7, 7, 20], [9, 9, 9, 20], [3.0, 3.0, 3.0, 5.0]),
    "contradicting": ([7, 7, 7, 20, 20], [9, 9, 9, 20, 20], [3.0, 30.0, 0.3, 5.0, 1.0]),
    "extreme": ([2, 9, 17, 25, 30, 12], [2, 9, 12, 20, 4, 21], [1e-6, 1e6, 1, 1e3, 1e-3, 2]),
    "many": (scattered % 32, scattered // 32, 2 + scattered % 7),
    "contrary": (range(1, 31, 3), range(3, 23, 2), np.linspace(20, 1, 10)),
}


def anchors_named(name: str) -> sf.Anchors:
    return sf.Anchors(*(np.array(list(column), dtype=float) for column in ANCHORS[name]))


@pytest.fixture(scope="module", params=BUILDERS)
def method(request):
    return BUILDERS[request.param]()


def test_contract_covers_every_method():
    assert set(METHODS) <= set(BUILDERS)


@pytest.mark.parametrize("anchor_set", ANCHORS)
@pytest.mark.parametrize("mde_map", MAPS)
def test_method_finite_positive_float32_of_the_images_size(method, mde_map, anchor_set):
    mde_output = from_array(*MAPS[mde_map])
    anchors = anchors_named(anchor_set)
    recovery = recover_from(mde_output, anchors, method)

    valid = mde_output.valid
    maps = [recovery.depth_m, recovery.log_scale]
    if recovery.std_log is not None:
        assert (recovery.std_log[valid] > 0).all()
        maps.append(recovery.std_log)
    for values in maps:
        assert values.shape == SHAPE
        assert values.dtype == torch.float32
        assert values.device == mde_output.prediction.device
        assert torch.isfinite(values[valid]).all()
        assert torch.isnan(values[~valid]).all()
    assert (recovery.depth_m[valid] > 0).all()
    if recovery.report.shift is None:  # otherwise D_MDE is at the shift that was found
        composed = (mde_output.mde_depth.double() * recovery.log_scale.double().exp()).float()
        torch.testing.assert_close(composed[valid], recovery.depth_m[valid], rtol=1e-4, atol=0)

    report = recovery.report
    assert report.anchors_given == len(anchors)
    assert report.anchors_used == len(anchors) - len(report.rejected) > 0
    assert len(report.residuals_log) == report.anchors_used
    assert np.isfinite(report.residuals_log).all()
    assert report.hole_pixels == int((~valid).sum())
    assert all(each.code and each.text for each in (*report.fallbacks, *report.warnings))
    json.dumps(report.as_dict(), allow_nan=False)


def test_method_solver_gives_the_recoveries_of_the_method(method):
    mde_output = from_array(*MAPS["holes"])
    solver = method.solver(mde_output)
    for name in ("one", "many", "contrary"):
        anchors = anchors_named(name)
        plain = recover_from(mde_output, anchors, method)
        prepared = recover_from(mde_output, anchors, method, solver=solver)
        assert prepared.report == plain.report
        for key, values in plain.maps().items():
            torch.testing.assert_close(prepared.maps()[key], values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("anchor_set", ANCHORS)
@pytest.mark.parametrize("name", BUILDERS)
def test_method_disparity_map_wholly_below_zero(name, anchor_set):
    """Its shift is unknown, so such a map is legal; D_MDE = 1/q is then the same everywhere."""
    mde_output = from_array(1 / smooth() - 5, "disparity")
    recovery = recover_from(mde_output, anchors_named(anchor_set), BUILDERS[name]())
    assert torch.isfinite(recovery.depth_m).all()
    assert (recovery.depth_m > 0).all()


def test_method_reports_a_fallback_for_one_anchor(method):
    """A single anchor fixes one number; a method that fits more must say what it did instead."""
    mde_output = from_array(*MAPS["depth"])
    report = recover_from(mde_output, anchors_named("one"), method).report
    fits_one_number = isinstance(method, (Median, LogKernel, Basis, Field))
    assert fits_one_number or report.fallbacks
    assert report.residuals_log == pytest.approx([0], abs=1e-6) or report.limited_pixels


@pytest.mark.parametrize("mde_map", ["depth", "disparity", "holes"])
def test_method_anchor_order_is_irrelevant(method, mde_map):
    mde_output = from_array(*MAPS[mde_map])
    anchors = anchors_named("many")
    order = np.random.default_rng(3).permutation(len(anchors))
    first, second = (recover_from(mde_output, a, method) for a in (anchors, anchors[order]))
    torch.testing.assert_close(first.depth_m, second.depth_m, rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("factor", [1e-3, 7.0])
@pytest.mark.parametrize("anchor_set", ["one", "row", "many"])
def test_method_scaled_anchors_scale_the_depth(method, anchor_set, factor):
    anchors = anchors_named(anchor_set)
    scaled = sf.Anchors(anchors.u, anchors.v, factor * anchors.depth_m)
    for mde_map in ("depth", "disparity"):
        mde_output = from_array(*MAPS[mde_map])
        plain = recover_from(mde_output, anchors, method).depth_m
        torch.testing.assert_close(
            recover_from(mde_output, scaled, method).depth_m, factor * plain, rtol=1e-4, atol=0
        )


def test_method_inputs_stay_as_they_were(method):
    for mde_map in ("depth", "holes-disparity"):
        mde_output = from_array(*MAPS[mde_map])
        anchors = anchors_named("many")
        maps = [mde_output.prediction, mde_output.mde_depth, mde_output.disparity]
        before = [values.clone() for values in maps]
        depth_before = anchors.depth_m.copy()
        method(mde_output, anchors)
        for now, then in zip(maps, before, strict=True):
            torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)
        np.testing.assert_array_equal(anchors.depth_m, depth_before)


def test_method_numpy_in_numpy_out_torch_in_torch_out(method):
    depth, kind = MAPS["depth"]
    anchors = anchors_named("many")
    from_numpy = sf.recover(None, anchors, mde_depth=depth, kind=kind, method=method)
    from_torch = sf.recover(
        None, anchors, mde_depth=torch.from_numpy(depth), kind=kind, method=method
    )
    assert isinstance(from_numpy.depth_m, np.ndarray)
    assert isinstance(from_torch.depth_m, torch.Tensor)
    np.testing.assert_array_equal(from_numpy.depth_m, from_torch.depth_m.numpy())


def test_method_has_std_log_unless_it_is_interpolate(method):
    recovery = recover_from(from_array(*MAPS["depth"]), anchors_named("many"), method)
    assert (recovery.std_log is None) == isinstance(method, Interpolate)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 2)])
def test_method_small_images(method, shape):
    if getattr(method, "labels", None) is not None:
        method = dataclasses.replace(method, labels=np.zeros(shape, dtype=int))
    mde_output = MDEOutput(torch.linspace(1, 2, shape[0] * shape[1]).reshape(shape), "depth")
    anchors = sf.Anchors([0, shape[1] - 1], [0, shape[0] - 1], [2.0, 5.0])
    depth_m = recover_from(mde_output, anchors, method).depth_m
    assert depth_m.shape == shape
    assert (depth_m > 0).all()


def test_method_uncertain_anchors_are_accepted(method):
    mde_output = from_array(*MAPS["depth"])
    plain = anchors_named("many")
    equal = sf.Anchors(plain.u, plain.v, plain.depth_m, 0.01 * plain.depth_m)
    depth_m = recover_from(mde_output, equal, method).depth_m
    assert torch.isfinite(depth_m).all()


def test_method_anchors_without_a_deviation_get_the_typical_weight(method):
    mde_output = from_array(*MAPS["depth"])
    plain = anchors_named("many")
    equal = sf.Anchors(plain.u, plain.v, plain.depth_m, 0.01 * plain.depth_m)
    half_known = np.where(np.arange(len(plain)) % 2, equal.sigma_m, np.nan)
    mixed = sf.Anchors(plain.u, plain.v, plain.depth_m, half_known)
    depth_m = recover_from(mde_output, mixed, method).depth_m
    assert torch.isfinite(depth_m).all()
    if not isinstance(method, Field):  # its default noise is learned
        expected = recover_from(mde_output, equal, method).depth_m
        torch.testing.assert_close(depth_m, expected, rtol=1e-5, atol=0)
