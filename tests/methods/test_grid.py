import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield import Anchors, InputError
from scalefield.alignment.affine import Samples, fit_scale
from scalefield.methods.grid import Grid


def bilinear_field(corners, shape) -> torch.Tensor:
    """Values at the image's four corners, bilinear between them, by its definition."""
    (a, b), (c, d) = corners
    v = torch.linspace(0, 1, shape[0]).double()[:, None]
    u = torch.linspace(0, 1, shape[1]).double()[None, :]
    return a * (1 - v) * (1 - u) + b * (1 - v) * u + c * v * (1 - u) + d * v * u


def scaled_world(mde_output, field, space) -> torch.Tensor:
    world = field * mde_output.in_space(space)
    return world if space == "depth" else 1 / world


scales = st.floats(0.5, 3)


@pytest.mark.parametrize("space", ["depth", "disparity"])
@given(corners=st.tuples(st.tuples(scales, scales), st.tuples(scales, scales)))
def test_grid_bilinear_field_is_reproduced_exactly_without_ridge(relative, measure, space, corners):
    mde_output = relative(kind=space)
    depth_m = scaled_world(mde_output, bilinear_field(corners, mde_output.shape), space)
    anchors = measure(depth_m.numpy(), 25)
    recovery = Grid(ridge=0.0, space=space)(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)
    assert recovery.report.fallbacks == ()


@given(st.tuples(st.tuples(scales, scales), st.tuples(scales, scales)), st.integers(4, 60))
def test_grid_ridge_costs_no_more_than_its_share(relative, measure, corners, n):
    """‖δ − δ_true‖ ≤ r / (r + σ_min²) ‖δ_true‖ with r the ridge and σ_min² of AᵀA."""
    mde_output = relative()
    field = bilinear_field(corners, mde_output.shape)
    samples = Samples.at(mde_output, measure((field * mde_output.prediction).numpy(), n), "depth")
    method = Grid()
    start = fit_scale(samples, "")
    vertices, _ = method.vertex_scales(samples, mde_output.shape, start)
    A = method._bilinear(samples.rows, samples.columns, mde_output.shape) * samples.x[:, None]
    r = method.ridge * np.trace(A.T @ A) / 4
    smallest = np.linalg.eigvalsh(A.T @ A)[0]
    wanted = np.array(corners)
    error = np.linalg.norm(np.maximum(vertices, 0) - wanted)
    assert error <= r / (r + smallest) * np.linalg.norm(wanted - start.scale) + 1e-9


@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (6, 2)])
@pytest.mark.parametrize("space", ["depth", "disparity"])
def test_grid_one_scale_is_reproduced_exactly_with_ridge_and_laplacian(
    relative, measure, shape, space
):
    mde_output = relative(kind=space)
    depth_m = scaled_world(mde_output, torch.tensor(2.5), space)
    method = Grid(rows=shape[0], columns=shape[1], space=space)
    recovery = method(mde_output, measure(depth_m.numpy(), 8))
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)


def test_grid_minimises_its_objective(relative, measure):
    """The vertices beat every small step away from them, ridge and Laplacian included."""
    mde_output = relative()
    rng = np.random.default_rng(0)
    truth = mde_output.prediction.numpy() * rng.uniform(1, 3, mde_output.shape)
    samples = Samples.at(mde_output, measure(truth, 60, sigma_m=True), "depth")
    method = Grid(rows=3, columns=4)
    start = fit_scale(samples, "")
    vertices, fallbacks = method.vertex_scales(samples, mde_output.shape, start)
    assert fallbacks == []

    bilinear = method._bilinear(samples.rows, samples.columns, mde_output.shape)
    np.testing.assert_allclose(bilinear.sum(axis=1), 1)
    A = np.sqrt(samples.weight)[:, None] * bilinear * samples.x[:, None]
    r = np.trace(A.T @ A) / 12

    def objective(scales):
        delta = scales - start.scale
        misfit = samples.weight @ (samples.y - samples.x * (bilinear @ scales.reshape(-1))) ** 2
        edges = np.sum(np.diff(delta, axis=0) ** 2) + np.sum(np.diff(delta, axis=1) ** 2)
        return misfit + r * (method.ridge * np.sum(delta**2) + method.laplacian * edges)

    lowest = objective(vertices)
    for step in rng.standard_normal((50, 3, 4)):
        assert objective(vertices + 1e-3 * step) > lowest


def test_grid_fallbacks(relative):
    mde_output = relative((21, 21))
    few = Grid()(mde_output, Anchors([0, 20, 3], [0, 20, 7], [1.0, 2.0, 3.0]))
    assert [str(f) for f in few.report.fallbacks] == ["scale only: 3 anchors, fewer than 4"]
    ratio = few.depth_m / mde_output.prediction
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))

    # A 5×5 grid has a vertex every 5 pixels; anchors in the top-left cell support four of them.
    corner = Anchors([1, 2, 3, 4], [1, 3, 2, 4], [1.0, 2.0, 1.5, 2.0])
    local = Grid(rows=5, columns=5)(mde_output, corner)
    assert [str(fallback) for fallback in local.report.fallbacks] == [
        "21 of 25 vertices have no anchor near and stay at the median scale"
    ]
    rows, columns = corner.pixels(mde_output.shape)
    median = np.median(corner.depth_m / mde_output.prediction.numpy()[rows, columns])
    torch.testing.assert_close(
        local.depth_m[10:, 10:], (median * mde_output.prediction[10:, 10:]).float()
    )


def test_grid_vertices_below_zero_are_limited(relative):
    mde_output = type(relative())(torch.ones(11, 11).double(), "depth")
    # Scales fall steeply to the right: the line through them is below zero at the edge.
    u = np.array([0, 2, 4, 0, 2, 4])
    anchors = Anchors(u, [0, 0, 0, 10, 10, 10], 10.0 - 2.3 * u)
    recovery = Grid()(mde_output, anchors)
    assert [f.code for f in recovery.report.fallbacks] == ["negative_scales"]
    s0 = float(np.median(anchors.depth_m))
    assert float(recovery.depth_m[0, 10]) == pytest.approx(0.05 * s0, rel=1e-5)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"rows": 1}, "rows"),
        ({"columns": 2.5}, "columns"),
        ({"ridge": -1e-3}, "ridge"),
        ({"laplacian": float("inf")}, "laplacian"),
        ({"space": "log"}, "space"),
    ],
)
def test_grid_wrong_options(options, option):
    with pytest.raises(InputError, match=f"^{option} must be"):
        Grid(**options)
