import json

import numpy as np
import pytest
from PIL import Image

from scalefield.datasets import open_dataset
from scalefield.errors import InputError

OpenEXR = pytest.importorskip("OpenEXR", reason="the extra exr is not installed")


def write_exr(path, channels: dict[str, np.ndarray]) -> None:
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with OpenEXR.File(header, channels) as file:
        file.write(str(path))


@pytest.fixture
def root(tmp_path):
    """One UrbanSyn frame as its authors store it."""
    for folder in ("rgb", "depth", "ss"):
        (tmp_path / folder).mkdir()
    Image.fromarray(np.full((4, 8, 3), 90, np.uint8)).save(tmp_path / "rgb" / "rgb_0001.png")
    labels = np.zeros((4, 8, 4), np.uint8)
    labels[..., 1:] = 99
    labels[0, :, 0] = 10  # sky
    labels[1:, 4:, 0] = 13
    Image.fromarray(labels).save(tmp_path / "ss" / "ss_0001.png")
    depth = np.linspace(1e-5, 1e-3, 32, dtype=np.float32).reshape(4, 8)
    depth[0] = 0.5  # far beyond
    write_exr(tmp_path / "depth" / "depth_0001.exr", {"V": depth})
    camera = {"focalLength_mm": 18.0, "sensorWidth_mm": 36.0, "sensorHeight_mm": 18.0}
    (tmp_path / "camera_metadata.json").write_text(json.dumps({"parameters": [{"Camera": camera}]}))
    return tmp_path


def test_open_dataset_frame_has_metres_labels_sky_and_intrinsics(root) -> None:
    frame = open_dataset("urbansyn", root).load("0001")
    expected = np.linspace(1, 100, 32).reshape(4, 8)
    np.testing.assert_allclose(frame.depth_m[1:], expected[1:], rtol=1e-5)
    assert frame.labels[2].tolist() == [0] * 4 + [13] * 4
    assert not frame.mask[0].any()
    np.testing.assert_array_equal(frame.mask[1:], expected[1:] <= 80)
    assert frame.intrinsics == (4.0, 4.0, 3.5, 1.5)


def test_open_dataset_more_than_one_channel_is_an_error(root) -> None:
    depth = np.full((4, 8), 2e-5, np.float32)
    write_exr(root / "depth" / "depth_0001.exr", {"R": depth, "G": depth, "B": depth})
    with pytest.raises(InputError, match="holds 3 arrays"):
        open_dataset("urbansyn", root).load("0001")


def test_open_dataset_damaged_files_are_named(root) -> None:
    dataset = open_dataset("urbansyn", root)
    (root / "depth" / "depth_0001.exr").write_bytes(b"no EXR")
    with pytest.raises(InputError, match=r"depth_0001\.exr: not a readable EXR"):
        dataset.load("0001")
    (root / "ss" / "ss_0001.png").write_bytes(b"no PNG")
    with pytest.raises(InputError, match=r"ss_0001\.png: not a readable label image"):
        dataset.load("0001")
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(root / "ss" / "ss_0001.png")
    write_exr(root / "depth" / "depth_0001.exr", {"V": np.ones((4, 8), np.float32)})
    with pytest.raises(InputError, match="0001: the label image is 2×2 and the image 8×4"):
        dataset.load("0001")
    (root / "camera_metadata.json").write_text("{}")
    Image.fromarray(np.zeros((4, 8), np.uint8)).save(root / "ss" / "ss_0001.png")
    with pytest.raises(InputError, match="not UrbanSyn's camera metadata"):
        dataset.load("0001")
