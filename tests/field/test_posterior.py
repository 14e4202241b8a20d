import dataclasses
from functools import cached_property

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import (
    KERNEL,
    SMOOTH_KERNEL,
    all_pixels,
    exact_of,
    fit_pixels,
    image_inputs,
    observe_pixels,
    random_pixels,
)
from scalefield.field.blocks import LinearPrior
from scalefield.field.config import InferenceConfig
from scalefield.field.explain import parts, smoother_weights
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel
from scalefield.field.lattice import Lattice
from scalefield.field.posterior import fit

SHAPE = (45, 60)


def layouts(n, kind):
    """Rows and columns of n anchors: different pixels, pairs in one pixel, or all in one row."""
    if kind == "collinear":
        return torch.full((n,), 20), torch.arange(n) * 3 + 5
    rows, columns = random_pixels(SHAPE, n, seed=n)
    if kind == "pairs":
        first = torch.arange(n) // 2 * 2
        rows, columns = rows[first], columns[first]
    return rows, columns


def node_variance(fitted):
    """Var[ℓ] at the nodes."""
    return fitted.systems().total_variance(fitted.linear.covariance)


@pytest.mark.parametrize("noise", [0.02, 1e-3])
@pytest.mark.parametrize("kind", ["different", "pairs", "collinear"])
@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_with_few_anchors_every_pixel_has_the_exact_posterior(n, kind, noise):
    """Covariances in float32 against the float64 oracle.

    The exponential term rounds a distance of zero to the root of float32's unit. That moves the
    mean by up to 2·10⁻⁴ at an anchor's own pixel and near pairs of anchors; elsewhere by 10⁻⁵.
    """
    image = image_inputs(SHAPE)
    rows, columns = layouts(n, kind)
    observed = observe_pixels(image, rows, columns, noise=noise)
    fitted = fit(KERNEL, image, observed, InferenceConfig())
    exact = exact_of(fitted)
    difference = (fitted.render().mean.double().flatten() - exact.mean(all_pixels(image))).abs()
    difference = difference.reshape(SHAPE)
    assert float(difference.max()) < 3e-4
    difference[rows, columns] = 0
    assert float(difference.max()) < (2e-4 if kind == "pairs" else 1e-5)
    at_nodes = image.pixels(*fitted.lattice.node_pixels)
    std = exact.variance(at_nodes).sqrt()
    torch.testing.assert_close(node_variance(fitted).sqrt(), std, rtol=0, atol=2e-4)
    mean, variance = fitted.predict(*fitted.lattice.node_pixels)
    torch.testing.assert_close(mean, exact.mean(at_nodes), rtol=0, atol=2e-4)
    torch.testing.assert_close(variance.sqrt(), std, rtol=0, atol=2e-4)
    mean, _ = fitted.predict(rows, columns)
    torch.testing.assert_close(mean, exact.mean(observed.inputs), rtol=0, atol=3e-4)


@settings(max_examples=10)
@given(
    n=st.integers(1, 12),
    seed=st.integers(0, 500),
    shape=st.tuples(st.integers(1, 30), st.integers(1, 40)).filter(lambda s: s[0] * s[1] > 16),
)
def test_with_few_anchors_images_of_every_shape_have_the_exact_mean(n, seed, shape):
    image = image_inputs(shape, seed=seed)
    fitted = fit_pixels(image, n, seed=seed)
    wanted = exact_of(fitted).mean(all_pixels(image)).reshape(shape)
    torch.testing.assert_close(fitted.render().mean.double(), wanted, rtol=0, atol=5e-4)


def test_more_neighbours_come_closer_to_the_exact_posterior():
    """Beyond the nearest anchors the others add little: they are screened off.

    With 16 of 300 neighbours the mean is within 5 % of the posterior's standard deviation; what is
    left with 64 comes from solving at nodes 8 pixels apart and blending."""
    image = image_inputs((96, 128), box=False)
    inputs = all_pixels(image)
    errors = []
    for neighbours in (2, 4, 8, 16, 64):
        fitted = fit_pixels(image, 300, neighbours=neighbours, block_size=300)
        exact = exact_of(fitted)
        apart = fitted.render().mean.double().flatten() - exact.mean(inputs)
        errors.append(float((apart / exact.variance(inputs).sqrt()).square().mean().sqrt()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[3] < 0.05
    assert errors[4] < 0.03


def test_std_of_many_anchors_is_that_of_the_exact_posterior_at_the_nodes():
    """Fewer anchors cannot know more: a local solve has no smaller variance than the exact one
    (but for rounding), and with 12 of 300 anchors hardly a larger one."""
    image = image_inputs((96, 128))
    fitted = fit_pixels(image, 300, block_size=300)
    at_nodes = image.pixels(*fitted.lattice.node_pixels)
    ratio = node_variance(fitted).sqrt() / exact_of(fitted).variance(at_nodes).sqrt()
    assert float(ratio.min()) > 0.99
    assert float(ratio.median()) < 1.02
    assert float(ratio.max()) < 1.2


class OneNode(Lattice):
    """A lattice whose cells take the predictor of their first node instead of a blend."""

    @cached_property
    def blending(self):
        weights = torch.zeros(4, self.cell_px**2)
        weights[0] = 1
        return weights


def largest_steps(values, side):
    """Largest difference of neighbouring pixels across borders of cells, and inside cells."""
    across, inside = [], []
    for dim in (0, 1):
        steps = values.diff(dim=dim).abs()
        border = (torch.arange(steps.shape[dim]) + 1) % side == 0
        across.append(steps.index_select(dim, border.nonzero()[:, 0]).max())
        inside.append(steps.index_select(dim, (~border).nonzero()[:, 0]).max())
    return float(max(across)), float(max(inside))


def test_the_field_is_continuous_across_the_borders_of_cells():
    """3,000 anchors, of which neighbouring nodes share only some. The blend is no steeper at the
    borders of cells than inside them; without it the steps there are five times as large."""
    image = image_inputs((160, 208), SMOOTH_KERNEL, box=False, variation=0.0)
    fitted = fit_pixels(image, 3000, SMOOTH_KERNEL)
    lattice, systems = fitted.lattice, fitted.systems()
    assert lattice.cell_px == 8
    unblended = OneNode(lattice.shape, lattice.cell_px, lattice.device)
    terms = []
    for each in (lattice, unblended):
        other = dataclasses.replace(fitted, lattice=each)
        terms.append(largest_steps(other.map_windows(other.blended(systems, linear=False))[0], 8))
    (across, inside), (unblended, _) = terms
    assert across < 1.2 * inside
    assert unblended > 5 * across


@pytest.mark.parametrize(("n", "tolerance"), [(9, 1e-4), (40, 0.02)], ids=["few", "lattice"])
def test_support_is_the_share_of_the_stationary_variance_that_the_anchors_remove(n, tolerance):
    fitted = fit_pixels(image_inputs(SHAPE), n, neighbours=n, cell_px=(1, 1))
    fitted = dataclasses.replace(fitted, static=n > 9)
    features = KERNEL.features(fitted.observations.inputs)
    pixels = KERNEL.features(all_pixels(fitted.image))
    cross = KERNEL.stationary(features, pixels)
    covariance = KERNEL.stationary(features, features) + torch.diag(fitted.observations.noise**2)
    removed = (cross * torch.linalg.solve(covariance, cross)).sum(dim=0)
    wanted = removed / pixels.amplitude.square().sum(dim=1)
    wanted = (wanted * (1 - fitted.lost(all_pixels(fitted.image)))).reshape(SHAPE)
    difference = (fitted.render().support - wanted).abs()
    assert float(difference.median()) < tolerance


def test_the_parts_sum_to_the_mean():
    image = image_inputs(SHAPE)
    for n in (1, 40, 300):
        fitted = fit_pixels(image, n)
        found = parts(fitted)
        assert list(found) == [
            *("global", "slope", "mean", "plane", "mode 1", "mode 2", "mode 3", "mode 4"),
            *("rbf 1", "exponential 2"),
        ]
        torch.testing.assert_close(sum(found.values()), fitted.render().mean, rtol=0, atol=1e-5)


def test_coefficients_are_those_of_the_linear_map():
    image = image_inputs(SHAPE)
    fitted = fit_pixels(image, 30)
    constant, slope, mean_weight, _, plane, modes = fitted.coefficients().values()
    at = all_pixels(image)
    wanted = constant + slope * at.log_depth + mean_weight * at.mean
    wanted = wanted + at.plane @ plane + at.modes @ modes
    found = fitted.linear_mean(at)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [1, 9, 60])
@pytest.mark.parametrize("blocks", [{}, {"block_size": 10}], ids=["one", "many"])
def test_smoother_weights_equal_finite_differences(n, blocks):
    """∂E[ℓ]/∂yᵢ at a pixel, with the offset held: the mean is linear in y."""
    image = image_inputs(SHAPE)
    fitted = fit_pixels(image, n, **blocks)
    row, column = 20, 31
    at = torch.tensor([row]), torch.tensor([column])
    weights = smoother_weights(fitted, row, column)
    before, _ = fitted.predict(*at)
    for i in range(0, n, 7):
        y = fitted.observations.y.clone()
        y[i] += 0.01
        observed = fitted.observations._replace(y=y)
        moved = fit(
            KERNEL,
            image,
            observed,
            fitted.config,
            prior=LinearPrior.unit(fitted.linear.offset, fitted.linear.H.shape[1]),
        )
        slope = (moved.predict(*at)[0] - before) / 0.01
        assert float(slope) == pytest.approx(float(weights[i]), abs=1e-6)


def mirrored(image):
    maps = image.maps._replace(maps=image.maps.maps.flip(3))
    return ImageInputs(image.mde_depth.flip(1), maps, image.log_depth_median)


def test_a_mirrored_world_has_the_mirrored_field():
    """The lattice of a width that is a multiple of the cell is its own mirror image. Of anchors at
    the same distance from a node, another one may be its last neighbour."""
    image = image_inputs((48, 64))
    rows, columns = random_pixels(image.shape, 100)
    observed = observe_pixels(image, rows, columns)
    other = mirrored(image)
    reflected = observed._replace(inputs=other.pixels(rows, 63 - columns))
    config = InferenceConfig(neighbours=16)
    ours, theirs = fit(KERNEL, image, observed, config), fit(KERNEL, other, reflected, config)
    torch.testing.assert_close(theirs.render().mean.flip(1), ours.render().mean, rtol=0, atol=2e-3)
    assert float((theirs.render().mean.flip(1) - ours.render().mean).abs().mean()) < 1e-4


@settings(max_examples=10)
@given(n=st.integers(13, 200), padding=st.integers(1, 300), seed=st.integers(0, 100))
def test_padding_does_not_change_the_field(n, padding, seed):
    """Up to the division into blocks and cells, which follows the number of rows. No more rows than
    `neighbours`, 12, are rendered at every pixel, without the lattice."""
    image = image_inputs(SHAPE)
    rows, columns = random_pixels(SHAPE, n + padding, seed)
    observed = observe_pixels(image, rows, columns, seed=seed)
    mask = torch.arange(n + padding) < n
    config = InferenceConfig(block_size=600, cell_px=(8, 8), max_cell_spacing=1e9)
    padded = fit(KERNEL, image, observed._replace(mask=mask), config)
    inputs, y, noise, _ = observed
    short = type(observed)(inputs[:n], y[:n], noise[:n], mask[:n])
    alone = fit(KERNEL, image, short, config)
    torch.testing.assert_close(padded.render().mean, alone.render().mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(padded.render().std, alone.render().std, rtol=1e-3, atol=1e-4)


def test_without_any_observation_the_field_is_the_prior():
    image = image_inputs(SHAPE)
    observed = observe_pixels(image, torch.tensor([3]), torch.tensor([4]))
    nothing = observed._replace(mask=torch.zeros(1, dtype=torch.bool))
    fitted = fit(KERNEL, image, nothing, InferenceConfig())
    mean = all_pixels(image).mean.reshape(SHAPE).float()
    torch.testing.assert_close(fitted.render().mean, mean, rtol=0, atol=1e-6)
    prior = KERNEL.variance(image.pixels(*fitted.lattice.node_pixels))
    torch.testing.assert_close(node_variance(fitted), prior)


def test_a_kernel_without_stationary_terms_is_bayesian_linear_regression():
    linear = Kernel(1.0, 0.5, (), 0.1, slope_std=0.2)
    image = image_inputs(SHAPE, linear)
    fitted = fit_pixels(image, 30, linear)
    wanted = exact_of(fitted).mean(all_pixels(image)).reshape(SHAPE)
    torch.testing.assert_close(fitted.render().mean.double(), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(sum(parts(fitted).values()), fitted.render().mean, rtol=0, atol=1e-5)


def test_cells_follow_the_spacing_of_anchors_and_the_size_of_the_image():
    config = InferenceConfig()

    def cell_px(shape, n):
        return Lattice.of(shape, n, config, torch.device("cpu")).cell_px

    assert cell_px((480, 640), 20_000) == 8
    assert cell_px((480, 640), 100) == 16
    assert cell_px((480, 640), 0) == 16
    assert cell_px((3000, 4000), 20_000) == 25
    assert [cell_px((48, 64), n) for n in (50, 500, 1000, 10**6)] == [8, 4, 4, 1]
    for shape in ((375, 1242), (1080, 1920), (4000, 3000)):
        for n in (1, 1000, 20_000):
            assert max(shape) / cell_px(shape, n) <= config.max_cells


@pytest.mark.parametrize("n", [50, 200, 800, 2400])
def test_dense_anchors_are_all_neighbours_of_some_node(n):
    """Otherwise more anchors would make the field worse: those in the middle of a cell would be
    farther from every corner than its neighbours are."""
    fitted = fit_pixels(image_inputs((60, 80)), n)
    systems = fitted.systems()
    used = systems.neighbours[systems.mask].unique()
    assert len(used) > 0.97 * n


def test_sizes_of_cells_hardly_change_the_field():
    """8 or 16 pixels between nodes: a fraction of the noise of one anchor."""
    image = image_inputs((96, 128), box=False)
    fine, coarse = (
        fit_pixels(image, 100, cell_px=(side, side)).render().mean.double() for side in (8, 16)
    )
    assert float((fine - coarse).abs().mean()) < 0.2 * KERNEL.noise_std


def test_arguments_are_not_changed_in_place():
    image = image_inputs(SHAPE)
    observed = observe_pixels(image, *random_pixels(SHAPE, 50))
    given = [observed.y, observed.noise, observed.mask, *vars(observed.inputs).values()]
    maps = image.maps.maps.clone()
    before = [each.clone() for each in given]
    fitted = fit(KERNEL, image, observed, InferenceConfig())
    fitted.render(), parts(fitted), smoother_weights(fitted, 1, 2)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))
    assert torch.equal(image.maps.maps, maps)


def test_the_config_reaches_the_solves():
    image = image_inputs(SHAPE)
    fitted = fit_pixels(image, 50, neighbours=3, cell_px=(5, 5))
    assert fitted.systems().neighbours.shape == (10 * 13, 3)
    assert fitted.lattice.cell_px == 5


def test_a_fit_over_another_size_of_the_image_has_its_own_lattice_and_the_same_field():
    """Half the size: pixels of both at the same place have nearly the same position and depth."""
    image, half = image_inputs((96, 128), box=False), image_inputs((48, 64), box=False)
    fitted = fit_pixels(image, 12)
    small = fitted.over(half)
    assert small.lattice.shape == (48, 64)
    mean = small.render().mean
    assert mean.shape == (48, 64)
    around = torch.nn.functional.avg_pool2d(fitted.render().mean[None], 2)[0]
    assert float((mean - around).abs().mean()) < 0.01
