import numpy as np
import pytest
import torch

import scalefield as sf
from scalefield import samples
from scalefield.errors import InputError
from scalefield.field.condition import condition
from scalefield.field.exact import ExactPosterior
from scalefield.field.model import load_field
from scalefield.field.observations import Readings
from scalefield.field.placement import (
    STD_FLOOR,
    greedy,
    one_a_cell,
    suggest_from,
)
from scalefield.mde.output import MDEOutput


def flat(shape=(60, 80)):
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    return MDEOutput(torch.from_numpy(1 + u / 40 + v / 90).float(), "depth")


@pytest.mark.parametrize("cells", [12, 7])
def test_greedy_equals_trying_every_choice(cells):
    """Candidates are the cells themselves, or the five points after them."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 5))
    covariance = root @ root.T + 0.1 * np.eye(12)
    first = 0 if cells == 12 else cells
    noise = rng.uniform(0.1, 0.4, 12 - first)
    order, removed, _ = greedy(covariance, cells, noise, 3, np.ones(12 - first, dtype=bool))

    def mean_log_variance(chosen):
        rows = [first + j for j in chosen]
        block = covariance[np.ix_(rows, rows)] + np.diag(noise[chosen] ** 2)
        cross = covariance[:, rows]
        left = covariance - cross @ np.linalg.solve(block, cross.T)
        return np.log(left.diagonal()[:cells] + STD_FLOOR**2).mean()

    known: list[int] = []
    for step in range(3):
        free = [j for j in range(12 - first) if j not in known]
        assert order[step] == min(free, key=lambda j: mean_log_variance([*known, j]))
        fall = mean_log_variance(known) - mean_log_variance([*known, order[step]])
        assert removed[step] == pytest.approx(1 - np.exp(-fall / 2))
        known.append(int(order[step]))


def test_suggestions_lie_on_the_side_without_anchors():
    v, u = np.mgrid[5:60:10, 5:35:10].reshape(2, -1)
    anchors = sf.Anchors(u, v, np.full(len(u), 2.0))
    spots = suggest_from(flat(), anchors, 3)
    assert len(spots) == 3
    assert all(spot.u > 40 for spot in spots)
    assert spots[0].std_log >= spots[2].std_log > 0


def exact_posterior(mde_output, anchors):
    """The exact posterior under the kernel that `condition` finds for these anchors, and the image
    and the factors of its calibration at cells."""
    model = load_field("field")
    image = model.image_inputs(mde_output)
    readings = Readings.of(anchors, image.shape, float(model.kernel.noise_std))
    fitted = condition(model, image, readings).fit
    inputs, y, noise, mask = fitted.observations
    posterior = ExactPosterior.fit(fitted.kernel, inputs[mask], y[mask], noise[mask])
    return posterior, image, fitted.calibration


def calibrated(covariance, calibration, posterior, cells):
    prior = posterior.kernel.features(cells).amplitude.square().sum(dim=-1)
    std = calibration.std(covariance.diagonal(), prior)
    factor = std / covariance.diagonal().sqrt()
    return covariance * factor[:, None] * factor


def test_measuring_the_suggested_pixel_removes_more_variance_than_others():
    mde_output = flat()
    anchors = sf.Anchors([5, 12], [10, 50], [2.0, 2.2])
    (spot,) = suggest_from(mde_output, anchors, 1)

    def mean_log_variance(u, v):
        more = sf.Anchors([*anchors.u, u], [*anchors.v, v], [*anchors.depth_m, 2.0])
        posterior, image, calibration = exact_posterior(mde_output, more)
        cells = image.cells((30, 40))[0]
        variance = calibrated(posterior.covariance(cells), calibration, posterior, cells)
        variance = variance.diagonal()
        return float((variance + STD_FLOOR**2).log().mean())

    rng = np.random.default_rng(0)
    others = [mean_log_variance(rng.integers(0, 80), rng.integers(0, 60)) for _ in range(12)]
    assert mean_log_variance(spot.u, spot.v) < np.quantile(others, 0.5)


def test_only_reachable_pixels_are_suggested():
    reachable = np.zeros((60, 80), dtype=bool)
    reachable[:, :20] = True
    spots = suggest_from(flat(), None, 4, reachable=reachable)
    assert all(spot.u < 20 for spot in spots)
    assert len({(spot.u, spot.v) for spot in spots}) == 4
    with pytest.raises(InputError, match="no reachable pixel"):
        suggest_from(flat(), None, 1, reachable=np.zeros((60, 80), dtype=bool))
    with pytest.raises(InputError, match=r"shape \(60, 80\), found bool of \(3, 3\)"):
        suggest_from(flat(), None, 1, reachable=np.zeros((3, 3), dtype=bool))


def test_suggest_takes_a_relative_depth_map():
    depth = flat().prediction.numpy()
    spots = sf.suggest(None, sf.Anchors([3], [4], [2.0]), 2, mde_depth=depth, kind="depth")
    assert all(0 < spot.removes < 1 and spot.std_log > 0 for spot in spots)
    assert all(spot.anchor is None for spot in spots)
    with pytest.raises(InputError, match="no input: give an image, or mde_depth"):
        sf.suggest(None)


def test_a_subset_of_given_anchors_is_chosen_by_number():
    """Nine on one spot and three elsewhere: the four that differ are chosen."""
    u = np.array([*range(10, 19), 70, 12, 66])
    v = np.array([*[10] * 9, 8, 52, 50])
    given = sf.Anchors(u, v, np.full(12, 2.0))
    spots = suggest_from(flat(), None, 4, among=given)
    chosen = [spot.anchor for spot in spots]
    assert {9, 10, 11} < set(chosen)
    assert [(spot.u, spot.v) for spot in spots] == [(u[i], v[i]) for i in chosen]
    assert len(suggest_from(flat(), None, 99, among=given)) == 12


def test_an_imprecise_measurement_is_not_preferred():
    given = sf.Anchors([40, 41], [30, 30], [2.0, 2.0], sigma_m=[1.5, 0.01])
    (spot,) = suggest_from(flat(), None, 1, among=given)
    assert spot.anchor == 1


def test_of_many_anchors_one_a_cell_is_looked_at():
    v, u = np.mgrid[0:60, 0:80].reshape(2, -1)
    given = sf.Anchors(u, v, np.full(len(u), 2.0))
    given_pixels = np.stack([v, u], axis=1)
    numbers = one_a_cell(given, (60, 80))
    cells = {(v // 2, u // 2) for v, u in given_pixels[numbers].tolist()}
    assert len(numbers) == len(cells) == 30 * 40
    assert one_a_cell(given[:50], (60, 80)).tolist() == list(range(50))


def test_suggestions_are_those_of_the_calibrated_exact_posterior():
    """Up to the number of anchors in a block."""
    rng = np.random.default_rng(0)
    mde_output = flat()
    u, v = rng.integers(0, 80, 100), rng.integers(0, 60, 100)
    anchors = sf.Anchors(u, v, mde_output.prediction[v, u].numpy() * rng.uniform(2, 2.02, 100))
    posterior, image, calibration = exact_posterior(mde_output, anchors)
    cells, pixels = image.cells((30, 40))
    noise = np.full(len(cells), float(posterior.kernel.noise_std))
    covariance = calibrated(posterior.covariance(cells), calibration, posterior, cells)
    order, _, _ = greedy(covariance.numpy(), len(cells), noise, 5, np.ones(len(cells), dtype=bool))
    spots = suggest_from(mde_output, anchors, 5)
    assert [(spot.v, spot.u) for spot in spots] == [tuple(pixels[i]) for i in order]


def test_half_of_many_anchors_give_the_same_suggestions(monkeypatch):
    """Where the anchors are, the standard deviation is a little larger than given all of them."""
    v, u = np.mgrid[0:60, 0:40:2].reshape(2, -1)
    mde_output = flat()
    anchors = sf.Anchors(u, v, 2 * mde_output.prediction[v, u].numpy())
    measured = np.zeros((60, 80), dtype=bool)
    measured[5:55, 5:35] = True
    found = []
    for most in (len(anchors) // 2, len(anchors)):
        monkeypatch.setattr("scalefield.field.explain.MOST_JOINT", most)
        spots = suggest_from(mde_output, anchors, 3)
        (uncertain,) = suggest_from(mde_output, anchors, 1, reachable=measured)
        found.append(([(spot.u, spot.v) for spot in spots], uncertain.std_log))
    (half, more), (all_of_them, least) = found
    np.testing.assert_allclose(half, all_of_them, rtol=0, atol=2)  # a cell of the candidates
    assert least <= more < 1.5 * least


def test_an_outlier_among_the_anchors_is_left_out():
    mde_output = flat()
    rng = np.random.default_rng(0)
    u, v = rng.integers(0, 80, 20), rng.integers(0, 60, 20)
    depth_m = 2 * mde_output.prediction[v, u].numpy().astype(float)
    wrong = depth_m.copy()
    wrong[7] *= 100
    kept = np.arange(20) != 7
    ours = suggest_from(mde_output, sf.Anchors(u, v, wrong), 3)
    theirs = suggest_from(mde_output, sf.Anchors(u[kept], v[kept], depth_m[kept]), 3)
    assert [(s.u, s.v) for s in ours] == [(s.u, s.v) for s in theirs]


def test_anchors_on_holes_are_left_out_and_cannot_be_chosen():
    depth = flat().prediction.numpy().copy()
    depth[20:40] = np.nan
    given = sf.Anchors([5, 30, 60], [30, 30, 10], [2.0, 2.1, 2.2])
    bring = {"mde_depth": depth, "kind": "depth"}
    assert sf.suggest(None, given, **bring) == sf.suggest(None, given[2:], **bring)
    assert sf.suggest(None, given[:2], **bring) == sf.suggest(None, **bring)
    assert [spot.anchor for spot in sf.suggest(None, among=given, **bring)] == [2]
    for few in (given[:2], given[:0]):
        printed = f"none of the {len(few)} anchors to choose among lies on a reachable pixel"
        with pytest.raises(InputError, match=printed):
            sf.suggest(None, among=few, **bring)


def test_wrong_types_get_a_sentence_where_nobody_checks_annotations(said_of):
    calls = {
        "anchors=7": "anchors: wanted Anchors, rows of u, v, depth_m, named columns or a file "
        "(Anchors.of), found int",
        "among='a.csv'": "among: a.csv: no such file",
        "n=2.5": "at least one pixel must be asked for, found n=2.5",
        "n='3'": "at least one pixel must be asked for, found n='3'",
        "reachable=numpy.ones((6, 8))": "the mask of reachable pixels must be booleans of shape "
        "(6, 8), found float64 of (6, 8)",
    }
    prepare = [
        "own = dict(mde_depth=numpy.linspace(1, 2, 48).reshape(6, 8), kind='depth')",
    ]
    tried = [f"scalefield.suggest(None, **own, {wrong})" for wrong in calls]
    assert said_of(prepare, tried) == list(calls.values())


def test_suggest_and_recover_agree_on_the_deviation_without_anchors():
    image = samples.load().image
    spot, *_ = sf.suggest(image, n=1)
    expected = sf.recover(image).std_log[spot.v, spot.u]
    assert spot.std_log == pytest.approx(expected, rel=0.05)
    assert 0 < spot.removes < 1
