from scalefield.hearing import FEW
from scalefield.lattice import CELLS, Lattice, cells_for, lattice_for
from scalefield.methods.field import load_field
from test_scene import room


def test_more_anchors_have_more_nodes_until_pixels_are_cheaper():
    counts = [cells_for(n) for n in (0, 1, FEW, 400, 900, 2000, 10**6)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (CELLS[0], CELLS[-1])
    output = room(shape=(360, 480))
    scene = load_field("field").scene(output)
    nodes = [len(lattice_for(scene, n).sights) for n in (10, 400)]
    assert nodes[0] < nodes[1]
    assert scene.kept[Lattice][0] == cells_for(400)  # the others made room
    assert lattice_for(scene, 2000) is None  # eight pixels to a cell, or fewer
