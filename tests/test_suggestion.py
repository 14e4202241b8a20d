import numpy as np
import pytest
import torch

import scalefield as sf
from scalefield.errors import InputError
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field
from scalefield.suggestion import greedy, suggest_from


def flat(shape=(60, 80)):
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    return MDEOutput(torch.from_numpy(1 + u / 40 + v / 90).float(), "depth")


def test_greedy_equals_trying_every_choice():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 5))
    covariance = root @ root.T + 0.1 * np.eye(12)
    order, removed, _ = greedy(covariance, 0.2, 3, np.ones(12, dtype=bool))
    known: list[int] = []
    for step in range(3):
        traces = []
        for j in range(12):
            chosen = [*known, j]
            block = covariance[np.ix_(chosen, chosen)] + 0.04 * np.eye(len(chosen))
            cross = covariance[:, chosen]
            traces.append(np.trace(covariance - cross @ np.linalg.solve(block, cross.T)))
        free = [j for j in range(12) if j not in known]
        assert order[step] == min(free, key=lambda j: traces[j])
        known.append(int(order[step]))
    assert bool((removed > 0).all())


def test_it_asks_about_the_side_that_nobody_measured():
    v, u = np.mgrid[5:60:10, 5:35:10].reshape(2, -1)
    anchors = sf.Anchors(u, v, np.full(len(u), 2.0))
    spots = suggest_from(flat(), anchors, 3)
    assert len(spots) == 3
    assert all(spot.u > 40 for spot in spots)
    assert spots[0].std_log >= spots[2].std_log > 0


def test_measuring_there_removes_more_doubt_than_elsewhere():
    mde_output = flat()
    anchors = sf.Anchors([5, 12], [10, 50], [2.0, 2.2])
    (spot,) = suggest_from(mde_output, anchors, 1)

    def doubt(u, v):
        more = sf.Anchors([*anchors.u, u], [*anchors.v, v], [*anchors.depth_m, 2.0])
        field = Field(robust=False)
        model = field.load()
        scene = model.scene(mde_output)
        variance = field.solve(scene, more, model).posterior.variance(scene.cells((30, 40))[0])
        return float(variance.mean())

    rng = np.random.default_rng(0)
    others = [doubt(rng.integers(0, 80), rng.integers(0, 60)) for _ in range(12)]
    assert doubt(spot.u, spot.v) < np.quantile(others, 0.2)


def test_only_reachable_pixels_are_suggested():
    reachable = np.zeros((60, 80), dtype=bool)
    reachable[:, :20] = True
    spots = suggest_from(flat(), None, 4, reachable=reachable)
    assert all(spot.u < 20 for spot in spots)
    assert len({(spot.u, spot.v) for spot in spots}) == 4
    with pytest.raises(InputError, match="no reachable pixel"):
        suggest_from(flat(), None, 1, reachable=np.zeros((60, 80), dtype=bool))
    with pytest.raises(InputError, match=r"shape \(3, 3\)"):
        suggest_from(flat(), None, 1, reachable=np.zeros((3, 3), dtype=bool))


def test_the_door_takes_a_map_of_one_s_own():
    depth = flat().prediction.numpy()
    spots = sf.suggest(None, sf.Anchors([3], [4], [2.0]), 2, mde_depth=depth, kind="depth")
    assert [spot.removes for spot in spots] == sorted((s.removes for s in spots), reverse=True)
    with pytest.raises(InputError, match="nothing to look at"):
        sf.suggest(None)
