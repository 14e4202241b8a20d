import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import absrel, draw_anchors, room, with_depth
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.basis.pretrained import load_generator
from scalefield.basis.ridge import Ridge
from scalefield.errors import InputError
from scalefield.field.condition import condition
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ChannelLayout, FieldMaps
from scalefield.field.kernel import Kernel, StationaryTerm
from scalefield.field.model import FieldModel, load_field
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.field.observations import Readings
from scalefield.field.posterior import UNCALIBRATED
from scalefield.io.weights import WEIGHTS
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import Basis
from scalefield.methods.field import Field


def test_error_falls_with_the_number_of_anchors():
    mde_output, truth = room()
    recoveries = [Field()(mde_output, draw_anchors(truth, n)) for n in (1, 10, 100, 1000)]
    errors = [absrel(recovery, truth) for recovery in recoveries]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 0.01


def test_std_is_larger_where_there_are_no_anchors():
    mde_output, truth = room()
    v, u = np.mgrid[0:45:5, 0:25:5].reshape(2, -1)  # the left side only
    std = Field()(mde_output, Anchors(u, v, truth[v, u])).std_log
    assert std.shape == mde_output.shape
    assert float(std[:, 45:].mean()) > 2 * float(std[:, :20].mean())


def test_sigma_of_an_anchor_is_its_noise():
    mde_output, truth = room()
    anchors = draw_anchors(truth, 30)
    wrong = anchors.depth_m.copy()
    wrong[0] *= 1.1
    sigma = np.full(30, 0.001)
    precise = Field(robust=False)(mde_output, Anchors(anchors.u, anchors.v, wrong, sigma))
    sigma[0] = 10.0
    imprecise = Field(robust=False)(mde_output, Anchors(anchors.u, anchors.v, wrong, sigma))
    at = int(anchors.v[0]), int(anchors.u[0])
    assert float(precise.depth_m[at]) == pytest.approx(wrong[0], rel=0.02)
    assert abs(float(imprecise.depth_m[at]) / anchors.depth_m[0] - 1) < 0.06


@settings(max_examples=10)
@given(scale=st.floats(1e-3, 1e3), n=st.sampled_from([1, 20, 400]))
def test_scaling_the_anchors_scales_the_depth(scale, n):
    mde_output, truth = room()
    anchors = draw_anchors(truth, n)
    plain = Field()(mde_output, anchors)
    larger = Field()(mde_output, with_depth(anchors, anchors.depth_m * scale))
    torch.testing.assert_close(larger.depth_m, plain.depth_m * scale, rtol=1e-4, atol=0)
    torch.testing.assert_close(larger.std_log, plain.std_log, rtol=1e-4, atol=0)


@pytest.mark.parametrize("n", [2, 17, 500])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_order_of_anchors_does_not_matter_bit_for_bit(n, repeated):
    """Also where several anchors lie in one pixel."""
    mde_output, truth = room()
    anchors = draw_anchors(truth, n)
    if repeated:
        anchors = anchors[np.arange(n) // 2]
        anchors = with_depth(anchors, anchors.depth_m * np.linspace(0.99, 1.01, n))
    order = np.random.default_rng(0).permutation(n)
    plain, shuffled = (Field()(mde_output, each) for each in (anchors, anchors[order]))
    for name in ("depth_m", "log_scale", "std_log", "weights"):
        assert torch.equal(getattr(plain, name), getattr(shuffled, name))
    rejected = {r.anchor for r in plain.report.rejected}
    assert {int(order[r.anchor]) for r in shuffled.report.rejected} == rejected


def test_the_order_of_anchors_does_not_matter_where_some_are_outliers():
    mde_output, truth = room()
    anchors = draw_anchors(truth, 60)
    factor = np.where(np.arange(60) % 7 == 3, 3.0, 1.0)
    spoiled = with_depth(anchors, anchors.depth_m * factor)
    order = np.random.default_rng(0).permutation(60)
    plain, shuffled = (Field()(mde_output, each) for each in (spoiled, spoiled[order]))
    assert torch.equal(plain.depth_m, shuffled.depth_m)
    ours = {r.anchor for r in plain.report.rejected}
    assert ours
    assert {int(order[r.anchor]) for r in shuffled.report.rejected} == ours


def test_the_decomposition_sums_to_the_field():
    mde_output, truth = room()
    anchors = draw_anchors(truth, 40)
    parts = Field().decompose(mde_output, anchors).parts
    assert list(parts)[:5] == ["global", "slope", "mean", "plane", "mode 1"]
    assert list(parts)[-1] == "exponential 3"
    recovery = Field()(mde_output, anchors)
    torch.testing.assert_close(sum(parts.values()), recovery.log_scale, atol=1e-4, rtol=0)
    shares = Field().decompose(mde_output, anchors).shares
    assert list(shares) == list(parts)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("n", [110, 500])
def test_outliers_are_rejected_and_do_little_harm(n):
    """30 % of the anchors wrong by factors of 2.5 and 4. Some of them agree with one another by
    chance, in a room whose depths differ by a factor of three, and are taken for an object."""
    mde_output, truth = room()
    anchors = draw_anchors(truth, n)
    wrong = np.random.default_rng(1).permutation(n)[: round(0.3 * n)]
    factors = np.random.default_rng(2).choice([0.25, 0.4, 2.5, 4.0], len(wrong))
    depth_m = anchors.depth_m.copy()
    depth_m[wrong] *= factors
    spoiled = recover_from(mde_output, with_depth(anchors, depth_m), Field())
    rejected = {r.anchor for r in spoiled.report.rejected}
    assert all(r.code == "outlier" for r in spoiled.report.rejected)
    assert len(rejected & set(wrong.tolist())) >= 0.75 * len(wrong)
    assert len(rejected - set(wrong.tolist())) <= 0.03 * n
    assert spoiled.report.anchors_used == n - len(rejected)
    not_robust = Field(robust=False)(mde_output, with_depth(anchors, depth_m))
    assert absrel(not_robust, truth) > 4 * absrel(spoiled, truth)


def test_one_anchor_is_used_downweighted_and_rejected_as_its_error_grows():
    mde_output, truth = room()
    anchors = draw_anchors(truth, 12)
    outcomes = []
    for factor in np.geomspace(1, 20, 50):
        depth_m = anchors.depth_m.copy()
        depth_m[7] *= factor
        report = recover_from(mde_output, with_depth(anchors, depth_m), Field()).report
        assert {r.anchor for r in report.rejected} <= {7}
        warned = {warning.code: warning.text for warning in report.warnings}
        if "outliers_downweighted" in warned:
            assert warned["outliers_downweighted"].endswith(f" ({depth_m[7]:.3g} m)")
        outcomes.append(
            "rejected"
            if report.rejected
            else "downweighted"
            if "outliers_downweighted" in warned
            else "used"
        )
    assert list(dict.fromkeys(outcomes)) == ["used", "downweighted", "rejected"]
    assert Field(robust=False)(mde_output, anchors).report.warnings == ()


def test_no_anchor_of_a_clean_room_is_rejected():
    mde_output, truth = room()
    for n in (5, 20, 300, 2000):
        assert Field()(mde_output, draw_anchors(truth, n)).report.rejected == ()


@pytest.mark.parametrize("shape", [(96, 128), (1, 300), (70, 2), (1, 1)])
def test_images_of_any_shape_are_recovered(shape):
    """The closer the cells, the closer every pixel is to its own solve."""
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    depth = 1 + u / shape[1] + 0.3 * v / shape[0]
    truth = 2.5 * depth * np.exp(0.2 * np.sin(3 * u / shape[1]))
    mde_output = MDEOutput(torch.from_numpy(depth).float(), "depth")
    anchors = draw_anchors(truth, max(1, min(60, truth.size // 3)))
    plain = Field()(mde_output, anchors)
    fine = Field(inference=InferenceConfig(cell_px=(1, 1)))(mde_output, anchors)
    difference = (plain.log_scale - fine.log_scale).abs()
    assert float(difference.mean()) < 2e-3
    assert float(difference.max()) < 0.02
    assert absrel(plain, truth) < 0.05


def test_a_map_of_eleven_orders_of_magnitude_is_recovered():
    depth = torch.logspace(-5, 6, 40 * 50).reshape(40, 50)
    for n in (2, 300):
        v, u = np.divmod(np.random.default_rng(0).permutation(2000)[:n], 50)
        anchors = Anchors(u, v, depth[v, u].double().numpy() * 2)
        recovery = Field()(MDEOutput(depth, "depth"), anchors)
        assert bool(torch.isfinite(recovery.depth_m).all())
        assert bool(torch.isfinite(recovery.std_log).all())


def test_thousands_of_anchors_leave_little_error():
    mde_output, truth = room(shape=(60, 80))
    recovery = Field()(mde_output, draw_anchors(truth, 2500))
    assert recovery.report.fallbacks == ()
    assert absrel(recovery, truth) < 0.003
    fewer = Field()(mde_output, draw_anchors(truth, 1000))
    assert absrel(recovery, truth) < 0.7 * absrel(fewer, truth)
    assert float(recovery.std_log.median()) < float(fewer.std_log.median())


def test_local_solves_are_as_good_as_the_exact_one():
    """500 anchors with 16 neighbours, and all of them in every solve."""
    mde_output, truth = room()
    anchors = draw_anchors(truth, 500)
    everything = InferenceConfig(neighbours=500, block_size=500)
    local = Field(robust=False)(mde_output, anchors)
    exact = Field(robust=False, inference=everything)(mde_output, anchors)
    assert float((local.log_scale - exact.log_scale).abs().mean()) < 1e-3
    # Without noise, in a smooth world, far anchors help a little.
    assert absrel(local, truth) < absrel(exact, truth) + 6e-4
    # Before calibration, and with one scale of the errors: both depend on the blocks.
    model = load_field("field")
    model = dataclasses.replace(model, error_scales=model.error_scales[:1])
    image = model.image_inputs(mde_output)
    readings = Readings.of(anchors, image.shape, float(model.kernel.noise_std))
    fits = (
        condition(model, image, readings, robust=False, config=config).fit
        for config in (None, everything)
    )
    local_std, exact_std = (
        dataclasses.replace(fit, calibration=UNCALIBRATED).render().std for fit in fits
    )
    assert 0.9 < float((local_std / exact_std).median()) < 1.2


def test_basis_is_the_case_of_linear_modes_alone():
    """With the generator's maps, no further terms, and the ridge as noise over prior."""
    generator = load_generator("basis-depth-k8")

    def net(log_depth, image, features):
        maps = generator(None, log_depth).basis_maps
        maps = torch.cat([maps, torch.zeros_like(maps[:, :1])], dim=1)  # no mean function
        return FieldMaps(maps, torch.zeros(1), ChannelLayout(modes=8, terms=0, embedding_size=0))

    mde_output, depth_m = room()
    anchors = draw_anchors(depth_m, 12)
    linear = FieldModel(Kernel(constant_std=0.0, mode_std=1.0, terms=(), noise_std=0.1), net)
    ours = Field(model=linear, robust=False)(mde_output, anchors)
    ridge = Ridge(ridge=0.1**2, ridge_global=0.1**2)
    theirs = Basis(generator=generator, ridge=ridge)(mde_output, anchors)
    torch.testing.assert_close(ours.log_scale, theirs.log_scale, atol=1e-4, rtol=0)


def test_without_anchors_the_depth_is_the_expected_one_with_a_large_std():
    mde_output, depth_m = room()
    recovery = recover_from(mde_output, Anchors([], [], []), Field())
    assert bool(torch.isfinite(recovery.depth_m).all())
    assert [warning.code for warning in recovery.report.warnings] == ["no_anchors"]
    one = recover_from(mde_output, draw_anchors(depth_m, 1), Field())
    assert float(recovery.std_log.median()) > float(one.std_log.median())
    doubled = MDEOutput(mde_output.prediction * 7, "depth")
    again = recover_from(doubled, Anchors([], [], []), Field())
    torch.testing.assert_close(again.depth_m, recovery.depth_m, rtol=1e-3, atol=0)
    with pytest.raises(InputError, match="no anchors"):
        recover_from(mde_output, Anchors([], [], []), Basis())


def test_a_learned_scale_prior_counts_as_one_more_measurement(as_users_run_it):
    mde_output, depth_m = room()
    alone = recover_from(mde_output, Anchors([], [], []), Field()).log_scale
    many = draw_anchors(depth_m, 200)
    learned, free = Field(scale_prior="learned"), Field()
    for count, least, most in ((1, 0.05, 0.95), (200, 0.98, 1.02)):
        anchors = Anchors(many.u[:count], many.v[:count], many.depth_m[:count] * 1.5)
        prior, none = (field(mde_output, anchors).log_scale for field in (learned, free))
        # Between the expected scale and that of the anchors, and nearer to that of many anchors.
        share = float((prior - alone).median() / (none - alone).median())
        assert least < share < most
    # In another unit than metres the expected scale is wrong.
    large = Anchors(many.u[:1], many.v[:1], many.depth_m[:1] * 1000)
    assert float(free(mde_output, large).depth_m.median()) > 1.5 * float(
        learned(mde_output, large).depth_m.median()
    )
    with pytest.raises(InputError, match="scale_prior must be one of none, learned, found 'known'"):
        Field(scale_prior="known")


def test_the_image_is_optional_and_used():
    mde_output, depth_m = room()
    anchors = draw_anchors(depth_m, 20)
    image = torch.randint(0, 255, (*mde_output.shape, 3), dtype=torch.uint8)
    seen = MDEOutput(mde_output.prediction, "depth", image=image)
    plain, looking = (Field()(output, anchors).depth_m for output in (mde_output, seen))
    assert not torch.equal(plain, looking)
    torch.testing.assert_close(plain, looking, rtol=0.25, atol=0)


def test_influence_is_the_derivative_of_the_field_by_the_anchors():
    mde_output, depth_m = room()
    anchors = draw_anchors(depth_m, 15)
    field = Field(robust=False)
    weights = field.influence(mde_output, anchors, u=30, v=20)
    changed = anchors.depth_m.copy()
    changed[4] *= 1.001
    before = field(mde_output, anchors).log_scale[20, 30]
    after = field(mde_output, Anchors(anchors.u, anchors.v, changed)).log_scale[20, 30]
    # The median may pass from one anchor to another; what is left is the smoother's weight.
    assert float(after - before) == pytest.approx(weights[4] * np.log(1.001), abs=2e-4)
    assert weights.sum() == pytest.approx(1.0, abs=0.05)


def test_a_saved_model_is_loaded_again(tmp_path):
    net = FieldNet(FieldNetConfig(layout=ChannelLayout(4, 1, 2), width=16, dilations=(1,)))
    kernel = Kernel(1.0, 2.0, (StationaryTerm(0.1, 0.2, 0.3, "rbf"),), 0.05)
    model = FieldModel(kernel, net.eval(), std_scale=1.2)
    model.save(tmp_path)
    again = FieldModel.load(tmp_path)
    assert (again.kernel, again.std_scale) == (kernel, 1.2)
    mde_output, depth_m = room()
    first, second = (
        Field(model=m)(mde_output, draw_anchors(depth_m, 9)).depth_m for m in (model, again)
    )
    torch.testing.assert_close(first, second, rtol=1e-2, atol=0)  # float16 weights
    (tmp_path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(InputError, match="not the weights of such a field"):
        FieldModel.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="not a field model's configuration"):
        FieldModel.load(tmp_path)


def test_the_shipped_model_needs_nothing_but_depth():
    model = load_field("field")
    assert model.net.config.feature_channels == 0
    assert 0.5 < model.std_scale < 3


@pytest.mark.parametrize("name", ["lite", "field", *(f"basis-depth-k{k}" for k in (8, 30, 50))])
def test_default_weights_are_free_and_say_so(name):
    card = " ".join((WEIGHTS / name / "README.md").read_text().split())
    assert "No photographed frame was used in this training" in card
    assert "Apache-2.0" in card


def test_field_uses_features_with_a_model_for_them():
    mde_output, depth_m = room()
    shipped = load_field("field")
    torch.manual_seed(0)
    net = FieldNet(dataclasses.replace(shipped.net.config, feature_channels=64)).eval()
    anchors = draw_anchors(depth_m, 20)
    twin = Field(model=dataclasses.replace(shipped, net=net))
    features = torch.randn(64, 12, 15, generator=torch.Generator().manual_seed(0))
    seen, withheld = (
        MDEOutput(mde_output.prediction, "depth", features=f) for f in (features, None)
    )
    looking, blind = (twin(output, anchors).depth_m for output in (seen, withheld))
    assert not torch.equal(looking, blind)
    assert absrel(twin(withheld, anchors), depth_m) < 0.1
    strange = MDEOutput(mde_output.prediction, "depth", features=features[:16])
    with pytest.raises(InputError, match="made for features of 64 channels, found 16"):
        twin(strange, anchors)


def test_the_mean_function_is_zero_for_estimators_that_were_not_in_training():
    model, (mde_output, depth_m) = load_field("field"), room()
    known = MDEOutput(mde_output.prediction, "depth", model="fastdepth")
    assert "fastdepth" in model.estimators
    assert float(model.image_inputs(known).maps.mean.abs().max()) > 0
    assert float(model.image_inputs(mde_output).maps.mean.abs().max()) == 0
    # With one anchor the scale is then the same everywhere.
    one = Field()(mde_output, draw_anchors(depth_m, 1)).log_scale
    assert float(one.max() - one.min()) < 1e-3


def test_a_model_that_is_not_there_or_names_no_estimators_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no field model 'nosuch'.*nor one of \['field'\]"):
        load_field("nosuch")
    load_field("field").save(tmp_path)
    config = tmp_path / "config.json"
    values = json.loads(config.read_text())
    for names in ("fastdepth", ["fastdepth", 7], 5):
        config.write_text(json.dumps(values | {"estimators": names}))
        with pytest.raises(InputError, match="not a field model's configuration"):
            FieldModel.load(tmp_path)


def test_field_solver_runs_the_network_once_for_several_sets_of_anchors():
    (mde_output, truth), method = room(), Field()
    runs = []
    net = method.load().net
    assert isinstance(net, FieldNet)
    hook = net.register_forward_hook(lambda *_: runs.append(1))
    try:
        solve = method.solver(mde_output)
        sets = [draw_anchors(truth, n) for n in (0, 1, 20)]
        found = [solve(anchors).depth_m for anchors in sets]
        assert len(runs) == 1
    finally:
        hook.remove()
    for depth_m, anchors in zip(found, sets, strict=True):
        assert torch.equal(depth_m, method(mde_output, anchors).depth_m)
