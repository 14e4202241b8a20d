import numpy as np
import pytest
from PIL import Image

from scalefield.datasets import open_dataset
from scalefield.datasets.kitti import read_calibration
from scalefield.errors import InputError
from scalefield.geometry.camera import remove_see_through
from scalefield.geometry.point_clouds import read_points
from scalefield.io import read_depth_png

DRIVE = "2011_09_26_drive_0009_sync"
CAM_TO_CAM = """calib_time: 09-Jan-2012 13:57:47
R_rect_00: 9.999239e-01 9.837760e-03 -7.445048e-03 -9.869795e-03 9.999421e-01 -4.278459e-03 \
7.402527e-03 4.351614e-03 9.999631e-01
P_rect_02: 20 0 8 1.2 0 20 6 0.1 0 0 1 0.003
"""
VELO_TO_CAM = """calib_time: 15-Mar-2012 11:37:16
R: 7.533745e-03 -9.999714e-01 -6.166020e-04 1.480249e-02 7.280733e-04 -9.998902e-01 \
9.998621e-01 7.523790e-03 1.480755e-02
T: -4.069766e-03 -7.631618e-02 -2.717806e-01
"""


@pytest.fixture
def root(tmp_path):
    """A KITTI of one drive with two tiny frames, calibrated like the real one."""
    date = tmp_path / "2011_09_26"
    for folder in ("image_02/data", "velodyne_points/data"):
        (date / DRIVE / folder).mkdir(parents=True)
    (date / "calib_cam_to_cam.txt").write_text(CAM_TO_CAM)
    (date / "calib_velo_to_cam.txt").write_text(VELO_TO_CAM)
    rng = np.random.default_rng(0)
    for number in ("0000000000", "0000000007"):
        pixels = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(date / DRIVE / "image_02" / "data" / f"{number}.png")
        points = rng.uniform([-30, -10, -3, 0], [60, 10, 2, 1], (400, 4)).astype("<f4")
        points.tofile(date / DRIVE / "velodyne_points" / "data" / f"{number}.bin")
    return tmp_path


def homogeneous(text: str, key: str) -> np.ndarray:
    """A calibration entry as a 4×4 matrix."""
    values = next(line.split(":")[1] for line in text.splitlines() if line.startswith(f"{key}:"))
    numbers = [float(x) for x in values.split()]
    matrix = np.eye(4)
    if key == "T":
        matrix[:3, 3] = numbers
    elif len(numbers) == 9:
        matrix[:3, :3] = np.reshape(numbers, (3, 3))
    else:
        matrix[:3, :] = np.reshape(numbers, (3, 4))
    return matrix


def reference_depth(points, cam_to_cam: str, velo_to_cam: str, shape) -> np.ndarray:
    """One return after the other through each coordinate frame, as pykitti composes them."""
    rigid = homogeneous(velo_to_cam, "T") @ homogeneous(velo_to_cam, "R")
    rectify, projection = homogeneous(cam_to_cam, "R_rect_00"), homogeneous(cam_to_cam, "P_rect_02")
    depth = np.full(shape, np.nan)
    for x, y, z in points:
        camera = rectify @ (rigid @ np.array([x, y, z, 1.0]))
        u, v, w, _ = projection @ camera
        if w <= 0:
            continue
        column, row = int(np.floor(u / w + 0.5)), int(np.floor(v / w + 0.5))
        if 0 <= column < shape[1] and 0 <= row < shape[0] and not depth[row, column] <= w:
            depth[row, column] = w
    return depth


def reference_see_through(depth: np.ndarray) -> np.ndarray:
    kept = depth.copy()
    for row, column in np.argwhere(np.isfinite(depth)):
        window = depth[max(row - 4, 0) : row + 5, max(column - 2, 0) : column + 3]
        if depth[row, column] > 1.15 * np.nanmin(window):
            kept[row, column] = np.nan
    return kept


def test_open_dataset_frame_equals_the_slow_reference(root) -> None:
    dataset = open_dataset("kitti", root)
    assert dataset.names("all") == [f"{DRIVE}/0000000000", f"{DRIVE}/0000000007"]
    for name in dataset.names("all"):
        frame = dataset.load(name)
        points = read_points(
            root / "2011_09_26" / DRIVE / "velodyne_points/data" / f"{name[-10:]}.bin"
        )
        depth = reference_depth(points, CAM_TO_CAM, VELO_TO_CAM, (12, 16))
        expected = reference_see_through(depth)
        assert 5 < np.isfinite(expected).sum() < np.isfinite(depth).sum()
        np.testing.assert_allclose(frame.depth_m, expected, rtol=1e-6)
        assert frame.intrinsics == (20, 20, 8, 6)
        assert (frame.group, frame.scene) == ("City", DRIVE)
        assert not frame.mask[~np.isfinite(frame.depth_m)].any()


def test_remove_see_through_see_through_returns_are_removed_and_slopes_kept() -> None:
    depth = np.full((20, 20), np.nan)
    depth[::2, ::2] = 10 + 0.1 * np.arange(10)[:, None]  # a road: nearer at the top, gently
    depth[9, 9] = 30.0  # seen between the near returns
    kept = remove_see_through(depth)
    assert np.isnan(kept[9, 9])
    depth[9, 9] = np.nan
    np.testing.assert_array_equal(kept, depth)


def test_read_points_native_frames_project_as_pykitti_composes_them(shared_data) -> None:
    date = shared_data / "native" / "kitti_raw" / "2011_09_26"
    texts = [(date / f"calib_{n}.txt").read_text() for n in ("cam_to_cam", "velo_to_cam")]
    points = read_points(date / DRIVE / "velodyne_points" / "data" / "0000000020.bin")
    # pykitti's T_cam0_velo and P_rect_20.
    t_cam0_velo = homogeneous(texts[0], "R_rect_00") @ (
        homogeneous(texts[1], "T") @ homogeneous(texts[1], "R")
    )
    image = (
        homogeneous(texts[0], "P_rect_02")[:3] @ t_cam0_velo @ np.c_[points, np.ones(len(points))].T
    )
    u, v, z = read_calibration(date).project(points)
    np.testing.assert_allclose(z, image[2], rtol=1e-12, atol=1e-12)
    front = z > 0.1
    np.testing.assert_allclose(u[front], (image[0] / image[2])[front], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(v[front], (image[1] / image[2])[front], rtol=1e-9, atol=1e-9)


def test_open_dataset_native_frames_equal_their_extracted_depth_maps(shared_data) -> None:
    dataset = open_dataset("kitti", shared_data / "native" / "kitti_raw")
    folder = shared_data / "data" / "kitti" / "raw_2011_09_26_drive_0009" / "depth"
    for name in dataset.names("all"):
        frame = dataset.load(name)
        extracted = read_depth_png(folder / f"{name[-10:]}.png", 256.0)
        known = np.where(frame.mask, frame.depth_m, np.nan)
        both = np.isfinite(known) & np.isfinite(extracted)
        # The files hold whole 256ths of a metre, and their see-through margin is a little wider.
        np.testing.assert_allclose(known[both], extracted[both], atol=1 / 512 + 1e-6)
        assert both.sum() == np.isfinite(known).sum() > 0.995 * np.isfinite(extracted).sum()


def test_open_dataset_damaged_files_are_named(root) -> None:
    dataset = open_dataset("kitti", root)
    scan = root / "2011_09_26" / DRIVE / "velodyne_points" / "data" / "0000000007.bin"
    scan.write_bytes(b"123")
    with pytest.raises(
        InputError, match=r"0000000007\.bin: 3 bytes are not a whole number of points"
    ):
        dataset.load(f"{DRIVE}/0000000007")
    scan.unlink()
    with pytest.raises(InputError, match=r"0000000007\.bin: no such file"):
        dataset.load(f"{DRIVE}/0000000007")
    assert f"{DRIVE}/0000000007" in dataset.names("all")  # still listed: it is counted, not dropped
    calibration = root / "2011_09_26" / "calib_cam_to_cam.txt"
    calibration.write_text("R_rect_00: 1 0 0\n")
    with pytest.raises(InputError, match="has no line P_rect_02"):
        dataset.load(f"{DRIVE}/0000000000")
    calibration.write_text("P_rect_02: 1 0 0\n")
    with pytest.raises(InputError, match="P_rect_02 must be 12 numbers"):
        dataset.load(f"{DRIVE}/0000000000")
    calibration.write_text("R_rect_00: 1 0 0 0 1 0 0 0 1\nP_rect_02: 1e-320 0 6 7 0 9 5 0 0 0 1 0")
    with pytest.raises(InputError, match="its values overflow"):
        dataset.load(f"{DRIVE}/0000000000")
    with pytest.raises(InputError, match="no KITTI drive found"):
        open_dataset("kitti", root / "2011_09_26").names("all")
