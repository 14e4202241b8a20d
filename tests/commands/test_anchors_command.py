"""`scalefield anchors`: clouds, depth frames, calibrations, and contradictory flags."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import Anchors, io
from scalefield.cli import main
from scalefield.geometry.camera import Camera, ray_length, unproject

SHAPE = (24, 32)
CAMERA = Camera(30.0, 30.0, 15.5, 11.5)
INTRINSICS = ("--intrinsics", "30", "30", "15.5", "11.5")


@pytest.fixture
def depth_m(tmp_path, monkeypatch) -> np.ndarray:
    """A slanted wall with holes, its photograph, cloud and frames in the current folder."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.zeros((*SHAPE, 3), np.uint8)).save("photo.png")
    depth_m = 2 + np.linspace(0, 1, 32) * np.ones((24, 1))
    depth_m[3:9, 4:20] = np.nan
    np.save("cloud.npy", unproject(depth_m, CAMERA)[np.isfinite(depth_m)])
    io.write_depth_png("frame.png", depth_m, 1000.0)
    np.save("ray.npy", depth_m * ray_length(SHAPE, CAMERA))
    return depth_m


def run(*words: str) -> int:
    return main(["anchors", "photo.png", "--out", "anchors.npz", *words])


def as_map() -> np.ndarray:
    anchors = Anchors.read("anchors.npz")
    depth_m = np.full(SHAPE, np.nan)
    depth_m[anchors.pixels(SHAPE)] = anchors.depth_m
    return depth_m


def test_anchors_command_of_clouds_and_frames_gives_the_same_anchors(depth_m, capsys):
    assert run("--points", "cloud.npy", *INTRINSICS) == 0
    np.testing.assert_allclose(as_map(), depth_m)
    assert "672 anchors, 2.00 … 3.00 m" in capsys.readouterr().out
    assert run("--depth", "frame.png") == 0
    np.testing.assert_allclose(as_map(), depth_m, atol=6e-4)
    assert run("--depth", "ray.npy", "--ray", *INTRINSICS) == 0
    np.testing.assert_allclose(as_map(), depth_m)


def test_anchors_command_takes_extrinsics_or_pose(depth_m):
    motion = np.eye(4)
    motion[:3, 3] = 0.3, -0.2, 0.5
    np.save("moved.npy", np.load("cloud.npy") - motion[:3, 3])
    np.savetxt("extrinsics.txt", motion)
    np.savetxt("pose.txt", np.linalg.inv(motion))
    for flag in ("extrinsics", "pose"):
        assert run("--points", "moved.npy", *INTRINSICS, f"--{flag}", f"{flag}.txt") == 0
        np.testing.assert_allclose(as_map(), depth_m, atol=1e-9)


def test_anchors_command_takes_a_depth_camera_beside_the_photographs(depth_m):
    Path("beside.txt").write_text("1 0 0 0.1  0 1 0 0  0 0 1 0")
    depth_intrinsics = ("--depth-intrinsics", "30", "30", "15.5", "11.5")
    words = ("--depth", "frame.png", *INTRINSICS, *depth_intrinsics, "--extrinsics", "beside.txt")
    assert run(*words) == 0
    seen = as_map()
    for row, column in np.argwhere(np.isfinite(seen))[::37]:
        x = (column - 15.5) / 30 * seen[row, column] - 0.1
        source = int(np.floor(30 * x / seen[row, column] + 15.5 + 0.5))
        near = depth_m[row, max(source - 1, 0) : source + 2]
        assert np.nanmin(np.abs(near - seen[row, column])) < 1e-3


def test_anchors_command_drops_pixels_at_depth_edges(depth_m):
    depth_m[12:20, 5:15] = 1.0
    depth_m[12:20, 15] = 1.6  # mixed: neither the box nor the wall
    io.write_depth_png("frame.png", depth_m, 1000.0)
    assert run("--depth", "frame.png") == 0
    seen = as_map()
    assert np.isnan(seen[12:20, 15]).all()
    inner = np.zeros(SHAPE, bool)
    inner[13:19, 6:14], inner[:3] = True, True
    np.testing.assert_allclose(seen[inner], depth_m[inner], atol=6e-4)
    assert run("--depth", "frame.png", "--keep-edges") == 0
    np.testing.assert_allclose(as_map(), depth_m, atol=6e-4)


def test_anchors_command_limit_spreads_anchors_and_fov_gives_intrinsics(depth_m, capsys):
    fov_deg = str(2 * np.rad2deg(np.arctan(16 / 30)))
    assert run("--points", "cloud.npy", "--fov-deg", fov_deg, "--limit", "20") == 0
    assert "20 of 672 anchors" in capsys.readouterr().out
    anchors = Anchors.read("anchors.npz")
    np.testing.assert_allclose(anchors.depth_m, depth_m[anchors.pixels(SHAPE)])
    assert np.ptp(anchors.u) > 20


def test_anchors_command_kitti_calibrations_of_three_kinds_agree(depth_m):
    p = "30 0 15.5 3.0 0 30 11.5 1.0 0 0 1 0.01"
    tr = "0 -1 0 0.1 0 0 -1 0.2 1 0 0 -0.3"
    Path("object.txt").write_text(f"P2: {p}\nR0_rect: 1 0 0 0 1 0 0 0 1\nTr_velo_to_cam: {tr}\n")
    Path("odometry.txt").write_text(f"P0: 1\nP2: {p}\nTr: {tr}\n")
    Path("day").mkdir()
    Path("day/calib_cam_to_cam.txt").write_text(f"R_rect_00: 1 0 0 0 1 0 0 0 1\nP_rect_02: {p}\n")
    Path("day/calib_velo_to_cam.txt").write_text("R: 0 -1 0 0 0 -1 1 0 0\nT: 0.1 0.2 -0.3\n")
    rotation = np.array([[0, -1, 0], [0, 0, -1], [1, 0, 0]])
    velo = (np.load("cloud.npy") - [0.1, 0.2, -0.3]) @ rotation
    np.c_[velo, np.zeros(len(velo))].astype("<f4").tofile("scan.bin")
    maps = []
    for calibration in ("object.txt", "odometry.txt", "day"):
        assert run("--points", "scan.bin", "--kitti", calibration) == 0
        maps.append(as_map())
    assert np.isfinite(maps[0]).sum() > 400
    np.testing.assert_array_equal(maps[0], maps[1])
    np.testing.assert_array_equal(maps[0], maps[2])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give --points FILE or --depth FILE"),
        (("--points", "cloud.npy"), "give --intrinsics, --fov-deg or --kitti"),
        (("--depth", "ray.npy", "--ray"), "give --intrinsics, --fov-deg or --kitti"),
        (("--points", "cloud.npy", "--kitti", ".", "--fov-deg", "60"), "give it alone"),
        (("--points", "cloud.npy", "--fov-deg", "60", *INTRINSICS), "are alternatives"),
        (("--points", "cloud.npy", *INTRINSICS, "--pose", "a", "--extrinsics", "b"), "inverses"),
        (("--depth", "small.npy"), "is 5×4 and the image 32×24; give --depth-intrinsics"),
        (("--points", "cloud.npy", *INTRINSICS, "--depth-units", "1000"), "--points are in metres"),
        (("--points", "cloud.npy", *INTRINSICS, "--ray"), "--ray applies only to --depth FILE"),
        (("--depth", "holes.npy"), "holes.npy: holds no depth above zero"),
        (("--points", "back.npy", *INTRINSICS), "nothing of back.npy lands in the image of 32×24"),
    ],
)
def test_anchors_command_contradictions_get_a_sentence(depth_m, capsys, words, why):
    np.save("small.npy", np.ones((4, 5)))
    np.save("holes.npy", np.full(depth_m.shape, np.nan))
    np.save("back.npy", -np.load("cloud.npy"))
    assert run(*words) == 2
    assert why in capsys.readouterr().err
    assert not Path("anchors.npz").exists()


def test_anchors_command_native_kitti_equals_pykitti(shared_data, tmp_path):
    pykitti = pytest.importorskip("pykitti")
    root = shared_data / "native" / "kitti_raw"
    day, drive = root / "2011_09_26", "2011_09_26_drive_0009_sync"
    scan = day / drive / "velodyne_points" / "data" / "0000000020.bin"
    photo = day / drive / "image_02" / "data" / "0000000020.png"
    out = tmp_path / "anchors.npz"
    words = ["--points", str(scan), "--kitti", str(day), "--keep-hidden", "--out", str(out)]
    assert main(["anchors", str(photo), *words]) == 0
    anchors = Anchors.read(out)

    raw = pykitti.raw.__new__(pykitti.raw)  # its constructor wants files that the frames lack
    raw.calib_path = str(day)
    raw._load_calib()
    points = np.fromfile(scan, np.float32).reshape(-1, 4)
    points[:, 3] = 1
    u, v, z = raw.calib.P_rect_20 @ raw.calib.T_cam0_velo @ points.T.astype(np.float64)
    front = z > 0
    column, row = (np.floor(c[front] / z[front] + 0.5).astype(int) for c in (u, v))
    shape = io.read_image(photo).shape[:2]
    inside = (row >= 0) & (row < shape[0]) & (column >= 0) & (column < shape[1])
    nearest = np.full(shape, np.inf)
    np.minimum.at(nearest, (row[inside], column[inside]), z[front][inside])
    rows, columns = np.nonzero(np.isfinite(nearest))
    np.testing.assert_array_equal(np.stack(anchors.pixels(shape)), [rows, columns])
    np.testing.assert_allclose(anchors.depth_m, nearest[rows, columns], rtol=1e-9)


def test_anchors_command_one_map_of_several_is_taken_by_name(depth_m, capsys):
    np.savez("maps.npz", near=depth_m, far=depth_m + 1)
    assert run("--depth", "maps.npz", "--depth-key", "far") == 0
    np.testing.assert_allclose(as_map(), depth_m + 1)
    assert run("--depth", "maps.npz") == 2
    assert "holds 2 arrays; choose one of them: far, near" in capsys.readouterr().err
    for words, printed in (
        (("--points", "cloud.npy"), "--depth-key applies only to --depth FILE"),
        (("--depth", "frame.png"), "--depth-key is for .npz and .exr; frame.png holds one map"),
    ):
        assert run(*words, "--depth-key", "far") == 2
        assert printed in capsys.readouterr().err


def test_anchors_command_warns_of_inputs_that_do_not_fit_the_photograph(depth_m, capsys):
    """A picture that EXIF turns, the intrinsics of a larger copy, points of three numbers."""
    exif = Image.Exif()
    exif[io.ORIENTATION] = 6
    Image.fromarray(np.zeros((32, 24, 3), np.uint8)).save("photo.png", exif=exif)
    assert run("--depth", "frame.png") == 0
    assert "maps and intrinsics are those of the upright picture" in capsys.readouterr().err
    Path("cloud.bin").write_bytes(np.load("cloud.npy").astype("<f4").tobytes())
    assert run("--points", "cloud.bin", *INTRINSICS) == 0
    printed = capsys.readouterr().err
    assert re.search(r"fourth of 4 numbers is negative in \d+ % of the points", printed)
    assert run("--points", "cloud.bin", *INTRINSICS, "--bin-columns", "3") == 0
    assert "negative" not in capsys.readouterr().err
    larger = ("--intrinsics", "60", "60", "32", "24")
    assert run("--points", "cloud.npy", *larger, "--keep-hidden") == 0
    printed = capsys.readouterr().err
    assert "centre (32, 24) lies outside the image of 32×24 pixels; are they those of" in printed


def test_anchors_command_names_an_output_without_a_suffix(depth_m, capsys):
    assert main(["anchors", "photo.png", "--depth", "frame.png", "--out", "anchors"]) == 2
    assert "anchors are written as .csv, .npz or .png, not ''" in capsys.readouterr().err
