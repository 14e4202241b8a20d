import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.field.lattice import TILE_CANDIDATES, Lattice, nearest, nearest_in_tiles

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
    uv = lattice.node_uv[lattice.corners(0, rows)]
    assert len(uv) == rows * columns
    top = torch.stack(
        torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), dim=-1
    )
    top = top.reshape(-1, 1, 2) * cell - 0.5
    offset = cell * torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])
    assert torch.equal(uv, (top + offset).double())
    last = rows // 2
    assert torch.equal(lattice.corners(last, rows), lattice.corners(0, rows)[last * columns :])


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


@settings(max_examples=40)
@given(n=st.integers(1, TILE_CANDIDATES), k=st.integers(1, 20), seed=st.integers(0, 500))
def test_nearest_in_tiles_equals_brute_force_with_no_more_anchors_than_candidates(n, k, seed):
    nodes, anchors, mask = scattered(n, seed)
    found = nearest_in_tiles(nodes, anchors, mask, min(k, n))
    check_nearest(found, nodes, anchors, mask, k)


@pytest.mark.parametrize("n", [200, 2000])
def test_nearest_in_tiles_equals_nearest_where_candidates_suffice(n):
    """Spread evenly, the 64 candidates of four successive nodes hold the 16 nearest of each; only
    where a row of nodes ends, and a tile has nodes on both sides of the image, some are missed."""
    nodes, anchors, mask = scattered(n, 1, share=1.0)
    ours, theirs = nearest_in_tiles(nodes, anchors, mask, 16), nearest(nodes, anchors, mask, 16)
    assert bool(ours[1].all())
    assert bool(theirs[1].all())
    equal = torch.tensor(
        [set(a.tolist()) == set(b.tolist()) for a, b in zip(ours[0], theirs[0], strict=True)]
    )
    assert float(equal.double().mean()) > 0.3
