import numpy as np
import pytest
import torch
from scalefield.stream import Stream

from methods.test_field import draw, few_are_many, world  # noqa: F401
from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field


def frames(count, seed=0):
    """A slow pan: the estimator's bias stays with the camera, the scene moves."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0:45, 0:60]
    for t in range(count):
        depth = 1.5 + (u + 2 * t) / 60 + 0.3 * np.sin((u + 3 * t) / 9)
        bias = 0.35 * u / 60 - 0.25 * v / 45
        truth = 2.5 * depth * np.exp(bias)
        chosen = rng.choice(truth.size, 2, replace=False)
        y, x = np.divmod(chosen, 60)
        yield MDEOutput(torch.from_numpy(depth).float(), "depth"), truth, Anchors(x, y, truth[y, x])


def test_the_first_frame_is_what_field_gives_it():
    """Up to the slope, which is exact, and the anchors' own doubt, a stream begins as `field`."""
    mde_output, truth = world()
    anchors = draw(truth, 30)
    alone = Field(robust=False)(mde_output, anchors)
    first = Stream(Field(robust=False), drift=0.0)(mde_output, anchors)
    torch.testing.assert_close(first.depth_m, alone.depth_m, rtol=5e-3, atol=0)


def test_a_stream_remembers_and_single_frames_do_not():
    stream, errors, alone = Stream(), [], []
    for mde_output, truth, anchors in frames(12):
        for method, kept in ((stream, errors), (Field(), alone)):
            depth_m = method(mde_output, anchors).depth_m.numpy()
            kept.append(np.mean(np.abs(depth_m - truth) / truth))
    assert np.mean(errors[4:]) < 0.9 * np.mean(alone[4:])  # by how much is up to the weights
    assert np.std(errors[4:]) < np.std(alone[4:])


def test_a_frame_without_anchors_goes_on_and_is_less_sure():
    stream = Stream()
    sure = []
    for t, (mde_output, truth, anchors) in enumerate(frames(8)):
        given = anchors if t < 5 else anchors[:0]
        recovery = stream(mde_output, given)
        sure.append(float(recovery.std_log.median()))
        error = np.mean(np.abs(recovery.depth_m.numpy() - truth) / truth)
    assert error < 0.15
    assert sure[5] < sure[6] < sure[7]


def test_before_any_anchor_it_says_what_it_expects():
    mde_output, _, anchors = next(frames(1))
    stream = Stream()
    assert "no anchors" in stream(mde_output, anchors[:0]).report.warnings[0].text
    assert stream.state is None
    stream(mde_output, anchors)
    m, P = stream.state
    assert bool((torch.linalg.eigvalsh(P) > 0).all())
    assert float(m[0]) == pytest.approx(np.log(2.5), abs=0.5)


def test_a_frame_without_anchors_may_be_a_large_image(monkeypatch):
    monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)
    stream = Stream()
    (first, _, anchors), (second, truth, _) = frames(2)
    stream(first, anchors)
    recovery = stream(second, anchors[:0])
    assert np.mean(np.abs(recovery.depth_m.numpy() - truth) / truth) < 0.3


def test_a_stream_of_many_anchors_is_solved_in_patches_and_is_what_the_exact_one_is(
    few_are_many,  # noqa: F811
    monkeypatch,
):
    """Depth, deviation and what is carried on to the next frame."""
    streams = [Stream(), Stream()]
    for mde_output, truth, _ in frames(3):
        anchors = draw(truth, 400)
        found = []
        for stream, limit in zip(streams, (100, 400), strict=True):
            monkeypatch.setattr("scalefield.methods.field.EXACT_ANCHORS", limit)
            found.append(stream(mde_output, anchors))
        patched, exact = found
        assert "400 anchors were solved in" in patched.report.fallbacks[0].text
        assert exact.report.fallbacks == ()
        assert float((patched.log_scale - exact.log_scale).abs().mean()) < 1e-3
        ratio = patched.std_log / exact.std_log
        assert 0.9 < float(ratio.min()) < float(ratio.median()) < 1.1
    (ours, our_cov), (theirs, their_cov) = (stream.state for stream in streams)
    deviation = their_cov.diagonal().sqrt()
    # The modes are learned from anchors far from one another: half of these, and still as well.
    assert float(((ours - theirs) / deviation).abs().max()) < 3
    wider = our_cov.diagonal().sqrt() / deviation
    assert 0.8 < float(wider.min()) < float(wider.max()) < 2
    assert bool((torch.linalg.eigvalsh(our_cov) > 0).all())


def test_ten_thousand_points_a_frame():
    """As a LiDAR gives them."""
    mde_output, truth = world(shape=(100, 120))
    stream = Stream()
    recovery = stream(mde_output, draw(truth, 10_000))
    assert "10000 anchors were solved in 64 patches" in recovery.report.fallbacks[0].text
    assert np.mean(np.abs(recovery.depth_m.numpy() - truth) / truth) < 0.003
    assert bool((torch.linalg.eigvalsh(stream.state[1]) > 0).all())


def test_a_wrong_anchor_is_left_out_as_field_leaves_it_out():
    """And those on holes; both by the numbers that they were given."""
    streams = Stream(), Stream(Field(robust=False))
    errors = [[], []]
    for t, (mde_output, truth, _) in enumerate(frames(4)):
        anchors = draw(truth, 30, seed=t)
        depth_m = anchors.depth_m * np.where(np.arange(30) == 7, 5, 1)
        spoiled = Anchors(anchors.u, anchors.v, depth_m)
        relative = mde_output.prediction.clone()
        relative[int(anchors.v[3]), int(anchors.u[3])] = torch.nan
        for stream, kept in zip(streams, errors, strict=True):
            recovery = stream(MDEOutput(relative, "depth"), spoiled)
            kept.append(np.nanmean(np.abs(recovery.depth_m.numpy() / truth - 1)))
            report = recovery.report
            left_out = {r.anchor: r.reason for r in report.rejected}
            expected = {3: "no relative depth here"}
            if stream.method.robust:
                expected[7] = "contradicted by the others"
            assert left_out == expected
            assert report.anchors_given == 30
            assert report.anchors_used == len(report.residuals_log) == 30 - len(expected)
    assert np.mean(errors[0]) < 0.3 * np.mean(errors[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drift": -0.1}, "drift must be 0 or more, found -0.1"),
        ({"drift": float("nan")}, "drift must be 0 or more, found nan"),
        ({"forgetting": 1.5}, "forgetting must be 0 … 1, found 1.5"),
        ({"method": Field(level="learned")}, "level must be free in a stream"),
    ],
)
def test_a_stream_that_cannot_be_meant_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        Stream(**options)
