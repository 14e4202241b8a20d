import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scalefield.embedding import FieldMaps, FieldNet, FieldNetConfig, Layout
from scalefield.kernel import Kernel, Term

from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.basis.pretrained import load_generator
from scalefield.basis.ridge import Ridge
from scalefield.errors import InputError
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import Basis
from scalefield.methods.field import Field, FieldModel, load_field


def world(seed=0, shape=(45, 60)):
    """A room with a box in front of a slanted wall; the truth bends away from D smoothly."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    depth = 1 + u / shape[1] * rng.uniform(0.5, 2)
    depth[10:30, 20:40] *= 0.5
    bend = 0.4 * np.sin(3 * u / shape[1] + rng.uniform(0, 6)) + 0.2 * v / shape[0]
    return MDEOutput(torch.from_numpy(depth).float(), "depth"), 2.5 * depth * np.exp(bend)


def draw(truth, n, seed=0):
    rng = np.random.default_rng(seed)
    chosen = rng.choice(truth.size, n, replace=False)
    v, u = np.divmod(chosen, truth.shape[1])
    return Anchors(u, v, truth[v, u])


def absrel(recovery, truth):
    return float(np.mean(np.abs(recovery.depth_m.numpy() - truth) / truth))


def test_error_falls_with_anchors_to_almost_nothing():
    mde_output, truth = world()
    errors = [absrel(Field()(mde_output, draw(truth, n)), truth) for n in (1, 10, 100, 1000)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 0.01


def test_it_knows_where_it_does_not_know():
    mde_output, truth = world()
    v, u = np.mgrid[0:45:5, 0:25:5].reshape(2, -1)  # the left side only
    recovery = Field()(mde_output, Anchors(u, v, truth[v, u]))
    std = recovery.std_log
    assert std.shape == mde_output.shape
    assert float(std[:, 45:].mean()) > 2 * float(std[:, :20].mean())


def test_anchors_with_a_deviation_of_their_own_are_heard_accordingly():
    mde_output, truth = world()
    anchors = draw(truth, 30)
    wrong = anchors.depth_m.copy()
    wrong[0] *= 1.1
    sigma = np.full(30, 0.001)
    precise = Field(robust=False)(mde_output, Anchors(anchors.u, anchors.v, wrong, sigma))
    sigma[0] = 10.0
    vague = Field(robust=False)(mde_output, Anchors(anchors.u, anchors.v, wrong, sigma))
    at = int(anchors.v[0]), int(anchors.u[0])
    assert float(precise.depth_m[at]) == pytest.approx(wrong[0], rel=0.02)
    assert abs(float(vague.depth_m[at]) / anchors.depth_m[0] - 1) < 0.06


@settings(max_examples=10)
@given(scale=st.floats(1e-3, 1e3))
def test_scaling_the_anchors_scales_the_depth(scale):
    mde_output, truth = world()
    anchors = draw(truth, 20)
    plain = Field()(mde_output, anchors)
    larger = Field()(mde_output, Anchors(anchors.u, anchors.v, anchors.depth_m * scale))
    torch.testing.assert_close(larger.depth_m, plain.depth_m * scale, rtol=1e-3, atol=0)
    torch.testing.assert_close(larger.std_log, plain.std_log)


def test_the_decomposition_sums_to_the_field():
    mde_output, truth = world()
    anchors = draw(truth, 40)
    parts = Field().decompose(mde_output, anchors).parts
    assert list(parts)[:4] == ["global", "mean", "slope", "mode 1"]
    assert list(parts)[-1] == "exponential 3"
    recovery = Field()(mde_output, anchors)
    torch.testing.assert_close(sum(parts.values()), recovery.log_scale, atol=1e-4, rtol=0)
    shares = Field().decompose(mde_output, anchors).shares
    assert list(shares) == list(parts)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)


def test_wrong_anchors_are_named_and_do_little_harm():
    mde_output, truth = world()
    anchors = draw(truth, 110)
    wrong = np.random.default_rng(1).permutation(110)[:33]
    depth_m = anchors.depth_m.copy()
    depth_m[wrong] *= np.random.default_rng(2).choice([0.25, 0.4, 2.5, 4.0], 33)
    spoiled = recover_from(mde_output, Anchors(anchors.u, anchors.v, depth_m), Field())
    rejected = {r.anchor for r in spoiled.report.rejected}
    assert len(rejected & set(wrong.tolist())) >= 30
    assert len(rejected - set(wrong.tolist())) <= 4
    assert spoiled.report.anchors_used == 110 - len(rejected)
    trusting = Field(robust=False)(mde_output, Anchors(anchors.u, anchors.v, depth_m))
    assert absrel(trusting, truth) > 4 * absrel(spoiled, truth)


def test_one_anchor_is_named_as_it_grows_strange_and_rejected_when_it_is_wrong():
    mde_output, truth = world()
    anchors = draw(truth, 12)
    outcomes = []
    for factor in np.geomspace(1, 20, 50):
        depth_m = anchors.depth_m.copy()
        depth_m[7] *= factor
        report = recover_from(mde_output, Anchors(anchors.u, anchors.v, depth_m), Field()).report
        assert {r.anchor for r in report.rejected} <= {7}
        strange = (
            f"used with less weight, contradicted by the others: #7 ({depth_m[7]:.3g} m)"
            in map(str, report.warnings)
        )
        outcomes.append("rejected" if report.rejected else "named" if strange else "used")
    assert list(dict.fromkeys(outcomes)) == ["used", "named", "rejected"]
    assert Field(robust=False)(mde_output, anchors).report.warnings == ()


def test_honest_anchors_are_not_rejected():
    mde_output, truth = world()
    for n in (5, 20, 300):
        assert Field()(mde_output, draw(truth, n)).report.rejected == ()


@pytest.mark.parametrize("shape", [(96, 128), (1, 300), (70, 2)])
def test_the_field_of_large_images_is_interpolated_and_close(shape, monkeypatch):
    mde_output, truth = world(shape=shape)
    anchors = draw(truth, min(60, truth.size // 3))
    exact = Field()(mde_output, anchors)
    monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)
    sliced = Field()(mde_output, anchors)
    difference = (sliced.log_scale - exact.log_scale).abs()
    assert 0 < float(difference.mean()) < 1e-3
    assert float(difference.max()) < 0.02


def test_a_map_of_any_range_is_interpolated(monkeypatch):
    """Eleven orders of magnitude: the nodes are spread, not multiplied."""
    monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)
    depth = torch.logspace(-5, 6, 40 * 50).reshape(40, 50)
    recovery = Field()(MDEOutput(depth, "depth"), Anchors([3, 30], [5, 20], [1.0, 2.0]))
    assert bool(torch.isfinite(recovery.depth_m).all())


def test_thousands_of_anchors_are_solved_in_patches():
    mde_output, truth = world(shape=(60, 80))
    recovery = Field()(mde_output, draw(truth, 2500))
    assert "2500 anchors were solved in 16 patches" in recovery.report.fallbacks[0].text
    assert absrel(recovery, truth) < 0.003
    fewer = Field()(mde_output, draw(truth, 1000))
    assert absrel(recovery, truth) < 0.7 * absrel(fewer, truth)
    assert float(recovery.std_log.median()) < float(fewer.std_log.median())


@pytest.fixture
def few_are_many(monkeypatch):
    """From 100 anchors on the field is solved in patches."""
    monkeypatch.setattr("scalefield.methods.field.EXACT_ANCHORS", 100)
    sizes = {"patchwork.SPREAD": 200, "patchwork.FAR": 40, "patches.OWN": 40, "patches.NEAR": 120}
    for name, size in sizes.items():
        monkeypatch.setattr(f"scalefield.{name}", size)


def test_patches_obey_the_laws_of_the_field(few_are_many):
    mde_output, truth = world()
    anchors = draw(truth, 500)
    patched = Field()(mde_output, anchors)
    assert patched.report.fallbacks
    scaled = Field()(mde_output, Anchors(anchors.u, anchors.v, anchors.depth_m * 7))
    torch.testing.assert_close(scaled.depth_m, patched.depth_m * 7, rtol=1e-3, atol=0)
    torch.testing.assert_close(scaled.std_log, patched.std_log)
    shuffled = Field()(mde_output, anchors[np.random.default_rng(0).permutation(500)])
    assert torch.equal(shuffled.depth_m, patched.depth_m)
    parts = Field().decompose(mde_output, anchors).parts
    torch.testing.assert_close(sum(parts.values()), patched.log_scale, atol=1e-4, rtol=0)
    assert patched.weights.shape == (16,)
    weights = Field(robust=False).speakers(mde_output, anchors, u=30, v=20)
    assert weights.sum() == pytest.approx(1.0, abs=0.05)
    nearest = ((anchors.u - 30) ** 2 + (anchors.v - 20) ** 2).argsort()[:20]
    assert np.abs(weights).argmax() in nearest


@pytest.mark.parametrize("interpolated", [False, True])
def test_patches_are_as_good_as_the_exact_solve(few_are_many, monkeypatch, interpolated):
    if interpolated:
        monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)
    mde_output, truth = world()
    anchors = draw(truth, 500)
    patched = Field(robust=False)(mde_output, anchors)
    monkeypatch.setattr("scalefield.methods.field.EXACT_ANCHORS", 500)
    exact = Field(robust=False)(mde_output, anchors)
    assert patched.report.fallbacks != exact.report.fallbacks == ()
    # A hundredth of what the model holds an anchor's noise to be.
    assert float((patched.log_scale - exact.log_scale).abs().mean()) < 2e-4
    assert absrel(patched, truth) < 1.1 * absrel(exact, truth)
    ratio = patched.std_log / exact.std_log
    assert 0.97 < float(ratio.min()) < float(ratio.median()) < 1.1


def test_wrong_anchors_are_found_among_many(few_are_many):
    mde_output, truth = world()
    anchors = draw(truth, 500)
    wrong = np.random.default_rng(1).permutation(500)[:100]
    depth_m = anchors.depth_m.copy()
    depth_m[wrong] *= np.random.default_rng(2).choice([0.25, 0.4, 2.5, 4.0], 100)
    spoiled = recover_from(mde_output, Anchors(anchors.u, anchors.v, depth_m), Field())
    rejected = {r.anchor for r in spoiled.report.rejected}
    assert len(rejected & set(wrong.tolist())) >= 90
    assert len(rejected - set(wrong.tolist())) <= 8
    assert absrel(spoiled, truth) < 0.02


def test_basis_is_the_case_of_linear_modes_alone():
    """With the generator's maps, no further terms, and the ridge as noise over prior."""
    generator = load_generator("basis-depth-k8")

    def net(log_depth, image, features):
        maps = generator(None, log_depth).basis_maps
        maps = torch.cat([maps, torch.zeros_like(maps[:, :1])], dim=1)  # no mean function
        return FieldMaps(maps, torch.zeros(1), Layout(modes=8, terms=0, channels=0))

    mde_output, truth = world()
    anchors = draw(truth, 12)
    linear = FieldModel(Kernel(constant=0.0, linear=1.0, terms=(), noise=0.1), net)
    ours = Field(model=linear, robust=False)(mde_output, anchors)
    ridge = Ridge(ridge=0.1**2, ridge_global=0.1**2)
    theirs = Basis(generator=generator, ridge=ridge)(mde_output, anchors)
    torch.testing.assert_close(ours.log_scale, theirs.log_scale, atol=1e-4, rtol=0)


def test_without_anchors_it_says_what_it_expects_and_how_little_it_knows():
    mde_output, truth = world()
    recovery = recover_from(mde_output, Anchors([], [], []), Field())
    assert bool(torch.isfinite(recovery.depth_m).all())
    assert "no anchors" in recovery.report.warnings[0].text
    one = recover_from(mde_output, draw(truth, 1), Field())
    assert float(recovery.std_log.median()) > float(one.std_log.median())
    doubled = MDEOutput(mde_output.prediction * 7, "depth")
    again = recover_from(doubled, Anchors([], [], []), Field())
    torch.testing.assert_close(again.depth_m, recovery.depth_m, rtol=1e-3, atol=0)
    with pytest.raises(InputError, match="no anchors"):
        recover_from(mde_output, Anchors([], [], []), Basis())


def test_a_learned_level_speaks_as_one_more_measurement(as_users_run_it):
    mde_output, truth = world()
    alone = recover_from(mde_output, Anchors([], [], []), Field()).log_scale
    many = draw(truth, 200)
    learned, free = Field(level="learned"), Field()
    for count, least, most in ((1, 0.05, 0.95), (200, 0.98, 1.02)):
        anchors = Anchors(many.u[:count], many.v[:count], many.depth_m[:count] * 1.5)
        told, untold = (field(mde_output, anchors).log_scale for field in (learned, free))
        # Between what is expected and what the anchors say; many anchors have the last word.
        way = float((told - alone).median() / (untold - alone).median())
        assert least < way < most
    # In other units the expected level is nonsense, and the scale is no longer free.
    large = Anchors(many.u[:1], many.v[:1], many.depth_m[:1] * 1000)
    assert float(free(mde_output, large).depth_m.median()) > 1.5 * float(
        learned(mde_output, large).depth_m.median()
    )
    with pytest.raises(InputError, match="level"):
        Field(level="known")


def test_the_image_is_optional_and_heard():
    mde_output, truth = world()
    anchors = draw(truth, 20)
    image = torch.randint(0, 255, (*mde_output.shape, 3), dtype=torch.uint8)
    seen = MDEOutput(mde_output.prediction, "depth", image=image)
    plain, looking = (Field()(output, anchors).depth_m for output in (mde_output, seen))
    assert not torch.equal(plain, looking)
    torch.testing.assert_close(plain, looking, rtol=0.25, atol=0)


def test_the_anchors_that_speak_for_a_pixel():
    mde_output, truth = world()
    anchors = draw(truth, 15)
    field = Field(robust=False)
    weights = field.speakers(mde_output, anchors, u=30, v=20)
    changed = anchors.depth_m.copy()
    changed[4] *= 1.001
    before = field(mde_output, anchors).log_scale[20, 30]
    after = field(mde_output, Anchors(anchors.u, anchors.v, changed)).log_scale[20, 30]
    # The median may pass from one anchor to another; what is left is the smoother's weight.
    assert float(after - before) == pytest.approx(weights[4] * np.log(1.001), abs=2e-4)
    assert weights.sum() == pytest.approx(1.0, abs=0.05)


def test_the_model_survives_the_disk(tmp_path):
    net = FieldNet(FieldNetConfig(layout=Layout(4, 1, 2), width=16, dilations=(1,)))
    kernel = Kernel(1.0, 2.0, (Term(0.1, 0.2, 0.3, "gaussian"),), 0.05)
    model = FieldModel(kernel, net.eval(), calibration=1.2)
    model.save(tmp_path)
    again = FieldModel.load(tmp_path)
    assert (again.kernel, again.calibration) == (kernel, 1.2)
    mde_output, truth = world()
    first, second = (Field(model=m)(mde_output, draw(truth, 9)).depth_m for m in (model, again))
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
    assert 0.5 < model.calibration < 3


def test_its_twin_also_looks_at_the_features_of_lite():
    mde_output, truth = world()
    anchors, twin = draw(truth, 20), Field(model="field-lite")
    features = torch.randn(64, 12, 15, generator=torch.Generator().manual_seed(0))
    seen, withheld = (
        MDEOutput(mde_output.prediction, "depth", features=f) for f in (features, None)
    )
    looking, blind = (twin(output, anchors).depth_m for output in (seen, withheld))
    assert not torch.equal(looking, blind)
    assert absrel(twin(withheld, anchors), truth) < 0.1  # as `field`, without them
    strange = MDEOutput(mde_output.prediction, "depth", features=features[:16])
    with pytest.raises(InputError, match="made for features of 64 channels, found 16"):
        twin(strange, anchors)


def test_the_mean_function_is_silent_for_estimators_it_never_saw():
    """Trained on one estimator's bias, it would give it to another."""
    model, (mde_output, truth) = load_field("field"), world()
    known = MDEOutput(mde_output.prediction, "depth", model="fastdepth")
    assert "fastdepth" in model.estimators
    assert float(model.scene(known).maps.mean.abs().max()) > 0
    assert float(model.scene(mde_output).maps.mean.abs().max()) == 0
    # What is left with one anchor is its scale, everywhere.
    one = Field()(mde_output, draw(truth, 1)).log_scale
    assert float(one.max() - one.min()) < 1e-3


def test_a_model_that_is_not_there_or_names_no_estimators_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no field model 'nosuch'.*'field', 'field-lite'"):
        load_field("nosuch")
    load_field("field").save(tmp_path)
    config = tmp_path / "config.json"
    values = json.loads(config.read_text())
    for names in ("fastdepth", ["fastdepth", 7], 5):
        config.write_text(json.dumps(values | {"estimators": names}))
        with pytest.raises(InputError, match="not a field model's configuration"):
            FieldModel.load(tmp_path)
