import dataclasses

import numpy as np
import pytest
import torch

import scalefield as sf
from field.worlds import absrel, draw_anchors, room, with_depth
from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.field.error_scale import ErrorScale
from scalefield.field.image_inputs import ChannelLayout, FieldMaps
from scalefield.field.kalman import FieldFilter, LinearState
from scalefield.field.kernel import Kernel
from scalefield.field.model import FieldModel, load_field
from scalefield.mde import load_mde
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field


def frames(count, seed=0):
    """A slow pan: the estimator's bias stays with the camera, the scene moves."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0:45, 0:60]
    for t in range(count):
        depth = 1.5 + (u + 2 * t) / 60 + 0.3 * np.sin((u + 3 * t) / 9)
        bias = 0.35 * u / 60 - 0.25 * v / 45
        depth_m = 2.5 * depth * np.exp(bias)
        y, x = np.divmod(rng.choice(depth_m.size, 2, replace=False), 60)
        output = MDEOutput(torch.from_numpy(depth).float(), "depth")
        yield output, depth_m, Anchors(x, y, depth_m[y, x])


def test_the_first_frame_of_a_stream_is_that_of_field():
    """The filter starts at the prior: only the maps are rounded to float32 in another order."""
    mde_output, depth_m = room()
    anchors = draw_anchors(depth_m, 30)
    alone = Field(robust=False)(mde_output, anchors)
    first = FieldFilter(robust=False, drift=0.0)(mde_output, anchors)
    torch.testing.assert_close(first.depth_m, alone.depth_m, rtol=1e-3, atol=0)
    torch.testing.assert_close(first.std_log, alone.std_log, rtol=0.02, atol=1e-3)


def test_a_stream_with_few_anchors_a_frame_is_better_and_steadier_than_single_frames():
    stream, errors, alone = FieldFilter(), [], []
    for mde_output, depth_m, anchors in frames(12):
        errors.append(absrel(stream(mde_output, anchors), depth_m))
        alone.append(absrel(Field()(mde_output, anchors), depth_m))
    assert np.mean(errors[4:]) < 0.9 * np.mean(alone[4:])
    assert np.std(errors[4:]) < np.std(alone[4:])


def test_the_standard_deviation_grows_over_frames_without_anchors():
    stream, stds = FieldFilter(), []
    for t, (mde_output, depth_m, anchors) in enumerate(frames(8)):
        recovery = stream(mde_output, anchors if t < 5 else None)
        stds.append(float(recovery.std_log.median()))
        error = absrel(recovery, depth_m)
    assert error < 0.15
    assert stds[5] < stds[6] < stds[7]


def test_no_anchors_and_none_are_the_same():
    first, second = FieldFilter(), FieldFilter()
    for t, (mde_output, _, anchors) in enumerate(frames(4)):
        given = anchors if t % 2 == 0 else None
        empty = anchors if t % 2 == 0 else anchors[:0]
        ours, theirs = first(mde_output, given), second(mde_output, empty)
        assert torch.equal(ours.depth_m, theirs.depth_m)
        assert torch.equal(first.state.linear.mean, second.state.linear.mean)


def test_before_any_anchor_the_depth_is_the_expected_one():
    mde_output, _, anchors = next(frames(1))
    stream = FieldFilter()
    warning = stream(mde_output, None).report.warnings[0]
    assert warning.code == "no_anchors"
    assert stream.state is None
    stream(mde_output, anchors)
    mean, covariance = vars(stream.state.linear).values()
    assert bool((torch.linalg.eigvalsh(covariance) > 0).all())
    assert float(mean[0]) == pytest.approx(np.log(2.5), abs=0.5)


def state_of(mean, covariance, prior_std):
    """A state with these coefficients, and nothing kept of the last frame."""
    mde_output, depth_m = room()
    stream = FieldFilter()
    stream(mde_output, draw_anchors(depth_m, 5))
    linear = LinearState(mean, covariance)
    return dataclasses.replace(stream.state, shift=None, linear=linear, prior_std=prior_std)


def test_one_step_of_prediction_drifts_the_scale_and_decays_the_weights():
    """The weight of the mean function towards one, those of the modes towards zero."""
    prior_std = torch.linspace(0.5, 1.5, 18).double()
    start = state_of(torch.full((18,), 2.0).double(), torch.diag(0.5 * prior_std**2), prior_std)
    _, linear = FieldFilter(drift=0.1, decay=0.2).drifted(start, load_field("field"))
    mean, covariance = linear.mean, linear.covariance
    assert mean.tolist() == pytest.approx([2.0, 1.8, *[1.6] * 16])
    assert float(covariance[0, 0]) == pytest.approx(0.5 * float(prior_std[0] ** 2) + 0.1**2)
    # 0.8² of half the prior variance and 1 − 0.8² of all of it.
    wanted = (0.64 * 0.5 + 0.36) * prior_std[1:] ** 2
    torch.testing.assert_close(covariance.diagonal()[1:], wanted)


def test_decay_of_one_forgets_all_but_the_scale():
    prior_std = torch.linspace(0.5, 1.5, 18).double()
    start = state_of(torch.full((18,), 2.0).double(), torch.diag(0.5 * prior_std**2), prior_std)
    _, linear = FieldFilter(decay=1.0, drift=0.0).drifted(start, load_field("field"))
    assert linear.mean.tolist() == [2.0, 1.0, *[0.0] * 16]
    torch.testing.assert_close(linear.covariance.diagonal()[1:], prior_std[1:] ** 2)


def test_two_frames_of_one_linear_field_are_one_frame_with_all_anchors(monkeypatch):
    """Without stationary terms, drift and decay the filter is recursive least squares."""
    monkeypatch.setattr("scalefield.field.kalman.STILL_LOG_DEPTH", 0.0)  # keep no measurement
    mde_output, depth_m = room()
    anchors = draw_anchors(depth_m, 24)
    maps = torch.rand(1, 4, 5, 6, generator=torch.Generator().manual_seed(0)) - 0.5
    layout = ChannelLayout(modes=3, terms=0, embedding_size=1)
    kernel = Kernel(constant_std=50.0, mode_std=1.0, terms=(), noise_std=0.05, mean_weight_std=0.5)
    scales = (ErrorScale(1.0, 1.0, 1.0, 1.0),)
    model = FieldModel(
        kernel, lambda *_: FieldMaps(maps, torch.zeros(1), layout), error_scales=scales
    )
    twice, once = (FieldFilter(model, robust=False, drift=0.0, decay=0.0) for _ in range(2))
    for half in (anchors[:12], anchors[12:]):
        in_two = twice(mde_output, half)
    at_once = once(mde_output, anchors)
    # The medians of 12 and 24 anchors are prior means whose standard deviation is 50.
    twice, once = (stream.state.linear for stream in (twice, once))
    torch.testing.assert_close(twice.mean, once.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(twice.covariance, once.covariance, rtol=0, atol=1e-4)
    torch.testing.assert_close(in_two.log_scale, at_once.log_scale, rtol=0, atol=1e-3)


@pytest.mark.parametrize("n", [400, 5000])
def test_a_stream_of_many_anchors_is_as_good_as_field(n):
    """As a LiDAR gives them."""
    mde_output, depth_m = room(shape=(100, 120))
    stream, anchors = FieldFilter(), draw_anchors(depth_m, n)
    for _ in range(2):
        recovery = stream(mde_output, anchors)
    alone = Field()(mde_output, anchors)
    assert absrel(recovery, depth_m) < 1.1 * absrel(alone, depth_m)
    assert bool((torch.linalg.eigvalsh(stream.state.linear.covariance) > 0).all())


def test_a_still_camera_keeps_its_field_in_a_frame_without_anchors():
    mde_output, depth_m = room()
    stream = FieldFilter()
    first = stream(mde_output, draw_anchors(depth_m, 60))
    second = stream(mde_output, None)
    torch.testing.assert_close(second.depth_m, first.depth_m, rtol=1e-3, atol=0)
    torch.testing.assert_close(second.std_log, first.std_log, rtol=0.05, atol=1e-3)


def test_anchors_of_a_still_camera_add_up_and_a_new_reading_replaces_that_of_its_pixel():
    mde_output, depth_m = room()
    anchors, twice = draw_anchors(depth_m, 60), FieldFilter(robust=False)
    twice(mde_output, anchors[:40])
    both = twice(mde_output, anchors[30:])
    once = FieldFilter(robust=False)(mde_output, anchors)
    torch.testing.assert_close(both.depth_m, once.depth_m, rtol=1e-3, atol=0)
    changed = with_depth(anchors, 1.2 * anchors.depth_m)
    after = twice(mde_output, changed)
    torch.testing.assert_close(after.depth_m, 1.2 * once.depth_m, rtol=0.05, atol=0)


def test_a_frame_in_another_unit_does_not_enter_the_state():
    stream, reference = FieldFilter(), FieldFilter()
    for t, (mde_output, _, anchors) in enumerate(frames(5)):
        wrong = with_depth(anchors, 1000 * anchors.depth_m) if t == 2 else anchors
        recovery = stream(mde_output, wrong)
        wanted = reference(mde_output, None if t == 2 else anchors)
        torch.testing.assert_close(recovery.depth_m, wanted.depth_m)
        codes = [r.code for r in recovery.report.rejected]
        assert codes == (["contradicts_stream"] * 2 if t == 2 else [])


def test_frames_that_go_on_contradicting_begin_a_new_stream():
    stream, errors = FieldFilter(patience=2), []
    for t, (mde_output, depth_m, anchors) in enumerate(frames(5)):
        factor = 1 if t < 2 else 100
        recovery = stream(mde_output, with_depth(anchors, factor * anchors.depth_m))
        errors.append(absrel(recovery, factor * depth_m))
        restarted = "stream_restarted" in [w.code for w in recovery.report.warnings]
        assert restarted == (t == 3)
    assert errors[2] > 0.9
    assert max(errors[3:]) < 0.3


def test_outliers_and_anchors_on_holes_are_rejected_by_their_number():
    streams = FieldFilter(), FieldFilter(robust=False)
    errors = [[], []]
    for t, (mde_output, depth_m, _) in enumerate(frames(4)):
        anchors = draw_anchors(depth_m, 30, seed=t)
        spoiled = with_depth(anchors, anchors.depth_m * np.where(np.arange(30) == 7, 5, 1))
        relative = mde_output.prediction.clone()
        relative[int(anchors.v[3]), int(anchors.u[3])] = torch.nan
        for stream, kept in zip(streams, errors, strict=True):
            recovery = stream(MDEOutput(relative, "depth"), spoiled)
            kept.append(absrel(recovery, depth_m))
            report = recovery.report
            codes = {r.anchor: r.code for r in report.rejected}
            expected = {3: "no_relative_depth"} | ({7: "outlier"} if stream.robust else {})
            assert codes == expected
            assert report.anchors_given == 30
            assert report.anchors_used == len(report.residuals_log) == 30 - len(expected)
    assert np.mean(errors[0]) < 0.3 * np.mean(errors[1])


def test_a_frame_whose_anchors_all_lie_on_holes_counts_as_one_without_anchors():
    stream = FieldFilter()
    (first, _, anchors), (second, _, _) = frames(2)
    stream(first, anchors)
    relative = second.prediction.clone()
    relative[:5, :5] = torch.nan
    on_holes = Anchors([1, 3], [2, 4], [2.0, 2.0])
    report = stream(MDEOutput(relative, "depth"), on_holes).report
    assert [r.code for r in report.rejected] == ["no_relative_depth"] * 2
    assert report.anchors_used == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"drift": -0.1}, "drift must be 0 or more, found -0.1"),
        ({"drift": float("nan")}, "drift must be 0 or more, found nan"),
        ({"decay": 1.5}, "decay must be 0 … 1, found 1.5"),
        ({"decay": -0.5}, "decay must be 0 … 1, found -0.5"),
    ],
)
def test_a_stream_with_settings_outside_their_range_is_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        FieldFilter(**options)


def test_arrays_given_to_a_stream_get_a_sentence(said_of):
    prepare = [
        "from scalefield.field.kalman import FieldFilter, LinearState",
        "depth = numpy.ones((6, 8))",
    ]
    sentences = said_of(prepare, ["FieldFilter()(depth)", "FieldFilter()(depth, None)"])
    wanted = "a stream takes the output of an estimator, as mde(image) returns it, found ndarray"
    assert sentences == [wanted] * 2


def test_public_stream_takes_images_and_rows_and_returns_numpy_for_numpy():
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    mde, rows = load_mde("lite"), [(10, 12, 2.0), (50, 20, 3.0)]
    from_image, from_output = sf.Stream(mde=mde), sf.Stream()
    for anchors in (rows, None):
        one, other = from_image(image, anchors), from_output(mde(image), anchors)
        assert isinstance(one.depth_m, np.ndarray)
        assert isinstance(other.depth_m, torch.Tensor)
        np.testing.assert_array_equal(one.depth_m, other.depth_m.numpy())
        assert one.report.method == "stream"
        np.testing.assert_array_equal(one.image, image)
    assert isinstance(sf.Stream(mde=mde)(torch.from_numpy(image), rows).depth_m, torch.Tensor)


def test_public_stream_refuses_with_a_sentence():
    with pytest.raises(InputError, match="an image array must have the shape"):
        sf.Stream()(np.zeros((2, 3, 4, 5), np.uint8))
    with pytest.raises(InputError, match="anchors: wanted Anchors, rows of u, v, depth_m"):
        sf.Stream()(np.zeros((8, 8, 3), np.uint8), 7)
    with pytest.raises(InputError, match=r"1 of 1 anchors lie outside"):
        sf.Stream(mde=load_mde("lite"))(np.zeros((32, 32, 3), np.uint8), [(99, 0, 1.0)])
