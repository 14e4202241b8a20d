import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from scalefield.datasets import open_dataset
from scalefield.datasets.sunrgbd import decode
from scalefield.errors import InputError


def encode(millimetres: np.ndarray) -> np.ndarray:
    """The authors' storage: uint16 rotated left by three bits, digit by digit."""
    bits = [format(int(x), "016b") for x in millimetres.ravel()]
    return np.array([int(b[3:] + b[:3], 2) for b in bits], np.uint16).reshape(millimetres.shape)


@pytest.fixture
def root(tmp_path):
    frame = tmp_path / "SUNRGBD" / "xtion" / "sun3ddata" / "home" / "frame_7"
    for folder in ("image", "depth_bfx"):
        (frame / folder).mkdir(parents=True)
    Image.fromarray(np.zeros((2, 4, 3), np.uint8)).save(frame / "image" / "7.jpg")
    depth = np.array([[0, 1234, 7999, 8000], [8001, 65535, 99, 100]])
    Image.fromarray(encode(depth)).save(frame / "depth_bfx" / "7.png")
    (frame / "intrinsics.txt").write_text("500 0 300\n0 501 200\n0 0 1\n")
    return tmp_path


def test_decode_undoes_the_rotation_for_every_value() -> None:
    values = np.arange(65536).reshape(256, 256)
    np.testing.assert_array_equal(decode(encode(values)), values)


def test_open_dataset_takes_another_limit_of_sunrgbd(root) -> None:
    dataset = open_dataset("sunrgbd", root, sunrgbd_max_m=10.0)
    assert dataset.ranges_m == {"sunrgbd": (0.1, 10.0)}
    assert open_dataset("sunrgbd", root).ranges_m == {"sunrgbd": (0.1, 8.0)}
    frame = dataset.load(dataset.names("all")[0])
    assert frame.depth_m[1, 0] == pytest.approx(8.001)
    assert np.isnan(frame.depth_m[1, 1])


def test_open_dataset_frame(root) -> None:
    dataset = open_dataset("sunrgbd", root)
    (name,) = dataset.names("all")
    assert name == "xtion/sun3ddata/home/frame_7"
    frame = dataset.load(name)
    expected = np.array([[np.nan, 1.234, 7.999, 8.0], [np.nan, np.nan, 0.099, 0.1]])
    np.testing.assert_allclose(frame.depth_m, expected, rtol=1e-6)
    assert frame.mask.tolist() == [[False, True, True, True], [False, False, False, True]]
    assert frame.intrinsics == (500, 501, 300, 200)
    assert (frame.group, frame.scene, frame.labels) == ("xtion", "xtion/sun3ddata/home", None)


def test_open_dataset_follows_linked_folders_of_sunrgbd(root, tmp_path_factory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "kv1"
    (root / "SUNRGBD" / "xtion").rename(elsewhere)
    (root / "SUNRGBD" / "xtion").symlink_to(elsewhere)
    (elsewhere / "sun3ddata" / "up").symlink_to(root / "SUNRGBD")  # a loop
    dataset = open_dataset("sunrgbd", root)
    assert dataset.names("all") == ["xtion/sun3ddata/home/frame_7"]
    assert dataset.load("xtion/sun3ddata/home/frame_7").depth_m[0, 1] == pytest.approx(1.234)


def test_open_dataset_labels_come_from_seg_mat(root) -> None:
    folder = root / "SUNRGBD" / "xtion" / "sun3ddata" / "home" / "frame_7"
    labels = np.arange(8, dtype=np.uint16).reshape(2, 4)
    savemat(folder / "seg.mat", {"seglabel": labels})
    dataset = open_dataset("sunrgbd", root / "SUNRGBD")  # the folder itself is accepted too
    np.testing.assert_array_equal(dataset.load(dataset.names("all")[0]).labels, labels)
    savemat(folder / "seg.mat", {"other": labels})
    with pytest.raises(InputError, match="seglabel"):
        dataset.load(dataset.names("all")[0])


def test_open_dataset_damaged_files_are_named(root) -> None:
    dataset = open_dataset("sunrgbd", root)
    (name,) = dataset.names("all")
    folder = root / "SUNRGBD" / name
    (folder / "intrinsics.txt").write_text("1 2 3")
    with pytest.raises(InputError, match=r"intrinsics\.txt: a 3×3 matrix is wanted"):
        dataset.load(name)
    (folder / "depth_bfx" / "7.png").unlink()
    with pytest.raises(InputError, match=r"depth_bfx: one file \*\.png is wanted, found 0"):
        dataset.load(name)


def test_open_dataset_native_frame(shared_data) -> None:
    dataset = open_dataset("sunrgbd", shared_data / "native" / "sunrgbd")
    (name,) = dataset.names("all")
    frame = dataset.load(name)
    path = next((shared_data / "native/sunrgbd/SUNRGBD" / name / "depth_bfx").glob("*.png"))
    stored = np.asarray(Image.open(path)).astype(np.uint32)
    millimetres = (stored // 8) + (stored % 8) * 8192
    np.testing.assert_allclose(frame.depth_m, millimetres / 1000, rtol=1e-6)
    assert frame.image.shape == (427, 561, 3)
    assert frame.intrinsics == (520.532, 520.7444, 277.9258, 215.115)
    assert 1.4 < float(np.median(frame.depth_m)) < 2.6  # an office desk
