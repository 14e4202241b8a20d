import numpy as np
import pytest
import torch

from methods.test_field import draw, world
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field
from scalefield.stream import Stream


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
    assert "no anchors" in stream(mde_output, anchors[:0]).report.warnings[0]
    assert stream.state is None
    stream(mde_output, anchors)
    m, P = stream.state
    assert bool((torch.linalg.eigvalsh(P) > 0).all())
    assert float(m[0]) == pytest.approx(np.log(2.5), abs=0.5)
