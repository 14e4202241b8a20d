"""Files for other tools, read back by those tools."""

import json

import numpy as np
import pytest
import trimesh
from PIL import Image
from scipy.spatial import cKDTree

from scalefield import Anchors, io
from scalefield.cli import main
from scalefield.errors import InputError, MissingExtra
from scalefield.export import FORMATS, check_formats, write_formats
from scalefield.export.cloud import PointCloud
from scalefield.export.view import View
from scalefield.geometry.camera import Camera, unproject
from scalefield.geometry.point_clouds import read_points

SHAPE = (24, 32)
CAMERA = Camera(30.0, 30.0, 15.5, 11.5)


@pytest.fixture
def view() -> View:
    """A wall, a nearer box and a hole."""
    rng = np.random.default_rng(0)
    depth_m = np.broadcast_to(2 + np.linspace(0, 1, 32), SHAPE).astype(np.float32).copy()
    depth_m[8:16, 10:20] = 1.2
    depth_m[2, 3] = np.nan
    image = rng.integers(0, 256, (*SHAPE, 3), dtype=np.uint8)
    return View(depth_m, image, Anchors([4], [5], [2.1]), CAMERA)


def test_formats_trimesh_reads_ply_and_glb_with_positions_and_colours(tmp_path, view):
    assert write_formats(tmp_path, ("ply", "glb"), view) == ["cloud.ply", "cloud.glb"]
    # Every pixel on one surface is a point; the box's outline hangs between and is not.
    expected = unproject(view.depth_m, CAMERA)
    inner = np.zeros(SHAPE, bool)
    inner[:6], inner[18:], inner[9:15, 11:19] = True, True, True
    inner &= np.isfinite(view.depth_m)

    ply = trimesh.load(tmp_path / "cloud.ply")
    (glb,) = trimesh.load(tmp_path / "cloud.glb").geometry.values()
    np.testing.assert_array_equal(ply.vertices, read_points(tmp_path / "cloud.ply"))
    flipped = glb.vertices * [1, -1, -1]
    np.testing.assert_allclose(flipped, ply.vertices, atol=1e-6)
    distance, nearest = cKDTree(ply.vertices).query(expected[inner])
    np.testing.assert_allclose(distance, 0, atol=1e-6)
    linear = ((view.image / 255 + 0.055) / 1.055) ** 2.4
    linear = np.where(view.image <= 10, view.image / 255 / 12.92, linear)
    np.testing.assert_array_equal(ply.colors[nearest, :3], view.image[inner])
    np.testing.assert_allclose(glb.colors[nearest, :3] / 255, linear[inner], atol=1.01 / 255)
    assert inner.sum() < len(ply.vertices) < np.isfinite(view.depth_m).sum()
    between = (ply.vertices[:, 2] > 1.25) & (ply.vertices[:, 2] < 1.95)
    assert not between.any()


def test_formats_glb_is_well_formed(tmp_path, view):
    write_formats(tmp_path, ("glb",), view)
    data = (tmp_path / "cloud.glb").read_bytes()
    assert data[:4] == b"glTF"
    assert int.from_bytes(data[8:12], "little") == len(data)
    size = int.from_bytes(data[12:16], "little")
    assert size % 4 == 0
    scene = json.loads(data[20 : 20 + size])
    position, colour = scene["accessors"]
    assert position["count"] == colour["count"]
    body = data[20 + size + 8 :]
    assert scene["buffers"][0]["byteLength"] == len(body) == 24 * position["count"]
    points = np.frombuffer(body, "<f4", 3 * position["count"]).reshape(-1, 3)
    np.testing.assert_array_equal(points.min(axis=0), np.float32(position["min"]))


def test_formats_ply_carries_normals_and_uncertainty(tmp_path, view):
    std_log = np.linspace(0.01, 0.5, view.depth_m.size).reshape(SHAPE).astype(np.float32)
    sure = View(view.depth_m, view.image, view.anchors, CAMERA, std_log)
    write_formats(tmp_path, ("ply",), sure)
    raw = trimesh.load(tmp_path / "cloud.ply").metadata["_ply_raw"]["vertex"]["data"]
    row, column = 20, 5
    (i,) = np.flatnonzero(raw["std_log"] == std_log[row, column])
    normal = np.array([raw[f"n{axis}"][i] for axis in "xyz"])
    assert np.linalg.norm(normal) == pytest.approx(1, abs=1e-5)
    assert normal[2] < 0  # towards the camera
    assert abs(normal[1]) < 1e-5  # the wall is slanted to the side only


def test_formats_exr_pfm_and_normals_read_back(tmp_path, view):
    names = write_formats(tmp_path, ("exr", "pfm", "normals"), view)
    assert names == ["depth.exr", "depth.pfm", "normals.png", "normals.npy"]
    for name in names[:2]:
        np.testing.assert_array_equal(io.read_map(tmp_path / name), view.depth_m)
    with Image.open(tmp_path / "normals.png") as picture:
        colours = np.asarray(picture)
    exact = np.load(tmp_path / "normals.npy")
    assert colours[2, 3].tolist() == [0, 0, 0]
    known = np.isfinite(exact).all(axis=-1)
    back = colours / 255 * 2 - 1
    np.testing.assert_allclose(back[known], exact[known] * [1, -1, -1], atol=1 / 255 + 1e-6)
    assert colours[12, 15, 2] == 255  # the box faces the viewer


def test_formats_opencv_reads_pfm(tmp_path, view):
    cv2 = pytest.importorskip("cv2")
    write_formats(tmp_path, ("pfm",), view)
    np.testing.assert_array_equal(
        cv2.imread(str(tmp_path / "depth.pfm"), cv2.IMREAD_UNCHANGED), view.depth_m
    )


def test_formats_rerun_recording_holds_depth_and_anchors(tmp_path, view):
    pytest.importorskip("rerun")
    write_formats(tmp_path, ("rrd",), view)
    data = (tmp_path / "recording.rrd").read_bytes()
    assert data[:3] == b"RRF"
    for entity in (b"/camera/depth", b"/camera/image", b"/anchors"):
        assert entity in data


def test_write_formats_refuses_before_anything_is_written(tmp_path, view):
    blind = View(view.depth_m, view.image, view.anchors)
    need_camera = [name for name, each in FORMATS.items() if each.needs_camera]
    assert need_camera == ["ply", "glb", "normals", "rrd"]
    for name in need_camera:
        with pytest.raises(InputError, match="its intrinsics or field of view"):
            write_formats(tmp_path, (name,), blind)
    with pytest.raises(InputError, match=f"no format 'obj'; there are {', '.join(FORMATS)}"):
        write_formats(tmp_path, ("pfm", "obj"), view)
    empty = View(np.full(SHAPE, np.nan, np.float32), view.image, view.anchors, CAMERA)
    with pytest.raises(InputError, match="no pixel has a depth"):
        write_formats(tmp_path, ("ply",), empty)
    assert not list(tmp_path.iterdir())


def test_recover_writes_formats_beside_its_own_files(tmp_path, view, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(view.image).save("photo.png")
    np.save("relative.npy", view.depth_m / 2)
    view.anchors.write("anchors.csv")
    words = ["recover", "photo.png", "--anchors", "anchors.csv", "--depth", "relative.npy"]
    words += ["--kind", "depth", "--method", "median", "--out", "out", "--formats", "ply", "pfm"]
    assert main(words) == 2
    assert "--formats ply needs the camera" in capsys.readouterr().err
    assert main([*words, "--fov-deg", "60", "--intrinsics", "1", "1", "1", "1"]) == 2
    assert not (tmp_path / "out").exists()
    assert main([*words, "--intrinsics", "30", "30", "15.5", "11.5"]) == 0
    assert "cloud.ply, depth.pfm" in capsys.readouterr().out
    factor = 2.1 / view.depth_m[5, 4]
    cloud = trimesh.load("out/cloud.ply").vertices
    expected = factor * unproject(view.depth_m, CAMERA)[20, 5]
    assert cKDTree(cloud).query(expected)[0] < 1e-4
    np.testing.assert_allclose(
        io.read_map(tmp_path / "out" / "depth.pfm"), factor * view.depth_m, rtol=1e-5
    )


def test_point_cloud_max_points_thins_evenly_and_keeps_positions(view):
    full, thin = (view.cloud(most) for most in (None, 200))
    assert len(thin.points_m) <= 200 < len(full.points_m)
    depth_m = np.full(SHAPE, 2.0, np.float32)
    every = PointCloud.of(depth_m, CAMERA, view.image, max_points=100)
    expected = unproject(depth_m, CAMERA)[1::3, 1::3].reshape(-1, 3)
    np.testing.assert_allclose(every.points_m, expected, atol=1e-5)
    np.testing.assert_array_equal(every.colours, view.image[1::3, 1::3].reshape(-1, 3))
    with pytest.raises(InputError, match="max_points must be 1 or more, found 0"):
        PointCloud.of(depth_m, CAMERA, view.image, max_points=0)


def test_formats_glb_is_small_unless_points_are_asked_for(tmp_path, view, monkeypatch):
    monkeypatch.setattr("scalefield.export.GLB_POINTS", 100)
    write_formats(tmp_path, ("ply", "glb"), view)
    assert len(trimesh.load(tmp_path / "cloud.ply").vertices) > 500
    (glb,) = trimesh.load(tmp_path / "cloud.glb").geometry.values()
    assert len(glb.vertices) <= 100


@pytest.mark.parametrize(("name", "package"), [("exr", "OpenEXR"), ("rrd", "rerun")])
def test_check_formats_names_the_missing_extra_before_work(monkeypatch, name, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda found: None)
    with pytest.raises(MissingExtra, match=rf"package '{package}'.*scalefield\["):
        check_formats(("pfm", name))


def test_cloud_write_chooses_by_suffix(tmp_path, view):
    cloud = view.cloud()
    for name in ("a.ply", "b.GLB"):
        cloud.write(tmp_path / name)
        loaded = trimesh.load(tmp_path / name)
        (points,) = loaded.geometry.values() if isinstance(loaded, trimesh.Scene) else (loaded,)
        assert len(points.vertices) == len(cloud.points_m)
    assert repr(cloud).startswith(f"PointCloud({len(cloud.points_m)} points, 1.20 … 3.00 m")
    with pytest.raises(InputError, match=r".ply or .glb, not '.obj'"):
        cloud.write(tmp_path / "c.obj")
