import numpy as np
import torch

from field.worlds import image_inputs, room
from scalefield.anchors import Anchors
from scalefield.basis.grids import upsample
from scalefield.field.model import load_field
from scalefield.field.observations import Readings

SHAPE = (60, 80)


def test_inputs_at_pixels_equal_the_upsampled_maps():
    image = image_inputs(SHAPE)
    rows, columns = torch.tensor([0, 17, 59]), torch.tensor([79, 30, 2])
    found = image.pixels(rows, columns)
    maps = upsample(image.maps.maps.double(), SHAPE)[0, :, rows, columns].mT
    torch.testing.assert_close(found.modes, maps[:, : image.maps.layout.modes], rtol=0, atol=1e-6)
    torch.testing.assert_close(found.mean, maps[:, -1], rtol=0, atol=1e-6)
    torch.testing.assert_close(found.log_depth.float(), image.log_depth[rows, columns])
    assert image.pixel_uv(found.position).round().tolist() == [[79, 0], [30, 17], [2, 59]]
    offset_px = torch.tensor([[39.5, -29.5], [-9.5, -12.5], [-37.5, 29.5]], dtype=torch.float64)
    torch.testing.assert_close(found.position * image.unit_px, offset_px)


def test_inputs_at_anchors_are_those_of_the_pixels_that_they_fall_in():
    image = image_inputs(SHAPE)
    anchors = Anchors([78.6, 30.4], [0.2, 16.5], [1.0, 1.0])
    found = image.observe(Readings.of(anchors, image.shape, 0.02)).inputs
    wanted = image.pixels(torch.tensor([0, 17]), torch.tensor([79, 30]))
    for name in vars(found):
        assert torch.equal(getattr(found, name), getattr(wanted, name))


def test_cells_are_the_middle_pixels_of_a_grid():
    image = image_inputs(SHAPE)
    inputs, pixels = image.cells((6, 10))
    assert pixels[0].tolist() == [5, 4]
    assert pixels[-1].tolist() == [55, 76]
    assert len(inputs) == len(pixels) == 60
    assert torch.equal(
        image.pixel_uv(inputs.position).round(), torch.from_numpy(pixels[:, ::-1].copy()).double()
    )
    rows = np.unique(pixels[:, 0])
    assert rows.tolist() == [5, 15, 25, 35, 45, 55]


def test_image_inputs_have_the_shape_and_median_of_the_relative_depth():
    model, (mde_output, _) = load_field("field"), room()
    first = model.image_inputs(mde_output)
    assert first.shape == mde_output.shape
    median = mde_output.mde_depth.double().log().median()
    torch.testing.assert_close(first.log_depth_median.double(), median, rtol=0, atol=0.05)
