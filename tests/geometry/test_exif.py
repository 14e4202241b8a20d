import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalefield.anchors import Anchors
from scalefield.geometry.exif import Orientation
from scalefield.io import ORIENTATION, exif_orientation, read_image

STORED = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """The same stored pixels under every tag, in formats that keep them exactly."""
    folder = tmp_path_factory.mktemp("tagged")
    for tag in range(10):
        exif = Image.Exif()
        exif[ORIENTATION] = tag
        for suffix in ("png", "tiff"):
            Image.fromarray(STORED).save(folder / f"{tag}.{suffix}", exif=exif)
    Image.fromarray(STORED).save(folder / "none.png")
    return folder


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("tag", range(10))
def test_orientation_maps_of_the_upright_picture_come_back_onto_the_stored_pixels(
    tagged, tag, suffix
):
    path = tagged / f"{tag}.{suffix}"
    upright, orientation = read_image(path)[..., 0], Orientation.of(path)
    np.testing.assert_array_equal(orientation.stored(upright), STORED[..., 0])
    assert orientation.shape((6, 8)) == upright.shape
    assert orientation.shape(upright.shape) == (6, 8)


@given(
    tag=st.integers(1, 8),
    u=st.floats(-0.5, 7.5, exclude_max=True),
    v=st.floats(-0.5, 5.5, exclude_max=True),
)
def test_orientation_upright_moves_anchors_with_their_pixels(tagged, tag, u, v):
    path = tagged / f"{tag}.png"
    upright = read_image(path)
    (row,), (column,) = Anchors([u], [v], [1.0]).pixels((6, 8))
    moved = Orientation.of(path).upright(Anchors([u], [v], [2.0], [0.1]), upright.shape[:2])
    (upright_row,), (upright_column,) = moved.pixels(upright.shape[:2])
    if 0.5 not in (u % 1, v % 1):  # on a border, the neighbour will do
        np.testing.assert_array_equal(upright[upright_row, upright_column], STORED[row, column])
    assert (moved.depth_m[0], moved.sigma_m[0]) == (2.0, 0.1)


def test_exif_orientation_of_an_invalid_tag_is_upright(tagged):
    assert exif_orientation(tagged / "none.png") == 1
    assert [exif_orientation(tagged / f"{tag}.png") for tag in range(10)] == [1, *range(1, 9), 1]
