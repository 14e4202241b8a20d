import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield import Anchors, InputError, MDEOutput
from scalefield.alignment.affine import Samples
from scalefield.methods.global_affine import Global
from scalefield.methods.region import Region, _Supports, fit_plane

SHAPE = (30, 40)


def quarters(shape=SHAPE) -> np.ndarray:
    v, u = np.indices(shape)
    return (v >= shape[0] // 2) * 2 + (u >= shape[1] // 2)


scales, shifts = st.floats(0.5, 3), st.floats(0, 2)


@pytest.mark.parametrize("space", ["depth", "disparity"])
@pytest.mark.parametrize("strict", [False, True])
@settings(max_examples=20)
@given(lines=st.lists(st.tuples(scales, shifts), min_size=4, max_size=4))
def test_region_affine_world_is_reproduced_exactly(relative, measure, space, strict, lines):
    mde_output = relative(SHAPE, space)
    labels = quarters()
    s, t = (
        torch.tensor(values, dtype=torch.float64)[labels] for values in zip(*lines, strict=True)
    )
    world = s * mde_output.in_space(space) + t
    depth_m = world if space == "depth" else 1 / world
    anchors = measure(depth_m.numpy(), 200)
    recovery = Region(labels=labels, strict=strict, space=space)(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-4, atol=0)
    assert recovery.report.fallbacks == ()


def test_region_tilted_regions_are_reproduced_up_to_the_ridge(relative, measure):
    mde_output = relative(SHAPE)
    labels = quarters()
    v, u = (torch.linspace(-1, 1, n).double() for n in SHAPE)
    tilt = torch.tensor([0.3, -0.4, 0.5, 0.2])[labels] * u[None, :] + 0.3 * v[:, None]
    depth_m = 2 * mde_output.prediction + 3 + tilt
    anchors = measure(depth_m.numpy(), 200)
    exact = Region(labels=labels, strict=True)(mde_output, anchors)
    torch.testing.assert_close(exact.depth_m, depth_m.float(), rtol=1e-5, atol=0)
    ridged = Region(labels=labels)(mde_output, anchors)
    torch.testing.assert_close(ridged.depth_m, depth_m.float(), rtol=2e-3, atol=0)


def test_fit_plane_minimises_its_objective(relative, measure):
    mde_output = relative(SHAPE)
    rng = np.random.default_rng(0)
    anchors = measure(rng.uniform(1, 5, SHAPE), 30, sigma_m=True)
    samples = Samples.at(mde_output, anchors, "depth")
    design = np.stack([samples.x, *rng.uniform(-1, 1, (2, 30)), np.ones(30)], axis=1)
    plane = fit_plane(samples, design, tilt_ridge=0.5)
    penalty = np.diag([0, 0.5, 0.5, 0])
    weighted = samples.weight[:, None] * design
    wanted = np.linalg.solve(design.T @ weighted + penalty, weighted.T @ samples.y)
    np.testing.assert_allclose(plane, wanted, rtol=1e-8)


def test_region_labels_split_into_connected_parts(relative, measure):
    """Two walls of one label at different scales are two regions."""
    mde_output = relative(SHAPE)
    labels = np.zeros(SHAPE, dtype=np.uint8)
    labels[:, 15:25] = 1
    scale = torch.ones(SHAPE).double()
    scale[:, 15:25] = 2
    scale[:, 25:] = 3
    depth_m = scale * mde_output.prediction
    recovery = Region(labels=torch.from_numpy(labels))(mde_output, measure(depth_m.numpy(), 200))
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-4, atol=0)


class TestSupport:
    """A region 10 px wide at the left of a 100×100 image; a dilation step is 2.83 px."""

    regions = (np.indices((100, 100))[1] >= 10).astype(np.int64)
    step = 0.02 * math.hypot(100, 100)

    def support(self, u) -> tuple[list[int], str]:
        u = np.array(u)
        index = np.arange(len(u))
        ones = np.ones(len(u))
        samples = Samples(ones, ones, ones, 10 * index, u, index, 0 * ones)
        indices, source = _Supports(self.regions, samples).of(0)
        return u[indices].tolist(), source

    def test_its_own_anchors_where_there_are_five(self):
        assert self.support([0, 3, 9, 5, 9, 10]) == ([0, 3, 9, 5, 9], "inside")

    def test_those_within_the_fewest_steps(self):
        # Distances from the border at 9: the fifth is 5 px away, two steps; 6 px is three.
        own, how = self.support([0, 1, 11, 13, 14, 14, 15, 90])
        assert own == [0, 1, 11, 13, 14, 14]
        assert how == "dilated"

    def test_the_five_nearest_where_ten_steps_are_too_few(self):
        assert self.support([0, 50, 70, 80, 60, 90]) == (
            [0, 50, 70, 80, 60],
            "nearest",
        )

    def test_all_where_there_are_fewer_than_five(self):
        assert self.support([0, 50]) == ([0, 50], "nearest")
        assert self.support([0, 5]) == ([0, 5], "inside")


class TestLadder:
    """One region, whose models are made impossible one after another."""

    def recover(self, x, y, strict=False):
        row = torch.tensor(x, dtype=torch.float64)
        mde_output = MDEOutput(row[None].repeat(3, 1), "depth")
        u = np.arange(len(x))
        labels = np.zeros((3, len(x)), dtype=int)
        anchors = Anchors(u, u % 3, y)
        method = Region(labels=labels, strict=strict)
        return mde_output, anchors, method(mde_output, anchors)

    def test_scale_and_shift_where_four_anchors_do_not_determine_the_tilt(self):
        *_, recovery = self.recover([1, 2, 4, 3], [3.0, 5, 9, 7])
        assert [f.code for f in recovery.report.fallbacks] == ["affine"]
        np.testing.assert_allclose(recovery.depth_m[0], [3, 5, 9, 7], rtol=1e-5)

    def test_scale_where_the_line_falls(self):
        *_, recovery = self.recover([1, 1.1, 1.2, 1.3, 1.1, 1.2], [4.0, 3, 2, 1.5, 3, 2])
        assert [f.code for f in recovery.report.fallbacks] == ["scale"]
        ratio = recovery.depth_m[0] / torch.tensor([1, 1.1, 1.2, 1.3, 1.1, 1.2])
        torch.testing.assert_close(ratio, ratio[0].expand(6))

    def test_global_where_even_the_scale_is_implausible(self):
        mde_output, anchors, recovery = self.recover(
            [1, 20, 40, 30, 20, 30], [6.0, 5, 4, 4.5, 5.5, 5]
        )
        assert recovery.report.fallbacks[0].text == "Global's scale and shift: 1 of 1 regions"
        assert recovery.report.fallbacks[1].code == "global_scale_only"
        alone = Global()(mde_output, anchors)
        torch.testing.assert_close(recovery.depth_m, alone.depth_m)

    def test_strict_keeps_the_full_model_however_wild(self):
        *_, recovery = self.recover([1, 1.1, 1.2, 1.3, 1.1, 1.2], [4.0, 3, 2, 1.5, 3, 2], True)
        assert recovery.report.fallbacks == ()


@pytest.mark.parametrize("n", [1, 4, 60])
def test_region_superpixels_need_neither_labels_nor_an_image(relative, measure, n):
    mde_output = relative(SHAPE)
    depth_m = 2 * mde_output.prediction
    recovery = Region(superpixels=12)(mde_output, measure(depth_m.numpy(), n))
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-4, atol=0)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"superpixels": 0}, "superpixels"),
        ({"compactness": 0.0}, "compactness"),
        ({"min_share": 1.5}, "min_share"),
        ({"space": "log"}, "space"),
    ],
)
def test_region_wrong_options(options, option):
    with pytest.raises(InputError, match=f"^{option} must be"):
        Region(**options)


@pytest.mark.parametrize("labels", [np.zeros((3, 3), int), np.zeros(SHAPE)])
def test_region_wrong_labels(relative, labels):
    with pytest.raises(InputError, match=r"labels must be whole numbers of the map's shape \(30,"):
        Region(labels=labels)(relative(SHAPE), Anchors([1], [1], [1.0]))
