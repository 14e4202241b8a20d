import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import KERNEL, all_pixels, fit_pixels, image_inputs
from scalefield.basis.grids import upsample
from scalefield.field.lattice import Lattice, PixelSampler, cell_weights, dense_terms

CPU = torch.device("cpu")


def random_systems(seed, cells=5, k=4, anchors=9):
    rng = torch.Generator().manual_seed(seed)
    neighbours = torch.stack(
        [torch.randperm(anchors, generator=rng)[:k] for _ in range(4 * cells)]
    ).reshape(cells, 4, k)
    return neighbours, torch.randn(cells, 4, k, generator=rng)


def coefficients(anchors, alpha, n):
    """Coefficient of each of n anchors at each node, by a plain loop."""
    out = torch.zeros(*alpha.shape[:2], n)
    for c in range(alpha.shape[0]):
        for node in range(4):
            index = anchors[c] if anchors.ndim == 2 else anchors[c, node]
            for i, value in zip(index.tolist(), alpha[c, node].tolist(), strict=True):
                out[c, node, i] += value
    return out


@given(seed=st.integers(0, 500), k=st.integers(1, 9))
def test_cell_weights_reproduce_the_predictors_of_the_four_nodes(seed, k):
    neighbours, alpha = random_systems(seed, k=k)
    found = cell_weights(neighbours, alpha)
    torch.testing.assert_close(
        coefficients(found.anchors, found.alpha, 9), coefficients(neighbours, alpha, 9)
    )
    unions = [set(cell.flatten().tolist()) for cell in neighbours]
    assert found.anchors.shape[1] == max(map(len, unions))
    for anchors, union in zip(found.anchors, unions, strict=True):
        assert set(anchors.tolist()[: len(union)]) == union


@given(seed=st.integers(0, 500), size=st.integers(1, 12))
def test_cell_weights_of_a_bounded_union_keep_the_first_anchors(seed, size):
    neighbours, alpha = random_systems(seed)
    before = neighbours.clone(), alpha.clone()
    found = cell_weights(neighbours, alpha, size)
    assert found.anchors.shape == (5, size)
    assert found.alpha.shape == (5, 4, size)
    wanted = coefficients(neighbours, alpha, 9)
    for cell, union in enumerate(neighbours):
        dropped = sorted(set(union.flatten().tolist()))[size:]
        wanted[cell, :, dropped] = 0
    torch.testing.assert_close(coefficients(found.anchors, found.alpha, 9), wanted)
    assert torch.equal(neighbours, before[0])
    assert torch.equal(alpha, before[1])


@pytest.mark.parametrize("cell", [1, 4, 8])
@pytest.mark.parametrize("shape", [(24, 32), (23, 33), (5, 41), (1, 17), (19, 1), (3, 3)])
def test_pixel_sampler_equals_upsampled_maps_and_features_of_every_pixel(shape, cell):
    """Also in images whose sides are no multiples of the cell."""
    image, lattice = image_inputs(shape), Lattice(shape, cell, CPU)
    sampler = PixelSampler(KERNEL, lattice)
    rows, terms = lattice.cells[0], len(KERNEL.terms)
    maps = upsample(image.maps.maps, shape)[0]
    layout = image.maps.layout
    at = layout.kernel_inputs(
        all_pixels(image).position,
        image.log_depth.double().flatten(),
        maps.flatten(1).mT.double(),
    )
    features = KERNEL.features(at)
    for first in range(0, rows, 2):  # in bands of up to two rows of cells
        last = min(first + 2, rows)
        found = sampler.band(image, first, last)
        columns = lattice.cells[1]
        index = torch.arange(first * columns, last * columns)
        for ours, single in zip(found, sampler.cells(image, index), strict=True):
            torch.testing.assert_close(ours, single, rtol=0, atol=1e-4)
        band = slice(first * cell, min(last * cell, shape[0]))

        def whole(values, band=band):  # pixels of the image from those of the cells
            return lattice.image(values.contiguous())[: band.stop - band.start]

        absolute = found.z[:, :, :-2] + found.reference[..., None]
        norm = -0.5 * found.z[:, :, :-2].square().sum(dim=2)
        torch.testing.assert_close(found.z[:, :, -2], norm)
        assert bool((found.z[:, :, -1] == 1).all())
        for j in range(terms):
            z = features.z[j].reshape(*shape, -1)[band].float()
            for d in range(z.shape[-1]):
                torch.testing.assert_close(whole(absolute[:, j, d]), z[..., d], rtol=0, atol=1e-4)
            amplitude = at.amplitude[:, j].reshape(shape)[band].float()
            torch.testing.assert_close(whole(found.amplitude[:, j]), amplitude, rtol=0, atol=1e-5)


def predictors(fitted):
    """The anchors near each node and their coefficients."""
    systems = fitted.systems()
    return systems.neighbours, systems.solved[..., 0]


def blended_slowly(fitted):
    """Stationary part at every pixel: the predictors of its cell's nodes, blended, in float64."""
    lattice, kernel, (neighbours, coefficients) = fitted.lattice, fitted.kernel, predictors(fitted)
    height, width = fitted.image.shape
    anchors = kernel.features(fitted.observations.inputs)
    pixels = kernel.features(all_pixels(fitted.image))
    covariance = kernel.stationary(pixels, anchors)
    at_nodes = torch.zeros(len(neighbours), len(fitted.observations.y), dtype=torch.float64)
    at_nodes.scatter_add_(1, neighbours, coefficients)
    out = torch.zeros(height, width, dtype=torch.float64)
    side, columns = lattice.cell_px, lattice.nodes[1]
    for v in range(height):
        for u in range(width):
            down, across = (v + 0.5) / side, (u + 0.5) / side
            i, j = int(down), int(across)
            a, b = down - i, across - j
            alpha = (
                (1 - a) * (1 - b) * at_nodes[i * columns + j]
                + (1 - a) * b * at_nodes[i * columns + j + 1]
                + a * (1 - b) * at_nodes[(i + 1) * columns + j]
                + a * b * at_nodes[(i + 1) * columns + j + 1]
            )
            out[v, u] = covariance[v * width + u] @ alpha
    return out


@settings(max_examples=8)
@given(n=st.integers(1, 60), cell=st.sampled_from([3, 8]), seed=st.integers(0, 500))
def test_dense_terms_equal_a_slow_blend_of_the_nodes_predictors(n, cell, seed):
    image = image_inputs((20, 27), seed=seed)
    fitted = fit_pixels(image, n, seed=seed, neighbours=5, cell_px=(cell, cell))
    features = KERNEL.features(fitted.observations.inputs)
    found = dense_terms(KERNEL, image, fitted.sampler, predictors(fitted), features)
    wanted = blended_slowly(fitted).float()
    # An anchor's own pixel lies at the cusp of the exponential term, where float32 rounds a
    # distance of 0 to the root of its unit; α is up to some tens.
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-3)
    assert float((found[0] - wanted).abs().mean()) < 2e-5
    separate = dense_terms(
        KERNEL, image, fitted.sampler, predictors(fitted), features, separate=True
    )
    assert len(separate) == 2
    torch.testing.assert_close(separate.sum(dim=0), found[0], rtol=0, atol=1e-5)


def test_dense_terms_do_not_depend_on_a_bound_of_the_union_that_holds_all():
    fitted = fit_pixels(image_inputs((40, 50)), 300)
    bounded = dataclasses.replace(fitted, max_union=64)
    torch.testing.assert_close(bounded.render().mean, fitted.render().mean, rtol=0, atol=1e-6)


def test_dense_terms_in_several_bands_and_threads_equal_one(monkeypatch):
    """Each thread evaluates a band of rows of cells. Its maps are interpolated in another order,
    which moves the mean by up to 3·10⁻⁵ at the cusps of the exponential term."""
    fitted = fit_pixels(image_inputs((61, 50)), 200)
    whole = fitted.render().mean
    monkeypatch.setattr("scalefield.field.lattice.CPU_PIXELS", 1)
    torch.testing.assert_close(fitted.render().mean, whole, rtol=0, atol=1e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        torch.testing.assert_close(fitted.render().mean, whole, rtol=0, atol=1e-4)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
