import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import KERNEL, all_pixels, fit_pixels, image_inputs
from scalefield.field.cuda import TILE_CANDIDATES
from scalefield.field.explain import parts
from scalefield.field.lattice import Lattice, cell_weights

CPU = torch.device("cpu")


def random_systems(seed, cells=5, k=4, anchors=9):
    rng = torch.Generator().manual_seed(seed)
    neighbours = torch.stack(
        [torch.randperm(anchors, generator=rng)[:k] for _ in range(4 * cells)]
    ).reshape(cells, 4, k)
    return neighbours, torch.randn(cells, 4, k, 2, generator=rng)


def coefficients(anchors, alpha, n):
    """Coefficients of each of n anchors at each node, by a plain loop."""
    out = torch.zeros(*alpha.shape[:2], n, alpha.shape[3])
    for c in range(alpha.shape[0]):
        for node in range(4):
            index = anchors[c] if anchors.ndim == 2 else anchors[c, node]
            for i, values in zip(index.tolist(), alpha[c, node], strict=True):
                out[c, node, i] += values
    return out


@given(seed=st.integers(0, 500), k=st.integers(1, 9), static=st.booleans())
def test_cell_weights_reproduce_the_predictors_of_the_four_nodes(seed, k, static):
    neighbours, alpha = random_systems(seed, k=k)
    before = neighbours.clone(), alpha.clone()
    found = cell_weights(neighbours, alpha, static=static)
    torch.testing.assert_close(
        coefficients(found.anchors, found.alpha, 9), coefficients(neighbours, alpha, 9)
    )
    unions = [set(cell.flatten().tolist()) for cell in neighbours]
    assert found.anchors.shape[1] == (4 * k if static else max(map(len, unions)))
    for anchors, union in zip(found.anchors, unions, strict=True):
        assert set(anchors.tolist()[: len(union)]) == union
    assert torch.equal(neighbours, before[0])
    assert torch.equal(alpha, before[1])


@pytest.mark.parametrize("cell", [1, 4, 8])
@pytest.mark.parametrize("pixels", [1, 100, 10_000])
@pytest.mark.parametrize("shape", [(24, 32), (23, 33), (5, 41), (1, 17), (19, 1), (3, 3)])
def test_windows_have_the_inputs_and_features_of_every_pixel(shape, pixels, cell):
    """Also in images whose sides are no multiples of the cell."""
    image = image_inputs(shape)
    lattice, wanted = Lattice(shape, cell, CPU), all_pixels(image)
    windows, seen = lattice.windows(pixels), torch.zeros(shape)
    for window in windows:
        chosen = (
            torch.arange(math.prod(shape)).reshape(shape)[window.rows, window.columns].flatten()
        )
        found, expected = image.window(window.rows, window.columns), wanted[chosen]
        for ours, theirs in zip(vars(found).values(), vars(expected).values(), strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)
        tiles = lattice.features(KERNEL.features(found), window)
        whole = KERNEL.features(expected)
        assert tiles.z.shape[:2] == (window.cells.numel(), cell**2)
        for ours, theirs in zip(tiles, whole, strict=True):
            values = lattice.image(ours.flatten(2).movedim(2, 0).contiguous(), window)
            values = values.flatten(1).mT.double()
            torch.testing.assert_close(values, theirs.flatten(1), rtol=0, atol=1e-4)
        seen[window.rows, window.columns] += 1
    assert bool((seen == 1).all())
    cells = torch.cat([window.cells.flatten() for window in windows])
    assert cells.sort().values.tolist() == list(range(len(lattice.corners)))


@given(cells=st.lists(st.integers(0, 34), min_size=1, max_size=4), pixels=st.integers(1, 999))
def test_windows_around_cells_cover_their_rectangle(cells, pixels):
    lattice = Lattice((23, 33), 5, CPU)
    windows = lattice.windows(pixels, torch.tensor(cells))
    found = sorted(int(cell) for window in windows for cell in window.cells.flatten())
    rows, columns = [cell // 7 for cell in cells], [cell % 7 for cell in cells]
    inside = [
        7 * i + j
        for i in range(min(rows), max(rows) + 1)
        for j in range(min(columns), max(columns) + 1)
    ]
    assert found == inside


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
def test_stationary_map_equals_a_slow_blend_of_the_nodes_predictors(n, cell, seed):
    image = image_inputs((20, 27), seed=seed)
    fitted = fit_pixels(image, n, seed=seed, neighbours=5, cell_px=(cell, cell))
    found = fitted.map_windows(fitted.blended(fitted.systems(), linear=False))[0]
    wanted = blended_slowly(fitted).float()
    # An anchor's own pixel lies at the cusp of the exponential term, where float32 rounds a
    # distance of 0 to the root of its unit; α is up to some tens.
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
    assert float((found - wanted).abs().mean()) < 2e-5
    names = [f"{term.family} {j}" for j, term in enumerate(KERNEL.terms, start=1)]
    terms = [parts(fitted)[name] for name in names]
    torch.testing.assert_close(sum(terms), found, rtol=0, atol=1e-5)


def test_stationary_map_of_static_shapes_is_the_same():
    """But for nodes with equally near anchors, of which either may be a neighbour."""
    fitted = fit_pixels(image_inputs((40, 50)), TILE_CANDIDATES)
    static = dataclasses.replace(fitted, static=True)
    difference = (static.render().mean - fitted.render().mean).abs()
    assert float(difference.median()) < 1e-6
    assert float(difference.max()) < 0.02


def test_stationary_map_in_several_chunks_and_threads_equals_one(monkeypatch):
    """Each thread evaluates some of the cells."""
    fitted = fit_pixels(image_inputs((61, 50)), 200)
    whole = fitted.render().mean
    monkeypatch.setattr("scalefield.field.posterior.CHUNK_PIXELS", 1)
    torch.testing.assert_close(fitted.render().mean, whole, rtol=0, atol=1e-4)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        torch.testing.assert_close(fitted.render().mean, whole, rtol=0, atol=1e-4)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
