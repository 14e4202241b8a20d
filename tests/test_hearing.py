import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.anchors import Anchors
from scalefield.hearing import MOST_BLOCKS, Hearing
from scalefield.methods.field import Field, load_field
from test_scene import room


@pytest.fixture
def interpolated(monkeypatch):
    """Even a small image has nodes."""
    monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)


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
            patch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)
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

        call = Hearing.__call__

        def noting(self, kernel, anchors, hear):
            return call(self, kernel, anchors, lambda new: computed.append(len(new)) or hear(new))

        monkeypatch.setattr(Hearing, "__call__", noting)
        output = room()
        u, v = np.arange(10) * 7, np.arange(10) * 5
        for n in (9, 10, 10, 8):
            Field(robust=False)(output, Anchors(u[:n], v[:n], np.full(n, 3.0)))
        # At the nodes, in the windows around anchors, and where the deviation is computed.
        assert computed == [9, 9, 9, 1, 1, 1]

    def test_a_single_anchor_may_be_moved_on_and_on(self, interpolated):
        """Of its old places none is wanted any more when they are cleared away."""
        output = room()
        for u in range(2 * MOST_BLOCKS):
            anchors = Anchors([u], [20], [3.0])
            moved = Field()(output, anchors)
        fresh = Field()(dataclasses.replace(output), anchors)
        torch.testing.assert_close(moved.log_scale, fresh.log_scale, atol=1e-3, rtol=1e-4)

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
