import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.field.cuda import TILE_CANDIDATES, nearest_in_tiles
from scalefield.field.lattice import Lattice, nearest

CPU = torch.device("cpu")
shapes = st.tuples(st.integers(1, 40), st.integers(1, 40))
cells = st.integers(1, 12)


@given(shape=shapes, cell=cells)
def test_nodes_surround_every_pixel_and_belong_to_pixels_of_the_image(shape, cell):
    lattice = Lattice(shape, cell, CPU)
    uv = lattice.node_uv
    assert len(uv) == lattice.nodes[0] * lattice.nodes[1]
    assert uv.amin(dim=0).tolist() == [-0.5, -0.5]
    beyond = uv.amax(dim=0) - torch.tensor([shape[1], shape[0]]) + 0.5
    assert bool(((beyond >= 0) & (beyond < cell)).all())
    rows, columns = lattice.node_pixels
    assert bool(((rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])).all())
    inside = (uv[:, 1] < shape[0] - 0.5) & (uv[:, 0] < shape[1] - 0.5)
    near = torch.stack([columns, rows], dim=1)[inside] - uv[inside]
    assert bool((near == 0.5).all())


@given(shape=shapes, cell=cells)
def test_interpolation_between_nodes_reproduces_planes(shape, cell):
    """Bilinear weights of a cell's corners sum to one and are linear in the position."""
    lattice = Lattice(shape, cell, CPU)
    torch.testing.assert_close(lattice.blending.sum(dim=0), torch.ones(cell * cell))
    u, v = lattice.node_uv.unbind(dim=1)
    found = lattice.interpolate(3 + 0.5 * u - 0.25 * v)
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    wanted = torch.from_numpy(3 + 0.5 * columns - 0.25 * rows).float()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@given(shape=shapes, cell=cells)
def test_corners_are_the_four_nodes_around_each_cell(shape, cell):
    lattice = Lattice(shape, cell, CPU)
    rows, columns = lattice.cells
    uv = lattice.node_uv[lattice.corners]
    assert len(uv) == rows * columns
    top = torch.stack(
        torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), dim=-1
    )
    top = top.reshape(-1, 1, 2) * cell - 0.5
    offset = cell * torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])
    assert torch.equal(uv, (top + offset).double())


@given(shape=shapes, cell=cells)
def test_image_puts_the_pixels_of_cells_in_their_place(shape, cell):
    lattice = Lattice(shape, cell, CPU)
    rows, columns = lattice.cells
    whole = torch.arange(rows * cell * columns * cell).reshape(rows * cell, columns * cell).float()
    tiles = whole.reshape(rows, cell, columns, cell).transpose(1, 2).reshape(-1, cell * cell)
    assert torch.equal(lattice.image(tiles), whole[: shape[0], : shape[1]])


def brute_force(nodes, anchors, mask, k):
    """Distances of the k nearest anchors of the mask; infinity beyond their number."""
    apart = torch.cdist(nodes, anchors).masked_fill(~mask, torch.inf)
    return apart.sort(dim=1).values[:, :k]


def check_nearest(found, nodes, anchors, mask, k):
    index, there = found
    wanted = brute_force(nodes, anchors, mask, min(k, len(anchors)))
    assert index.shape == there.shape == wanted.shape
    assert torch.equal(there.sum(dim=1), wanted.isfinite().sum(dim=1))
    apart = torch.cdist(nodes, anchors).gather(1, index).masked_fill(~there, torch.inf)
    # Of anchors at one distance, any may be chosen.
    torch.testing.assert_close(apart.sort(dim=1).values, wanted, rtol=1e-5, atol=1e-5)
    for row, known in zip(index, there, strict=True):
        assert len(set(row[known].tolist())) == int(known.sum())
        assert bool(mask[row[known]].all())


def scattered(n, seed, share=0.7):
    rng = np.random.default_rng(seed)
    anchors = torch.from_numpy(rng.uniform(0, 40, (n, 2)))
    nodes = Lattice((30, 40), 8, CPU).node_uv
    return nodes, anchors, torch.from_numpy(rng.random(n) < share)


@settings(max_examples=40)
@given(n=st.integers(1, 60), k=st.integers(1, 20), seed=st.integers(0, 500))
def test_nearest_equals_brute_force(n, k, seed):
    nodes, anchors, mask = scattered(n, seed)
    check_nearest(nearest(nodes, anchors, mask, k), nodes, anchors, mask, k)


def test_nearest_without_any_anchor_has_none():
    nodes, anchors, mask = scattered(5, 0, share=0)
    for function in (nearest, nearest_in_tiles):
        index, there = function(nodes, anchors, mask, 3)
        assert index.shape == (len(nodes), 3)
        assert not there.any()


def test_nearest_takes_several_anchors_of_one_pixel():
    nodes = torch.tensor([[0.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    anchors = torch.tensor([[1.0, 1.0]] * 3 + [[8.0, 8.0]], dtype=torch.float64)
    mask = torch.ones(4, dtype=torch.bool)
    for function in (nearest, nearest_in_tiles):
        index, there = function(nodes, anchors, mask, 3)
        assert bool(there.all())
        assert sorted(index[0].tolist()) == [0, 1, 2]
        assert 3 in index[1].tolist()


rows = st.sampled_from([1, 6])  # scattered() has 5 rows of 6 nodes


@settings(max_examples=40)
@given(n=st.integers(1, TILE_CANDIDATES), k=st.integers(1, 20), row=rows, seed=st.integers(0, 500))
def test_nearest_in_tiles_equals_brute_force_with_no_more_anchors_than_candidates(n, k, row, seed):
    nodes, anchors, mask = scattered(n, seed)
    found = nearest_in_tiles(nodes, anchors, mask, min(k, n), row)
    check_nearest(found, nodes, anchors, mask, k)


@settings(max_examples=20)
@given(n=st.integers(TILE_CANDIDATES, 2000), seed=st.integers(0, 500))
def test_nearest_in_tiles_equals_brute_force_for_nodes_in_no_order(n, seed):
    nodes, anchors, mask = scattered(n, seed)
    shuffled = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))]
    found = nearest_in_tiles(shuffled, anchors, mask, 16)
    check_nearest(found, shuffled, anchors, mask, 16)


@pytest.mark.parametrize("anchors_per_cell", [0.5, 1.0, 2.0])
def test_nearest_in_tiles_equals_brute_force_where_candidates_suffice(anchors_per_cell):
    """A disc of 64 anchors has twice the radius of one of 16, so it covers the discs around nodes
    that are up to 1.5 cells from the tile's middle while 16 anchors reach as far as that: up to
    16 / (1.5² π) = 2.3 anchors a cell. Anchors are in a jittered grid; 10 x 39 cells."""
    lattice = Lattice((80, 312), 8, CPU)
    step = 8 / anchors_per_cell**0.5
    v, u = np.mgrid[0:80:step, 0:312:step]
    jitter = np.random.default_rng(0).uniform(0, step / 4, (2, *v.shape))
    anchors = torch.from_numpy(np.stack([u + jitter[0], v + jitter[1]], axis=-1).reshape(-1, 2))
    mask = torch.ones(len(anchors), dtype=torch.bool)
    found = nearest_in_tiles(lattice.node_uv, anchors, mask, 16, lattice.nodes[1])
    apart = torch.cdist(lattice.node_uv, anchors)
    wanted = brute_force(lattice.node_uv, anchors, mask, 16)
    close = (apart.gather(1, found[0]).sort(dim=1).values - wanted).abs().amax(dim=1) < 1e-3
    # At the image's border half of the disc is empty, and 16 anchors reach farther.
    inside = ((lattice.node_uv > 30) & (lattice.node_uv < torch.tensor([280, 50]))).all(dim=1)
    assert bool(close[inside].all())
    assert float(close.double().mean()) > 0.9
    farthest = apart.gather(1, found[0]).amax(dim=1)
    assert bool((farthest < 2 * wanted[:, -1]).all())
