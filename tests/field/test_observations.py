import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from field.worlds import draw_anchors, image_inputs, room, with_depth
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.field.observations import Readings
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field


def readings_of(rows, columns, log_depth, noise, mask):
    tensors = (torch.tensor(x) for x in (rows, columns, log_depth, noise, mask))
    rows, columns, log_depth, noise, mask = tensors
    return Readings(rows, columns, log_depth.double(), noise.double(), mask)


def drawn_readings(n, seed, share=0.8):
    """On so few pixels that some are repeated."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, 4, n), rng.integers(0, 4, n)
    return readings_of(
        rows, columns, rng.normal(size=n), rng.uniform(0.01, 0.3, n), rng.random(n) < share
    )


@given(n=st.integers(1, 40), seed=st.integers(0, 500))
def test_merged_readings_are_the_weighted_mean_and_spread_of_each_pixel(n, seed):
    readings = drawn_readings(n, seed)
    merged, group = readings.merged()
    pixels = sorted(
        {(int(r), int(c)) for r, c, m in zip(*readings[:2], readings.mask, strict=True) if m}
    )
    assert [(int(r), int(c)) for r, c in zip(*merged[:2], strict=True)][: len(pixels)] == pixels
    assert int(merged.mask.sum()) == len(pixels)
    for i, (row, column) in enumerate(pixels):
        own = readings.mask & (readings.rows == row) & (readings.columns == column)
        assert group[own].unique().tolist() == [i]
        y, weight = readings.log_depth[own], readings.noise[own] ** -2
        mean = (weight * y).sum() / weight.sum()
        spread = float(((weight * (y - mean) ** 2).sum() / weight.sum()).sqrt())
        assert float(merged.log_depth[i]) == pytest.approx(float(mean))
        assert float(merged.noise[i]) == pytest.approx(
            max(spread, float(readings.noise[own].min()))
        )


@given(n=st.integers(1, 40), seed=st.integers(0, 500))
def test_merged_readings_of_static_shape_are_the_same_with_padding(n, seed):
    readings = drawn_readings(n, seed)
    (merged, group), (static, static_group) = readings.merged(), readings.merged(static=True)
    known = int(merged.mask.sum())
    assert len(static.rows) == n
    assert int(static.mask.sum()) == known
    for ours, theirs in zip(merged, static, strict=True):
        assert torch.equal(ours[:known], theirs[:known])
    assert torch.equal(group[readings.mask], static_group[readings.mask])


@given(n=st.integers(1, 40), seed=st.integers(0, 500))
def test_repeating_every_reading_changes_nothing(n, seed):
    readings = drawn_readings(n, seed, share=1.0)
    twice = Readings(*(torch.cat([x, x]) for x in readings))
    for once, again in zip(readings.merged()[0], twice.merged()[0], strict=True):
        torch.testing.assert_close(again, once)


def test_copies_are_mutual_neighbours_of_one_depth():
    image = image_inputs((96, 128))
    rows = [10, 11, 40, 41, 70, 71, 71]
    columns = [20, 20, 60, 60, 90, 90, 91]
    depth_m = image.mde_depth[rows, columns].double()
    factors = torch.tensor([3.0, 3.0, 1.0, 1.5, 1.0, 1.0, 1.0])
    measured = (depth_m * factors).log().tolist()
    readings = readings_of(rows, columns, measured, [0.01] * 7, [True] * 7)
    found = image.observe(readings).copies(image.unit_px).tolist()
    assert found[:4] == [0, 0, 2, 3]
    assert sum(i != own for i, own in zip(found[4:], range(4, 7), strict=True)) == 1


@pytest.mark.parametrize("apart", [0, 2])
@pytest.mark.parametrize("n", [6, 12, 60])
def test_a_wrong_anchor_given_twice_is_rejected_as_it_is_once(n, apart):
    """The second row on the same pixel, or two pixels aside."""
    output, truth = room(shape=(96, 128))
    found = []
    for seed in range(8):
        anchors = draw_anchors(truth, n, seed)
        wrong = with_depth(anchors, anchors.depth_m * np.where(np.arange(n) == 2, 6, 1))
        u = np.clip(wrong.u[2] + apart, 0, 127)
        copied = Anchors(
            *(np.append(x, y) for x, y in ((wrong.u, u), (wrong.v, wrong.v[2]))),
            np.append(wrong.depth_m, wrong.depth_m[2]),
        )
        once = {r.anchor for r in recover_from(output, wrong, Field()).report.rejected}
        twice = {r.anchor for r in recover_from(output, copied, Field()).report.rejected}
        found.append((2 in once, 2 in twice and n in twice))
    once, twice = np.array(found).T
    assert twice.sum() >= once.sum() - 1
    assert once.sum() >= 6


def test_rows_given_twice_do_not_change_the_recovery():
    output, truth = room(shape=(96, 128))
    anchors = draw_anchors(truth, 40)
    wrong = with_depth(anchors, anchors.depth_m * np.where(np.arange(40) % 7 == 2, 5, 1))
    twice = Anchors(*(np.concatenate([x, x]) for x in (wrong.u, wrong.v, wrong.depth_m)))
    once, again = (recover_from(output, each, Field()) for each in (wrong, twice))
    torch.testing.assert_close(again.depth_m, once.depth_m)
    torch.testing.assert_close(again.std_log, once.std_log)
    rejected = {r.anchor for r in once.report.rejected}
    assert rejected
    assert {r.anchor for r in again.report.rejected} == rejected | {i + 40 for i in rejected}


def test_positions_inside_a_pixel_do_not_change_the_recovery():
    """Of more measurements than a block has, some decide the shift and the scale of the errors."""
    _, truth = room(shape=(96, 128))
    output = MDEOutput(torch.from_numpy(1 / truth).float() + 0.1, "disparity", affine=True)
    anchors, rng = draw_anchors(truth, 150), np.random.default_rng(0)
    du, dv = rng.uniform(-0.49, 0.49, (2, 150))
    moved = Anchors(anchors.u + du, anchors.v + dv, anchors.depth_m)
    first, second = (recover_from(output, each, Field()) for each in (anchors, moved))
    assert torch.equal(first.depth_m, second.depth_m)
    assert torch.equal(first.std_log, second.std_log)
