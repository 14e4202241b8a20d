import numpy as np
import pytest
import torch

from scalefield.bends import Bends, Sights, all_terms, rough_terms, smooth_terms
from scalefield.methods.field import load_field
from test_kernel import KERNEL, points
from test_scene import room

MIDDLE = torch.tensor([0.5, 0.4]).double()


@pytest.fixture
def pairs():
    """Points and anchors, the kernel's terms between them, and what `Sights` says of the points."""
    seen, anchors = points(12, 0), points(4, 1)
    slow = torch.stack([KERNEL.bend(j, seen, anchors) for j in all_terms(KERNEL)])
    sights = Sights.of(seen.position - MIDDLE, seen.log_depth, seen.embedding, seen.amplitude)
    return sights, anchors, slow


@pytest.mark.parametrize("at_once", [5, 1 << 18])
@pytest.mark.parametrize("terms", [(0, 1), (0,), (1,)])
def test_matrix_products_give_what_the_kernel_gives(pairs, terms, at_once, monkeypatch):
    monkeypatch.setattr("scalefield.bends.pairs_at_once", lambda _: at_once)
    sights, anchors, slow = pairs
    alpha, seen = torch.tensor([1, -2, 0.5, 3]).double(), sights.only(terms)
    bends = Bends(KERNEL, anchors, MIDDLE, torch.float64, terms)
    # The kernel's root has a little beneath it, for the sake of its derivative.
    close = {"atol": 1e-5, "rtol": 0}
    wanted = slow[list(terms)]
    torch.testing.assert_close(bends.weighted(seen, alpha), (wanted @ alpha).mT, **close)
    torch.testing.assert_close(bends.rows(seen), wanted.sum(dim=0).mT, **close)
    some = torch.tensor([2, 0])
    torch.testing.assert_close(bends[some].rows(seen), bends.rows(seen)[some], **close)
    own = bends.own_rows(seen)  # three points for each of four anchors
    expected = torch.stack([wanted[:, 3 * i : 3 * i + 3, i].sum(dim=0) for i in range(4)])
    torch.testing.assert_close(own, expected, **close)


def test_every_term_is_smooth_or_rough():
    assert sorted(smooth_terms(KERNEL) + rough_terms(KERNEL)) == list(all_terms(KERNEL))
    assert all(KERNEL.terms[j].shape == "exponential" for j in rough_terms(KERNEL))


def test_pixels_are_seen_as_the_kernel_sees_them():
    """Each term's channels are its own, whichever terms are asked for."""
    scene = load_field("field").scene(room())
    rows, columns = np.array([3, 50, 20]), np.array([70, 2, 41])
    points = scene.pixels(rows, columns)
    place = torch.from_numpy(np.stack([columns, rows], axis=1)).float()
    log_depth = scene.log_depth[rows, columns]
    whole = Sights.at(scene, place, log_depth, (0, 1, 2))
    expected = Sights.of(
        points.position - scene.middle, points.log_depth, points.embedding, points.amplitude
    )
    for j, design in enumerate(expected.designs):
        torch.testing.assert_close(whole.designs[j], design.float(), atol=1e-5, rtol=1e-5)
        alone = Sights.at(scene, place, log_depth, (j,))
        torch.testing.assert_close(alone.designs[0], whole.designs[j], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(alone.amplitude, whole.amplitude[:, j : j + 1])


@pytest.mark.parametrize("what", ["weighted", "rows"])
def test_pairs_are_worked_on_in_one_place(what, monkeypatch):
    """However many parts there are: blocks that come and go leave holes in memory."""
    monkeypatch.setattr("scalefield.bends.pairs_at_once", lambda _: 1 << 16)
    seen, anchors = points(1 << 12, 0), points(1 << 8, 1)
    sights = Sights.of(seen.position - MIDDLE, seen.log_depth, seen.embedding, seen.amplitude)
    bends = Bends(KERNEL, anchors, MIDDLE, torch.float64, all_terms(KERNEL))
    call = {
        "weighted": lambda: bends.weighted(sights, anchors.mean),
        "rows": lambda: bends.rows(sights),
    }
    with torch.profiler.profile(profile_memory=True) as profile:
        call[what]()
    block = 8 << 16
    made = [e.name for e in profile.events() if e.self_cpu_memory_usage >= block // 2]
    assert len(list(sights.parts(len(anchors)))) == 16
    assert len(made) == {"weighted": 1, "rows": 2}[what], made
