import numpy as np
import pytest
import torch

from scalefield.hearing import FEW
from scalefield.lattice import CELLS, Lattice, cells_for, lattice_for
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import load_field
from test_scene import room


def scene_of(output):
    return load_field("field").scene(output)


def test_more_anchors_have_more_nodes_until_pixels_are_cheaper():
    counts = [cells_for(n) for n in (0, 1, FEW, 400, 900, 2000, 10**6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (CELLS[0], CELLS[-1])
    scene = scene_of(room(shape=(400, 480)))
    nodes = [len(lattice_for(scene, n).sights) for n in (10, 400)]
    assert nodes[0] < nodes[1]
    assert scene.kept[Lattice][0] == cells_for(400)  # the others made room
    assert lattice_for(scene, 2000) is None  # as many nodes as pixels, nearly


@pytest.mark.parametrize("kept_pixels", [0, 1 << 19])
@pytest.mark.parametrize("shape", [(120, 170), (1, 300), (70, 2)])
def test_what_is_linear_in_position_and_log_depth_is_interpolated_exactly(
    shape, kept_pixels, monkeypatch
):
    monkeypatch.setattr("scalefield.lattice.KEPT_PIXELS", kept_pixels)
    output = room(shape=shape)
    lattice = Lattice.of(scene_of(output), 20)
    u, v, d = lattice.sights.designs[0][:, :3].T
    values = torch.stack([0.3 + u - 2 * v + 3 * d, d], dim=1)
    found = lattice.spread(values).mT.reshape(2, *shape)
    rows, columns = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    scene = lattice.scene
    place = torch.stack([columns, rows], dim=-1) / scene.unit - scene.middle
    wanted = 0.3 + place[..., 0] - 2 * place[..., 1] + 3 * scene.log_depth
    torch.testing.assert_close(found[1], scene.log_depth, atol=1e-5, rtol=0)
    # Beyond the outermost nodes, which are half a cell from the border, position is theirs.
    edge = [-(-size // (2 * cells)) for size, cells in zip(shape, lattice.cells, strict=True)]
    inner = tuple(slice(e, size - e) for e, size in zip(edge, shape, strict=True))
    torch.testing.assert_close(found[0][inner], wanted[inner].float(), atol=1e-5, rtol=0)


def test_only_nodes_that_a_pixel_needs_are_made():
    rng = np.random.default_rng(0)
    depth = torch.from_numpy(rng.uniform(1, 3, (9, 11))).float()
    lattice = Lattice.of(scene_of(MDEOutput(depth, "depth")), 4)
    rows, columns = lattice.cells
    wanted = set()
    for v in range(9):
        for u in range(11):
            y = min(max((v + 0.5) * rows / 9 - 0.5, 0), rows - 1)
            x = min(max((u + 0.5) * columns / 11 - 0.5, 0), columns - 1)
            z = (float(lattice.scene.log_depth[v, u]) - lattice.nearest) / lattice.spacing
            first = min(int(y), rows - 2), min(int(x), columns - 2), min(int(z), lattice.nodes - 2)
            for step in np.ndindex(2, 2, 2):
                i, j, k = np.add(first, step)
                wanted.add((i * columns + j) * lattice.nodes + k)
    assert set(lattice.needed.nonzero()[:, 0].tolist()) == wanted
    assert len(lattice.sights) == len(wanted)
    around = lattice.kept
    assert set(around.slot.flatten().tolist()) <= set(range(len(wanted) - 1))
    torch.testing.assert_close(around.weight.sum(dim=1), torch.ones(99))
