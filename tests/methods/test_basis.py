import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.anchors import Anchors
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.pretrained import load_generator
from scalefield.basis.ridge import LITERAL, Ridge, anchor_weights, targets
from scalefield.errors import InputError
from scalefield.io.weights import shipped
from scalefield.mde.affine import Normalisation
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import Basis, basis_maps
from worlds import random_anchors, stepped_ramp


def test_basis_generators_are_shipped():
    names = shipped("basis-")
    assert names == sorted(f"basis-depth-k{k}" for k in (8, 30, 50))
    for name in names:
        config = load_generator(name).config
        assert name.endswith(f"k{config.k}")
        assert config.zero_features


def test_basis_field_is_the_weighted_sum_of_the_maps_it_shows():
    mde_output = stepped_ramp()
    anchors = random_anchors(mde_output.shape, 12)
    recovery = Basis()(mde_output, anchors)
    offset = np.median(targets(mde_output, anchors))
    combined = torch.einsum("k,khw->hw", recovery.weights, recovery.basis_maps)
    log_scale = torch.nn.functional.interpolate(
        combined[None, None], size=mde_output.shape, mode="bilinear"
    )[0, 0]
    torch.testing.assert_close(recovery.log_scale, log_scale + offset, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        recovery.depth_m, mde_output.mde_depth * recovery.log_scale.exp(), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(recovery.gating.sum(dim=0), torch.ones(45, 60))


@settings(max_examples=20)
@given(seed=st.integers(0, 100))
def test_basis_recovers_a_scale_field_in_the_span_of_its_maps(seed):
    mde_output = stepped_ramp(seed)
    generator = Generator(GeneratorConfig(k=4, width=16, dilations=(1,))).eval()
    maps = basis_maps(generator, mde_output).basis_maps[0]
    truth = torch.randn(4, generator=torch.Generator().manual_seed(seed))
    depth_m = mde_output.mde_depth * torch.einsum("k,khw->hw", truth, maps).exp()
    rows, columns = np.mgrid[0:45:6, 0:60:6].reshape(2, -1)
    anchors = Anchors(columns, rows, depth_m[rows, columns].double().numpy())
    exact = Ridge(ridge=1e-12, ridge_global=1e-12, centre="none")
    recovery = Basis(generator=generator, ridge=exact)(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m, depth_m, rtol=2e-3, atol=1e-4)


@settings(max_examples=10)
@given(scale=st.floats(1e-3, 1e3))
def test_basis_scales_with_the_anchors_and_ignores_the_unit_of_the_map(scale):
    mde_output = stepped_ramp()
    anchors = random_anchors(mde_output.shape, 9)
    plain = Basis()(mde_output, anchors).depth_m
    larger = Anchors(anchors.u, anchors.v, anchors.depth_m * scale)
    torch.testing.assert_close(
        Basis()(mde_output, larger).depth_m, plain * scale, rtol=1e-3, atol=0
    )
    other_unit = MDEOutput(mde_output.prediction * scale, "depth")
    torch.testing.assert_close(Basis()(other_unit, anchors).depth_m, plain, rtol=1e-3, atol=0)


def test_basis_of_one_anchor_scales_the_map():
    mde_output = stepped_ramp()
    recovery = Basis()(mde_output, Anchors([10], [20], [3.0]))
    ratio = recovery.depth_m / mde_output.mde_depth
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, abs=1e-4)
    assert float(recovery.depth_m[20, 10]) == pytest.approx(3.0, rel=1e-4)


@pytest.mark.parametrize("k", [8, 30, 50])
def test_basis_number_of_maps_can_be_chosen(k):
    mde_output = stepped_ramp()
    recovery = Basis(k=k)(mde_output, random_anchors(mde_output.shape, 10))
    assert recovery.weights.shape == (k,)
    assert recovery.basis_maps.shape == recovery.gating.shape == (k, 45, 60)


def test_basis_gives_precise_anchors_more_weight():
    anchors = Anchors([0, 1], [0, 1], [2.0, 4.0], [0.1, 0.1])
    weights = anchor_weights(anchors)
    assert weights.mean() == pytest.approx(1)
    assert weights[1] / weights[0] == pytest.approx(4)  # half the relative error
    assert anchor_weights(Anchors([0], [0], [1.0])).tolist() == [1]


def test_basis_uses_features_with_a_generator_for_them():
    mde_output = stepped_ramp()
    features = torch.randn(64, 12, 16)
    lite = MDEOutput(mde_output.prediction, "depth", features, model="lite")
    anchors = random_anchors(mde_output.shape, 10)
    bare = Basis()(mde_output, anchors).depth_m
    torch.testing.assert_close(Basis()(lite, anchors).depth_m, bare)
    torch.manual_seed(0)
    with_features = Basis(generator=Generator(GeneratorConfig(k=8, feature_channels=64)).eval())
    used = with_features(lite, anchors).depth_m
    unused = with_features(mde_output, anchors).depth_m
    assert float((used - unused).abs().max()) > 1e-3
    foreign = MDEOutput(mde_output.prediction, "depth", features[:5], model="another")
    with pytest.raises(InputError, match="another MDE"):
        with_features(foreign, anchors)


def test_basis_solver_runs_the_generator_once_for_several_sets_of_anchors():
    mde_output, method = stepped_ramp(), Basis(k=8)
    runs = []
    hook = method.load().register_forward_hook(lambda *_: runs.append(1))
    try:
        solve = method.solver(mde_output)
        sets = [random_anchors(mde_output.shape, n) for n in (3, 10)]
        found = [solve(anchors).depth_m for anchors in sets]
        assert len(runs) == 1
    finally:
        hook.remove()
    for depth_m, anchors in zip(found, sets, strict=True):
        assert torch.equal(depth_m, method(mde_output, anchors).depth_m)


def test_basis_takes_the_ridge_of_the_paper():
    mde_output = stepped_ramp()
    anchors = random_anchors(mde_output.shape, 10)
    literal = Basis(ridge=LITERAL)(mde_output, anchors)
    assert not torch.allclose(literal.depth_m, Basis()(mde_output, anchors).depth_m)


@pytest.mark.parametrize("kind", ["depth", "disparity"])
def test_basis_with_the_papers_ridge_depends_on_the_unit_unless_it_is_the_median(kind):
    """Nothing is centred, so that the ridge shrinks more where log D is far from log depth."""
    ramp = stepped_ramp().prediction
    anchors = random_anchors((45, 60), 12)
    method, medians = Basis(ridge=LITERAL), Normalisation("median")
    given = [
        MDEOutput(ramp * unit if kind == "depth" else unit / ramp, kind) for unit in (1.0, 1e4)
    ]
    raw, divided = (
        [method(change(output), anchors).depth_m for output in given]
        for change in (lambda output: output, medians)
    )
    assert float((raw[0] / raw[1]).log().abs().max()) > 1e-3
    torch.testing.assert_close(*divided, rtol=1e-4, atol=0)


def test_basis_names_an_unknown_generator():
    with pytest.raises(InputError, match="no generator 'nothing'"):
        Basis(generator="nothing")(stepped_ramp(), Anchors([0], [0], [1.0]))


def test_basis_number_of_maps_that_does_not_ship_is_refused_at_once(as_users_run_it):
    with pytest.raises(InputError, match="k must be one of 8, 30, 50, found 7"):
        Basis(k=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ridge", "tolerance"), [(LITERAL, 2e-3), (None, 0.1)])
def test_basis_leave_one_out_is_the_prediction_without_the_anchor(ridge, tolerance):
    mde_output = stepped_ramp()
    anchors = random_anchors(mde_output.shape, 12)
    method = Basis(ridge=ridge)
    found = np.array(method(mde_output, anchors).report.leave_one_out_log)
    refitted = np.empty(12)
    rows, columns = anchors.pixels(mde_output.shape)
    for i in range(12):
        others = method(mde_output, anchors[np.arange(12) != i]).depth_m.numpy()
        refitted[i] = np.log(others[rows[i], columns[i]] / anchors.depth_m[i])
    np.testing.assert_allclose(found, refitted, atol=tolerance)
    assert method(mde_output, anchors[:1]).report.leave_one_out_log == ()
