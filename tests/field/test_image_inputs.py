import numpy as np
import torch

from scalefield.anchors import Anchors
from scalefield.basis.grids import upsample
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field, load_field

SHAPE = (60, 80)


def room(seed=0, shape=SHAPE):
    """A slanted wall with a box in front of it."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    depth = 1 + u / shape[1] * rng.uniform(0.5, 2) + 0.2 * v / shape[0]
    depth[shape[0] // 3 : shape[0] // 2, shape[1] // 3 : shape[1] // 2] *= 0.5
    return MDEOutput(torch.from_numpy(depth).float(), "depth")


def posterior_of(output, n, model=None):
    rng = np.random.default_rng(0)
    v, u = (rng.integers(0, side, n) for side in output.shape)
    model = model or load_field("field")
    scene = model.scene(output)
    anchors = Anchors(u, v, rng.uniform(2, 4, n))
    return Field(robust=False).solve(scene, anchors, model).posterior, scene


def test_a_pixel_is_what_the_upsampled_maps_say_of_it():
    scene = load_field("field").scene(room())
    rows, columns = np.array([0, 17, 59]), np.array([79, 30, 2])
    found = scene.pixels(rows, columns)
    maps = upsample(scene.maps.maps.double(), SHAPE)[0, :, rows, columns].mT
    torch.testing.assert_close(found.modes, maps[:, : scene.maps.layout.modes])
    torch.testing.assert_close(found.mean, maps[:, -1])
    torch.testing.assert_close(found.log_depth.float(), scene.log_depth[rows, columns])
    assert (found.position * scene.unit).round().tolist() == [[79, 0], [30, 17], [2, 59]]


def test_one_thing_of_each_kind_is_kept():
    scene = load_field("field").scene(room())
    first = scene.keep(list, 3, lambda: [3])
    assert scene.keep(list, 3, lambda: [4]) is first
    assert scene.keep(tuple, 3, lambda: (3,)) == (3,)
    assert scene.keep(list, 4, lambda: [4]) == [4]  # the other made room
    assert scene.keep(list, 3, lambda: [5]) == [5]
    assert scene.kept == {list: (3, [5]), tuple: (3, (3,))}
    assert scene.alone().kept == {}
