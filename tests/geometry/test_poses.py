"""Readers of cameras and poses."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from scalefield.errors import InputError
from scalefield.geometry.camera import Camera
from scalefield.geometry.poses import OPENGL, PosedCamera, read_poses

CAMERA = Camera(500.0, 510.0, 319.5, 239.5)
NAMES = ["000.100000", "000.200000", "000.300000"]


@pytest.fixture
def poses() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    matrices = np.tile(np.eye(4), (3, 1, 1))
    matrices[:, :3, :3] = Rotation.random(3, rng).as_matrix()
    matrices[:, :3, 3] = rng.normal(size=(3, 3))
    return list(matrices)


def write_transforms(folder: Path, poses: list[np.ndarray]) -> Path:
    frames = [
        {"file_path": f"images/{name}.png", "transform_matrix": (pose @ OPENGL).tolist()}
        for name, pose in zip(NAMES, poses, strict=True)
    ]
    content = {"w": 640, "h": 480, "fl_x": 500, "fl_y": 510, "cx": 320, "cy": 240}
    path = folder / "transforms.json"
    path.write_text(json.dumps({**content, "frames": frames}))
    return path


def write_tum(folder: Path, poses: list[np.ndarray]) -> Path:
    lines = ["# time tx ty tz qx qy qz qw"]
    for name, pose in zip(NAMES, poses, strict=True):
        numbers = [*pose[:3, 3], *Rotation.from_matrix(pose[:3, :3]).as_quat()]
        lines.append(" ".join(map(repr, map(float, [float(name) + 0.004, *numbers]))))
    path = folder / "groundtruth.txt"
    path.write_text("\n".join([*lines, "99 0 0 0 0 0 0 1"]))
    return path


def write_kitti(folder: Path, poses: list[np.ndarray]) -> Path:
    path = folder / "poses.txt"
    np.savetxt(path, [pose[:3].ravel() for pose in poses])
    return path


def write_scanner(folder: Path, poses: list[np.ndarray]) -> Path:
    K = [[500, 0, 319.5], [0, 510, 239.5], [0, 0, 1]]
    for name, pose in zip(NAMES, poses, strict=True):
        frame = (pose @ OPENGL).ravel().tolist()
        values = {"cameraPoseARFrame": frame, "intrinsics": np.ravel(K).tolist()}
        (folder / f"{name}.json").write_text(json.dumps(values))
    (folder / "info.json").write_text("{}")
    return folder


def write_polycam(folder: Path, poses: list[np.ndarray]) -> Path:
    for name, pose in zip(NAMES, poses, strict=True):
        matrix = pose @ OPENGL
        values = {f"t_{i}{j}": matrix[i, j] for i in range(3) for j in range(4)}
        camera = {"fx": 500, "fy": 510, "cx": 319.5, "cy": 239.5, "width": 640, "height": 480}
        (folder / f"{name}.json").write_text(json.dumps({**values, **camera}))
    return folder


@pytest.mark.parametrize(
    "write", [write_transforms, write_tum, write_kitti, write_scanner, write_polycam]
)
def test_read_poses_every_format_has_the_same_cameras(tmp_path, poses, write):
    found = read_poses(write(tmp_path, poses), NAMES, CAMERA)
    assert len(found) == 3
    for name, pose, each in zip(NAMES, poses, found, strict=True):
        assert name in each.name
        assert each.camera == CAMERA
        np.testing.assert_allclose(each.camera_to_world, pose, atol=1e-9)


@pytest.mark.parametrize("model", ["PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV"])
def test_read_poses_of_colmap_project_points_where_colmap_does(tmp_path, model):
    pycolmap = pytest.importorskip("pycolmap")
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig, options.num_points3D = 2, 3, 50
    options.camera_model_id = getattr(pycolmap.CameraModelId, model)
    options.camera_params = {
        "PINHOLE": [900.0, 910.0, 500.0, 380.0],
        "SIMPLE_RADIAL": [900.0, 500.0, 380.0, 0.03],
        "RADIAL": [900.0, 500.0, 380.0, 0.03, -0.01],
        "OPENCV": [900.0, 910.0, 500.0, 380.0, 0.03, -0.01, 0.002, -0.001],
    }[model]
    scene = pycolmap.synthesize_dataset(options)
    scene.write(str(tmp_path))
    by_name = {image.name: image for image in scene.images.values()}
    found = read_poses(tmp_path)
    assert [each.name for each in found] == sorted(by_name)
    for each in found:
        image = by_name[each.name]
        ids = [p.point3D_id for p in image.points2D if p.has_point3D()]
        points = np.array([scene.points3D[i].xyz for i in ids])
        expected = np.array([image.project_point(point) for point in points])
        turn, centre = each.camera_to_world[:3, :3], each.camera_to_world[:3, 3]
        u, v, _ = each.camera.project((points - centre) @ turn)
        np.testing.assert_allclose(np.stack([u, v], axis=1), expected - 0.5, atol=1e-6)


def test_posed_camera_of_a_smaller_copy_sees_the_same(poses):
    posed = PosedCamera("a", CAMERA, poses[0], (480, 640))
    small = posed.for_shape((240, 320)).camera
    points = np.random.default_rng(1).uniform([-1, -1, 2], [1, 1, 4], (20, 3))
    (u, v, _), (x, y, _) = CAMERA.project(points), small.project(points)
    np.testing.assert_allclose([x, y], [(u + 0.5) / 2 - 0.5, (v + 0.5) / 2 - 0.5])
    with pytest.raises(InputError, match="a is 480×640 and its camera 640×480"):
        posed.for_shape((640, 480))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.json", "{}", "it has no list of frames"),
        ("t.json", '{"frames": [{"file_path": "a"}]}', "frame 0 has no readable camera and pose"),
        ("t.json", '{"frames": []}', "has no pose of an image"),
        ("p.txt", "1 2 3", "8 numbers in a line .TUM. or 12 .KITTI., found 3"),
        ("p.txt", "1 0 0 0 0 1 0 0 0 0 1 0", "has 1 poses and there are 3 images"),
        ("p.txt", "a b c d e f g h", "not numbers"),
        ("p.txt", "0.1 0 0 0 0 0 0 0", "its pose is not a rotation"),
    ],
)
def test_read_poses_refuses_with_a_sentence(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message), np.errstate(invalid="ignore"):
        read_poses(tmp_path / name, NAMES, CAMERA)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither a COLMAP model"):
        read_poses(tmp_path / "empty")
