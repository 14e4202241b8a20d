import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scalefield as sf
from scalefield.anchors import Anchors
from scalefield.cues import upsample
from scalefield.errors import InputError
from scalefield.methods import METHODS
from scalefield.ridge import Ridge
from scalefield.web.edits import Edit, Problem, apply_edit, check_anchors, full_recovery, parse_edit
from scalefield.web.uploads import Limits

LIMITS = Limits()


@pytest.fixture(scope="module")
def session(prepared):
    return prepared(1000, 700)  # larger than what is displayed


def some_anchors(session, n: int, seed: int = 0) -> Anchors:
    rng = np.random.default_rng(seed)
    height, width = session.shape
    u, v = rng.integers(0, width, n), rng.integers(0, height, n)
    depth = session.relative.output.mde_depth[v, u].numpy().astype(np.float64)
    return Anchors(u, v, 3 * depth * np.exp(0.2 * rng.standard_normal(n)))


@pytest.mark.parametrize("method", ["basis", "lwlr", "median"])
def test_the_page_shows_what_recover_gives(session, method: str) -> None:
    anchors = some_anchors(session, 7)
    header, maps = apply_edit(session, Edit(anchors, method))
    log_scale = torch.from_numpy(maps["log_scale"])
    if method == "basis":  # on the grid: the page interpolates
        assert log_scale.numel() < 160 * 160
        log_scale = upsample(log_scale[None, None], session.shape)[0, 0]
        log_scale = torch.from_numpy(session.shown(log_scale))
    shown = session.shown(session.relative.output.mde_depth) * log_scale.exp().numpy()
    expected = sf.recover(session.image, anchors, method=method)
    rows, columns = session.display
    np.testing.assert_allclose(shown, expected.depth_m[rows[:, None], columns], rtol=2e-4)
    residuals = [a["residual_log"] for a in header["anchors"]]
    np.testing.assert_allclose(residuals, expected.report.residuals_log, atol=2e-4)


@pytest.mark.parametrize("method", ["basis", "global"])
def test_files_hold_exactly_what_recover_gives(session, method: str) -> None:
    anchors = some_anchors(session, 5)
    ours = full_recovery(session, Edit(anchors, method))
    expected = sf.recover(session.image, anchors, method=method)
    np.testing.assert_array_equal(ours.depth_m, expected.depth_m)
    assert ours.report.method == method


def test_anchors_on_holes_are_named(prepared) -> None:
    from scalefield.recovery import bring_depth

    session = prepared(64, 48)
    depth = session.relative.output.mde_depth.numpy().copy()
    depth[:, :8] = np.nan
    session.prepare(lambda: bring_depth(depth, "depth", session.image))
    anchors = Anchors([2, 20, 50], [5, 20, 40], [1.0, 2.0, 3.0])
    header, _ = apply_edit(session, Edit(anchors, "basis"))
    assert header["anchors"][0] == {"reason": "no relative depth here"}
    assert all("residual_log" in a for a in header["anchors"][1:])
    assert header["others_m"][0] is None
    assert header["revision"] == 2


def random_problem(seed: int, n: int, k: int = 5) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    M = torch.randn(n, k, generator=generator, dtype=torch.float64)
    y = torch.randn(n, generator=generator, dtype=torch.float64)
    return Problem(M, y, torch.ones(n, dtype=torch.float64), Ridge())


@given(st.integers(0, 10**6), st.integers(2, 12))
def test_leaving_one_out_is_leaving_it_out(seed: int, n: int) -> None:
    problem = random_problem(seed, n)
    residual, standard = problem.leave_one_out()
    for i in range(n):
        rest = problem.only(np.delete(np.arange(n), i))
        solution = rest.solve()
        said = problem.M[i] @ solution.weights[0] + solution.offset[0] - problem.y[i]
        assert float(residual[i]) == pytest.approx(float(said), abs=1e-8)
    assert (standard.abs() <= residual.abs()).all()


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_the_first_suggestion_shrinks_the_mean_variance_most(seed: int, n: int) -> None:
    problem = random_problem(seed, n)
    E = torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(seed + 1))
    allowed = torch.ones(6, 8, dtype=torch.bool)
    allowed[0] = False
    ((row, column),) = problem.where_next(E, allowed, 1)
    seen = E[:, ::2, ::2].double().flatten(1)

    def mean_variance(extra: torch.Tensor) -> float:
        M = torch.cat([problem.M, extra[None].double()])
        covariance = torch.linalg.inv(M.T @ M + problem.penalty)
        return float((seen * (covariance @ seen)).sum(0).mean())

    after = {(r, c): mean_variance(E[:, r, c]) for r in range(2, 6, 2) for c in range(0, 8, 2)}
    assert after[row, column] <= min(after.values()) * (1 + 1e-9)


def test_nothing_is_suggested_where_nothing_may_be() -> None:
    E = torch.randn(5, 6, 8)
    assert random_problem(0, 3).where_next(E, torch.zeros(6, 8, dtype=torch.bool), 3) == []


def test_a_wrong_number_is_found_and_its_neighbours_are_not_blamed(room, client) -> None:
    session = client.app.state.server.sessions.get(room["id"])
    columns = {k: np.array([a[k] for a in room["anchors"]]) for k in ("u", "v", "depth_m")}
    clean = check_anchors(session.relative, Anchors(**columns))
    assert clean["suspects"] == []
    for wrong, factor in ((2, 2.0), (3, 10.0), (4, 2.0), (5, 0.5)):
        depth_m = columns["depth_m"].copy()
        depth_m[wrong] *= factor
        found = check_anchors(session.relative, Anchors(columns["u"], columns["v"], depth_m))
        assert found["suspects"] == [wrong]
        assert found["others_m"][wrong] == pytest.approx(columns["depth_m"][wrong], rel=0.15)
    assert len(clean["suggestions"]) == 3
    for spot in clean["suggestions"]:
        distance = np.hypot(columns["u"] - spot["u"], columns["v"] - spot["v"]).min()
        assert distance > 40  # not where one has measured


def test_few_anchors_blame_nobody(session) -> None:
    anchors = some_anchors(session, 3)
    spoiled = Anchors(anchors.u, anchors.v, anchors.depth_m * [1, 1, 20])
    told = check_anchors(session.relative, spoiled)
    assert told["suspects"] == []
    assert None not in told["others_m"]
    assert check_anchors(session.relative, anchors[:1])["others_m"] == [None]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "JSON object"),
        ({}, "JSON object"),
        ({"anchors": [{"u": 1, "v": 2}]}, "anchor #0: depth_m"),
        ({"anchors": [{"u": True, "v": 2, "depth_m": 1}]}, "anchor #0: u"),
        ({"anchors": [3]}, "anchor #0: u"),
        ({"anchors": [{"u": 1, "v": 2, "depth_m": -1}]}, "above zero"),
        ({"anchors": [], "method": "magic"}, "no method 'magic'"),
        ({"anchors": [], "method": ["basis"]}, "no method"),
        ({"anchors": [{}] * 5001}, "at most 5000"),
    ],
)
def test_bad_edits_get_a_sentence(body: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_edit(body, LIMITS)


def test_every_method_may_be_asked_for_by_name_only() -> None:
    anchors = [{"u": 1, "v": 2.5, "depth_m": 3}]
    for method in METHODS:
        edit = parse_edit({"anchors": anchors, "method": method, "generator": "/etc"}, LIMITS)
        assert edit.method == method
        assert edit.anchors.v.tolist() == [2.5]
