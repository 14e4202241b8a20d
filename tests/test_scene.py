import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield import scene as scenes
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field, load_field
from scalefield.scene import cells_for, dense_mean, dense_parts, dense_std

SHAPE = (60, 80)


def room(seed=0, shape=SHAPE):
    """A slanted wall with a box in front of it."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    depth = 1 + u / shape[1] * rng.uniform(0.5, 2) + 0.2 * v / shape[0]
    depth[shape[0] // 3 : shape[0] // 2, shape[1] // 3 : shape[1] // 2] *= 0.5
    return MDEOutput(torch.from_numpy(depth).float(), "depth")


def posterior_of(output, n, seed=0):
    rng = np.random.default_rng(seed)
    v, u = (rng.integers(0, side, n) for side in output.shape)
    model = load_field("field")
    scene = model.scene(output)
    anchors = Anchors(u, v, rng.uniform(2, 4, n))
    return Field(robust=False).solve(scene, anchors, model).posterior, scene


@pytest.fixture
def interpolated(monkeypatch):
    """Even a small image has nodes."""
    monkeypatch.setattr(scenes, "PIXELS_A_CELL", 0)


@pytest.mark.parametrize("n", [1, 9, 300])
def test_the_deviation_is_the_posterior_s(n):
    output = room()
    posterior, scene = posterior_of(output, n)
    cells = scene.deviation_cells(n)
    found = dense_std(posterior, scene)
    expected = posterior.variance(cells.points).sqrt().float().reshape(1, 1, *cells.shape)
    torch.testing.assert_close(found, scenes.upsample(expected, SHAPE)[0, 0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n", [9, 300])
def test_the_parts_sum_to_the_mean(interpolated, n):
    posterior, scene = posterior_of(room(), n)
    total = sum(dense_parts(posterior, scene).values())
    torch.testing.assert_close(dense_mean(posterior, scene), total, atol=2e-5, rtol=0)


def test_bands_of_pixels_are_the_whole_image(monkeypatch):
    posterior, scene = posterior_of(room(), 20)
    whole = dense_mean(posterior, scene)
    assert scene.lattices == {}
    v, u = np.divmod(np.arange(SHAPE[0] * SHAPE[1]), SHAPE[1])
    slow = posterior.mean(scene.pixels(v, u)).float().reshape(SHAPE)
    # float32 blunts a cusp: the square root of its rounding.
    torch.testing.assert_close(whole, slow, atol=2e-3, rtol=0)
    monkeypatch.setattr(scenes, "BAND_PIXELS", 7)
    torch.testing.assert_close(dense_mean(posterior, scene), whole, atol=2e-3, rtol=0)


class TestAnchorsHeardBefore:
    """An edit of the anchors gives what an image that nobody has seen gives."""

    @settings(max_examples=12)
    @given(
        edits=st.lists(
            st.tuples(st.sampled_from(["add", "drop", "move", "twice"]), st.integers(0, 99)),
            min_size=1,
            max_size=5,
        )
    )
    def test_edits_are_what_they_are_on_a_new_image(self, edits):
        output = room()
        rng = np.random.default_rng(0)
        rows = [(int(rng.integers(80)), int(rng.integers(60)), 3.0) for _ in range(6)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scenes, "PIXELS_A_CELL", 0)
            for kind, number in edits:
                i = number % len(rows)
                if kind == "add":
                    rows.insert(i, (number % 80, number % 60, 2.0 + number / 100))
                elif kind == "drop" and len(rows) > 1:
                    rows.pop(i)
                elif kind == "move":
                    rows[i] = ((rows[i][0] + 1) % 80, rows[i][1], rows[i][2])
                else:
                    rows.append(rows[i])
                anchors = Anchors(*zip(*rows, strict=True))
                edited = Field()(output, anchors)
                fresh = Field()(dataclasses.replace(output), anchors)
                for name in ("log_scale", "std_log"):
                    ours, theirs = getattr(edited, name), getattr(fresh, name)
                    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)

    def test_only_what_is_new_is_computed(self, interpolated, monkeypatch):
        computed = []
        heard = scenes.Hearing.heard

        def note(self, kernel, anchors):
            computed.append(len(anchors))
            return heard(self, kernel, anchors)

        monkeypatch.setattr(scenes.Hearing, "heard", note)
        output = room()
        u, v = np.arange(10) * 7, np.arange(10) * 5
        for n in (9, 10, 10, 8):
            Field(robust=False)(output, Anchors(u[:n], v[:n], np.full(n, 3.0)))
        assert computed == [9, 9, 1, 1]  # at the nodes, and where the deviation is computed

    def test_another_kernel_hears_anew(self, interpolated):
        output, model = room(), load_field("field")
        anchors = Anchors([3, 50], [5, 40], [2.0, 3.0])
        before = Field(model=model, robust=False)(output, anchors)
        halved = tuple(
            dataclasses.replace(t, amplitude=t.amplitude / 2) for t in model.kernel.terms
        )
        stiffer = dataclasses.replace(model, kernel=dataclasses.replace(model.kernel, terms=halved))
        after = Field(model=stiffer, robust=False)(output, anchors)
        fresh = Field(model=stiffer, robust=False)(dataclasses.replace(output), anchors)
        torch.testing.assert_close(after.log_scale, fresh.log_scale, atol=1e-6, rtol=0)
        assert not torch.equal(after.std_log, before.std_log)


def test_more_anchors_have_more_nodes_until_pixels_are_cheaper(monkeypatch):
    counts = [cells_for(n) for n in (0, 1, scenes.FEW, 400, 900, 2000, 10**6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (scenes.CELLS[0], scenes.CELLS[-1])
    output = room(shape=(360, 480))
    scene = load_field("field").scene(output)
    nodes = [len(scene.lattice(n).sights) for n in (10, 400)]
    assert nodes[0] < nodes[1]
    assert list(scene.lattices) == [cells_for(400)]  # the others made room
    assert scene.lattice(2000) is None  # eight pixels to a cell, or fewer
