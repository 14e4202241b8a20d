"""COLMAP from end to end: rendered views of a known room, a model by COLMAP, recovered depth.

The relative depth is the truth bent by a power, so that what is measured is the way from the
model to the files, and not an estimator.
"""

import dataclasses
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

from program_modules import load_example
from scalefield import Anchors, InputError, MDEOutput
from scalefield.cli import main
from scalefield.commands.colmap import (
    AMBIGUOUS_CODE,
    AMBIGUOUS_ORIENTATION,
    ColmapCommand,
)
from scalefield.export.splatting import write_inverse_depth
from scalefield.geometry.colmap import (
    MODEL_UNIT,
    SIGMA_FLOOR,
    ColmapFrame,
    model_frames,
    read_model,
)
from scalefield.geometry.exif import Orientation
from scalefield.geometry.point_clouds import read_points
from scalefield.io import ORIENTATION, read_image
from scalefield.methods.median import Median
from scalefield.report import Warning

pycolmap = pytest.importorskip("pycolmap")

SHAPE = (240, 320)
FOCAL_PX, RADIAL = 260.0, -0.08
ROOM = np.array([2.0, 1.5, 3.0])
"""Half its width, height and length; the cameras are inside."""
NAMES = [f"left/v{i}.png" for i in range(6)]


@dataclass
class Scene:
    folder: Path
    centres: dict[str, np.ndarray]
    depth_m: dict[str, np.ndarray]

    @property
    def model(self) -> Path:
        return self.folder / "sparse" / "0"

    def scale(self, model) -> float:
        """The model's unit: its cameras' distances over the true ones."""
        there = {image.name: image.projection_center() for image in model.images.values()}
        first, last = NAMES[0], NAMES[-1]
        true = np.linalg.norm(self.centres[first] - self.centres[last])
        return float(np.linalg.norm(there[first] - there[last]) / true)


def render(textures, rays, rotation, centre) -> tuple[np.ndarray, np.ndarray]:
    """The room's inside: image, and depth along the optical axis."""
    towards = np.concatenate([rays, np.ones_like(rays[..., :1])], axis=-1) @ rotation
    with np.errstate(divide="ignore"):
        to_wall = (np.sign(towards) * ROOM - centre) / towards  # of the three walls it may meet
    wall = np.argmin(to_wall, axis=-1)
    depth_m = np.take_along_axis(to_wall, wall[..., None], axis=-1)[..., 0]
    at = 90 * (centre + depth_m[..., None] * towards + ROOM)
    side = 2 * wall + (np.take_along_axis(towards, wall[..., None], axis=-1)[..., 0] > 0)
    image = np.empty((*depth_m.shape, 3))
    for axis in range(3):
        here = wall == axis
        u, v = (at[here, i] for i in range(3) if i != axis)
        for channel in range(3):
            where = [side[here], v, u]
            image[here, channel] = map_coordinates(
                textures[..., channel], where, order=1, mode="grid-wrap"
            )
    return image.astype(np.uint8), depth_m


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    """A COLMAP model that COLMAP made: SIFT, matching, incremental mapping."""
    rng = np.random.default_rng(0)
    noise = [
        s * gaussian_filter(rng.normal(size=(6, 512, 512, 3)), (0, s, s, 0), mode="wrap")
        for s in (1, 3, 9)
    ]
    textures = np.sum(noise, axis=0)
    textures = 255 * (textures - textures.min()) / np.ptp(textures)
    camera = pycolmap.Camera.create_from_model_name(
        1, "SIMPLE_RADIAL", FOCAL_PX, SHAPE[1], SHAPE[0]
    )
    camera.params = [FOCAL_PX, 160, 120, RADIAL]
    v, u = np.indices(SHAPE)
    rays = camera.cam_from_img(np.c_[u.ravel() + 0.5, v.ravel() + 0.5]).reshape(*SHAPE, 2)
    folder = tmp_path_factory.mktemp("scene")
    result = Scene(folder, {}, {})
    for i, name in enumerate(NAMES):
        a = 0.07 * (i - 3)
        rotation = np.array([[np.cos(a), 0, -np.sin(a)], [0, 1, 0], [np.sin(a), 0, np.cos(a)]])
        centre = np.array([0.35 * (i - 3), 0.05 * (i % 2), 0.1 * (i % 3) - 1])
        image, result.depth_m[name] = render(textures, rays, rotation, centre)
        result.centres[name] = centre
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    reconstruct(folder, camera)
    return result


def reconstruct(folder: Path, camera) -> None:
    pycolmap.set_random_seed(0)
    pycolmap.logging.minloglevel = 2
    database, images = folder / "database.db", folder / "images"
    known = pycolmap.ImageReaderOptions(
        camera_model="SIMPLE_RADIAL", camera_params=",".join(map(str, camera.params))
    )
    extraction = pycolmap.FeatureExtractionOptions(num_threads=1)
    matching = pycolmap.FeatureMatchingOptions(num_threads=1)
    mapping = pycolmap.IncrementalPipelineOptions(
        num_threads=1, ba_refine_focal_length=False, ba_refine_extra_params=False
    )
    pycolmap.extract_features(
        database,
        images,
        camera_mode=pycolmap.CameraMode.SINGLE,
        reader_options=known,
        extraction_options=extraction,
        device=pycolmap.Device.cpu,
    )
    pycolmap.match_exhaustive(database, matching_options=matching, device=pycolmap.Device.cpu)
    models = pycolmap.incremental_mapping(database, images, folder / "sparse", options=mapping)
    assert models[0].num_reg_images() == len(NAMES)


def bent(depth_m: np.ndarray) -> MDEOutput:
    return MDEOutput(torch.from_numpy(0.3 * depth_m**1.1).float(), "depth", model="bent truth")


def splatting_reader(folder: Path, stem: str) -> np.ndarray | None:
    """Inverse depth as gaussian-splatting's scene/cameras.py computes it; None if not reliable."""
    with Image.open(folder / "depths" / f"{stem}.png") as image:
        assert image.mode == "I;16"
        values = np.asarray(image).astype(np.float32) / np.float32(2**16)
    params = json.loads((folder / "sparse" / "0" / "depth_params.json").read_text())
    scales = np.array([p["scale"] for p in params.values()])
    median = np.median(scales[scales > 0])
    scale, offset = params[stem]["scale"], params[stem]["offset"]
    if scale < 0.2 * median or scale > 5 * median:
        return None
    return values * scale + offset


def nerfstudio_reader(folder: Path, scale_factor: float) -> dict[str, tuple]:
    """Pose, focal length and depth of every frame as nerfstudio 1.1.5 reads transforms.json.

    Follows Nerfstudio._generate_dataparser_outputs and get_depth_image_from_path with
    orientation_method="none", center_method="none" and auto_scale_poses=False.
    """
    meta = json.loads((folder / "transforms.json").read_text())
    assert meta["camera_model"] in ("OPENCV", "OPENCV_FISHEYE")
    frames = meta["frames"]
    assert sum("depth_file_path" in frame for frame in frames) in (0, len(frames))
    found = {}
    for frame in frames:
        one = {**meta, **frame}
        with Image.open(folder / one["file_path"]) as image:
            assert image.size == (one["w"], one["h"])
        depth = np.load(folder / one["depth_file_path"]).astype(np.float32) * scale_factor
        assert depth.shape == (one["h"], one["w"])
        found[one["file_path"]] = (np.array(one["transform_matrix"]), one["fl_x"], depth)
    return found


@pytest.fixture
def patched(scene, monkeypatch):
    """An estimator that returns the true depth of the image up to a power and a factor."""
    known = {
        read_image(scene.folder / "images" / name).tobytes(): depth_m
        for name, depth_m in scene.depth_m.items()
    }
    use_mde(monkeypatch, lambda image: bent(known[image.tobytes()]))


def use_mde(monkeypatch, mde) -> None:
    import scalefield.inputs  # noqa: F401 - if first imported later, it would keep the patch

    mde.name = "test"
    monkeypatch.setattr("scalefield.mde.load_mde", lambda name, **_: mde)


def tag(source: Path, target: Path, orientation: int, *, sideways: bool = False) -> None:
    """The images with an EXIF orientation, their pixels as they were or turned to the left."""
    for name in NAMES:
        with Image.open(source / name) as image:
            pixels = np.asarray(image)
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rot90(pixels) if sideways else pixels).save(target / name, exif=exif)


def test_model_frames_anchors_have_the_true_depth_within_their_sigma(scene):
    model = read_model(scene.model)
    scale = scene.scale(model)
    frames = model_frames(model)
    assert [frame.name for frame in frames] == NAMES
    for frame in frames:
        assert frame.shape == SHAPE
        assert len(frame.anchors) > 300
        true = scale * scene.depth_m[frame.name][frame.anchors.pixels(SHAPE)]
        error = np.abs(frame.anchors.depth_m / true - 1)
        assert np.median(error) < 0.004
        # Without the floor the sigmas are the triangulation's own, and correct within a factor.
        relative = frame.anchors.sigma_m / frame.anchors.depth_m
        assert (relative >= SIGMA_FLOOR).all()
        sigma = np.sqrt(relative**2 - SIGMA_FLOOR**2)
        assert 0.3 < np.median(error / sigma) < 3
        sure = sigma < np.median(sigma)
        assert np.mean(error[sure]) < np.mean(error[~sure])


def test_model_frames_sigma_falls_with_longer_tracks_and_smaller_errors(scene):
    model = read_model(scene.model)
    before = {f.name: f.anchors for f in model_frames(model)}
    name = NAMES[2]
    image = model.find_image_with_name(name)
    noisy = [p.point3D_id for p in image.points2D if p.has_point3D()][::2]
    for key in noisy:
        model.points3D[key].error = 1.5
    after = {f.name: f.anchors for f in model_frames(model)}[name]
    everywhere = {(u, v): s for u, v, s in zip(after.u, after.v, after.sigma_m, strict=True)}
    old = before[name]
    grown = [
        everywhere[u, v] / s
        for u, v, s in zip(old.u, old.v, old.sigma_m, strict=True)
        if (u, v) in everywhere
    ]
    # Half of the points became uncertain; the others a little, as the model's mean error grew.
    assert np.percentile(grown, 90) > 1.5 * np.percentile(grown, 10)
    strict = model_frames(model, max_error_px=1.0)
    assert sum(len(f.anchors) for f in strict) < sum(map(len, before.values()))
    longer = model_frames(model, min_track=5)
    assert 0 < sum(len(f.anchors) for f in longer) < sum(map(len, before.values()))


def test_read_model_of_text_and_older_files_is_the_same(scene, tmp_path):
    model = read_model(scene.model)
    model.write_text(str(tmp_path))
    expected = model_frames(model)
    shutil.copytree(scene.model, tmp_path / "older")
    for name in ("rigs.bin", "frames.bin"):  # COLMAP before 3.12 has neither
        (tmp_path / "older" / name).unlink()
    for folder in (tmp_path, tmp_path / "older"):
        for ours, theirs in zip(model_frames(read_model(folder)), expected, strict=True):
            assert ours.name == theirs.name
            np.testing.assert_allclose(np.sort(ours.anchors.u), np.sort(theirs.anchors.u))
            np.testing.assert_allclose(
                np.sort(ours.anchors.sigma_m), np.sort(theirs.anchors.sigma_m), rtol=1e-6
            )


def test_colmap_depth_of_every_frame_comes_back_through_the_trainers_files(
    scene, patched, tmp_path, capsys
):
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--out", str(tmp_path)]
    assert main([*words, "--method", "lwlr"]) == 0
    printed = capsys.readouterr()
    assert "6 recovered, 0 with too few points, 0 failed" in printed.out
    assert "--undistort makes pinhole images" in printed.err
    scale = scene.scale(read_model(scene.model))
    for name in NAMES:
        stem = name.removesuffix(".png")
        true = scale * scene.depth_m[name]
        npy = np.load(tmp_path / "depths_npy" / f"{stem}.npy")
        assert npy.dtype == np.float32
        assert np.mean(np.abs(npy / true - 1)) < 0.02
        inverse = splatting_reader(tmp_path, stem)
        known = inverse < inverse.max()
        np.testing.assert_allclose(inverse[known], 1 / npy[known], rtol=1e-3)
        std = np.load(tmp_path / "std_npy" / f"{stem}.npy")
        assert (std.shape, std.dtype) == (npy.shape, np.float32)
    transforms = json.loads((tmp_path / "transforms.json").read_text())
    points = read_points(tmp_path / transforms["ply_file_path"])
    expected = np.array([p.xyz for p in read_model(scene.model).points3D.values()])
    np.testing.assert_allclose(points, expected, rtol=1e-5)
    record = json.loads((tmp_path / "colmap.json").read_text())
    assert len(record["frames"]) == 6
    assert all(f["median_residual"] < 0.02 for f in record["frames"].values())
    clipped = [f["clipped_pixels"] for f in record["frames"].values()]
    assert max(clipped) < 0.002 * npy.size
    assert record["unit"] == "unit of the COLMAP model"


def test_colmap_with_own_maps_of_unknown_shift_and_options_of_the_method(scene, tmp_path, capsys):
    maps = tmp_path / "maps"
    for name in NAMES:  # one flat folder, as run.py of Depth Anything writes it
        maps.mkdir(exist_ok=True)
        disparity = 1 / scene.depth_m[name]
        stretched = 65535 * (disparity - disparity.min()) / np.ptp(disparity)
        Image.fromarray(stretched.round().astype(np.uint16)).save(maps / Path(name).name)
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--depth", str(maps)]
    words += ["--kind", "disparity", "--method", "global", "--option", "space=disparity"]
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 0
    scale = scene.scale(read_model(scene.model))
    for name in NAMES:
        npy = np.load(out / "depths_npy" / Path(name).with_suffix(".npy"))
        assert np.mean(np.abs(npy / (scale * scene.depth_m[name]) - 1)) < 0.03
    assert main([*words, "--affine", "no", "--out", str(out)]) == 2
    assert "another configuration (affine differ)" in capsys.readouterr().err
    assert main([*words[:5], "--out", str(tmp_path / "other")]) == 2
    assert "--depth needs --kind" in capsys.readouterr().err


def test_colmap_transforms_json_agrees_with_the_model_as_nerfstudio_reads_it(
    scene, patched, tmp_path, capsys
):
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--out", str(tmp_path)]
    assert main([*words, "--method", "lwlr"]) == 0
    assert "nerfstudio-data --depth-unit-scale-factor 1" in capsys.readouterr().out
    model = read_model(scene.model)
    found = nerfstudio_reader(tmp_path, scale_factor=1)
    assert len(found) == 6
    for image in model.images.values():
        pose, focal, depth = found[str(scene.folder / "images" / image.name)]
        assert focal == pytest.approx(image.camera.focal_length_x)
        # A point of the track, through nerfstudio's camera: x right, y up, z backwards.
        seen = [p for p in image.points2D if p.has_point3D()]
        points = np.array([model.points3D[p.point3D_id].xyz for p in seen])
        in_camera = (points - pose[:3, 3]) @ pose[:3, :3]
        columns, rows = np.array([p.xy for p in seen]).astype(int).T
        assert np.median(np.abs(depth[rows, columns] / -in_camera[:, 2] - 1)) < 0.02
        upright = in_camera[:, 1] > 0
        assert np.mean(rows[upright]) < np.mean(rows[~upright])
    assert json.loads((tmp_path / "transforms.json").read_text())["k1"] == pytest.approx(RADIAL)


def test_colmap_adds_depth_to_a_transforms_json_that_exists(scene, patched, tmp_path, capsys):
    shutil.copytree(scene.folder / "images", tmp_path / "images")
    words = ["colmap", str(scene.model), str(tmp_path / "images"), "--method", "median"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    path = tmp_path / "transforms.json"
    theirs = json.loads(path.read_text())
    del theirs["made_by"]
    for frame in theirs["frames"]:
        assert frame["file_path"].startswith("images/left/")
        del frame["depth_file_path"]
    theirs["orientation_override"] = "none"
    path.write_text(json.dumps(theirs))
    assert main([*words, "--out", str(tmp_path)]) == 0
    ours = json.loads(path.read_text())
    assert ours["frames"][0]["depth_file_path"] == "depths_npy/left/v0.npy"
    for frame in ours["frames"]:
        del frame["depth_file_path"]
    assert ours == theirs
    for frame in theirs["frames"]:
        for row in frame["transform_matrix"][:3]:
            row[3] *= 2
    path.write_text(json.dumps(theirs))
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "its cameras are 2 times as far apart as the model's" in capsys.readouterr().err
    path.write_text(json.dumps(theirs | {"applied_scale": 2.0}))
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "depth_file_path" in path.read_text()
    theirs["frames"][0]["file_path"] = "images/other.png"
    path.write_text(json.dumps(theirs))
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path)]) == 0
    message = capsys.readouterr()
    assert "1 of its 6 images are not in the model, the first images/other.png" in message.err
    assert "ns-train" not in message.out
    assert json.loads(path.read_text()) == theirs


def test_colmap_transforms_json_of_smaller_copies_has_their_intrinsics(
    scene, monkeypatch, tmp_path
):
    for name in NAMES:
        target = tmp_path / "small" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(scene.folder / "images" / name) as image:
            image.resize((160, 120)).save(target)
    flat = MDEOutput(torch.ones(120, 160), "depth", model="flat")
    use_mde(monkeypatch, lambda image: flat)
    words = ["colmap", str(scene.model), str(tmp_path / "small"), "--method", "median"]
    assert main([*words, "--limit", "2", "--out", str(tmp_path / "out")]) == 0
    meta = json.loads((tmp_path / "out" / "transforms.json").read_text())
    assert (meta["w"], meta["h"]) == (160, 120)
    assert meta["fl_x"] == pytest.approx(FOCAL_PX / 2)
    assert meta["cx"] == pytest.approx(80)


def test_colmap_limit_and_resume_give_the_files_of_one_run(scene, patched, tmp_path, capsys):
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--method", "lwlr"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*words, "--out", str(whole)]) == 0
    assert main([*words, "--out", str(parts), "--limit", "2"]) == 0
    assert "2 recovered, 0 with too few points, 0 failed, 4 left" in capsys.readouterr().out
    assert splatting_reader(parts, "left/v0") is not None
    assert splatting_reader(parts, "left/v5") is None
    assert not np.load(parts / "depths_npy" / "left" / "v5.npy").any()
    first = parts / "depths_npy" / "left" / "v0.npy"
    before = first.stat().st_mtime_ns
    assert main([*words, "--out", str(parts)]) == 0
    assert first.stat().st_mtime_ns == before
    names = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(parts) for p in parts.rglob("*") if p.is_file())
    for name in names:
        if name.name != "colmap.json":
            assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    (parts / "colmap.json").rename(tmp_path / "kept.json")
    assert main([*words[:-1], "median", "--out", str(parts)]) == 0  # nothing of lwlr is taken over
    assert first.stat().st_mtime_ns != before
    shutil.copy(tmp_path / "kept.json", parts / "colmap.json")
    assert main([*words[:-1], "median", "--out", str(parts)]) == 2
    assert "depth of another configuration (method differ)" in capsys.readouterr().err
    assert main([*words, "--out", str(parts), "--limit", "0"]) == 2
    assert "--limit must be 1 or more, found 0" in capsys.readouterr().err


def test_colmap_writes_each_frame_when_it_is_recovered(scene, monkeypatch, tmp_path):
    """An interrupted run leaves complete frames and an index of them."""
    calls = []

    def mde(image: np.ndarray) -> MDEOutput:
        calls.append(image)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return MDEOutput(torch.ones(image.shape[:2]), "depth", model="flat")

    use_mde(monkeypatch, mde)
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--method", "median"]
    with pytest.raises(KeyboardInterrupt):
        ColmapCommand(scene.model, scene.folder / "images", tmp_path, method="median").run()
    for stem in ("left/v0", "left/v1"):
        assert (tmp_path / "depths" / f"{stem}.png").is_file()
        assert (tmp_path / "depths_npy" / f"{stem}.json").is_file()
    assert json.loads((tmp_path / "colmap.json").read_text())["frames"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert len(calls) == 3 + 4


@pytest.fixture(scope="module")
def pinhole_scene(scene, tmp_path_factory) -> Path:
    """The output of `colmap --undistort`, whose depth is interpolated from the points."""
    out = tmp_path_factory.mktemp("pinhole")
    with pytest.MonkeyPatch.context() as patch:
        use_mde(patch, lambda image: MDEOutput(torch.ones(image.shape[:2]), "depth", model="flat"))
        words = ["colmap", str(scene.model), str(scene.folder / "images"), "--undistort"]
        assert main([*words, "--method", "interpolate", "--out", str(out)]) == 0
    return out


def test_open3d_tsdf_example_read_views_projects_points_where_colmap_saw_them(
    scene, pinhole_scene, tmp_path
):
    example = load_example("open3d_tsdf.py")
    model = read_model(pinhole_scene / "sparse" / "0")
    views = list(example.read_views(pinhole_scene))
    images = sorted(model.images.values(), key=lambda image: image.name)
    for view, image in zip(views, images, strict=True):
        seen = [p for p in image.points2D if p.has_point3D()]
        points = np.array([model.points3D[p.point3D_id].xyz for p in seen])
        x, y, z = (points @ view.camera_from_world[:3, :3].T + view.camera_from_world[:3, 3]).T
        uv = np.stack([x, y], axis=1) / z[:, None] * view.focal_px + view.centre_px
        # COLMAP's pixel centres are at halves.
        error_px = np.linalg.norm(uv + 0.5 - [p.xy for p in seen], axis=1)
        assert np.median(error_px) < 1
        columns, rows = np.rint(uv).astype(int).T
        inside = (columns >= 0) & (columns < view.depth.shape[1])
        inside &= (rows >= 0) & (rows < view.depth.shape[0])
        found = view.depth[rows[inside], columns[inside]]
        assert np.median(np.abs(found / z[inside] - 1)) < 0.02
        assert z.max() > 0.5 * example.far_depth(pinhole_scene)
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--method", "interpolate"]
    assert main([*words, "--limit", "1", "--out", str(tmp_path)]) == 0
    with pytest.raises(SystemExit, match="--undistort"):
        list(example.read_views(tmp_path))


def test_open3d_tsdf_example_fuse_makes_a_mesh_of_the_scene(pinhole_scene):
    pytest.importorskip("open3d", reason="open3d is not installed: pip install open3d")
    example = load_example("open3d_tsdf.py")
    mesh = example.fuse(pinhole_scene, voxels=64)
    low, high = (bound.numpy() for bound in (mesh.get_min_bound(), mesh.get_max_bound()))
    points = np.array([p.xyz for p in read_model(pinhole_scene / "sparse" / "0").points3D.values()])
    # The points lie on the room's walls, and so does the mesh.
    assert np.all(np.abs(np.percentile(points, 50, axis=0) - (low + high) / 2) < (high - low) / 2)
    assert len(mesh.triangle.indices) > 1000


def test_colmap_texts_have_the_unit_of_the_model(scene, monkeypatch, tmp_path):
    big = tmp_path / "big"
    big.mkdir()
    model = read_model(scene.model)
    model.transform(pycolmap.Sim3d(1e5, pycolmap.Rotation3d(), np.zeros(3)))
    model.write(str(big))
    named = []

    def method(mde_output, anchors):
        recovery = Median()(mde_output, anchors)
        assert recovery.report.warnings == ()  # no question about millimetres: the unit is not m
        named.append(anchors.describe(0))
        report = dataclasses.replace(recovery.report, warnings=(Warning("suspect", named[-1]),))
        return dataclasses.replace(recovery, report=report)

    flat = MDEOutput(torch.ones(SHAPE), "depth", model="flat")
    flat.prediction[0, 0] = 2  # there is a warning of a constant map
    use_mde(monkeypatch, lambda image: flat)
    monkeypatch.setattr("scalefield.methods.make_method", lambda name: method)
    words = ["colmap", str(big), str(scene.folder / "images"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    record = json.loads((tmp_path / "out" / "colmap.json").read_text())
    for frame, text in zip(record["frames"].values(), named, strict=True):
        # Not far_anchors, which asks whether metres are millimetres.
        assert frame["warnings"] == [{"code": "suspect", "text": text}]
        assert MODEL_UNIT in text
        assert not re.search(r"\d m\b", text)


def test_colmap_needs_pycolmap_before_it_loads_the_estimator(scene, monkeypatch, tmp_path, capsys):
    def refuse(name, **_):
        raise AssertionError("the estimator was loaded")

    import scalefield.inputs  # noqa: F401 - if first imported later, it would keep the patch

    monkeypatch.setattr("scalefield.mde.load_mde", refuse)
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--out", str(tmp_path)]
    assert main(words) == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("orientation", "sideways", "quarters"), [(6, False, -1), (3, False, 2), (6, True, 0)]
)
def test_colmap_depth_of_rotated_photographs_is_on_the_pixels_of_the_model(
    scene, monkeypatch, tmp_path, capsys, orientation, sideways, quarters
):
    """The estimator accepts upright pictures only: those of the model rotated, or, if the
    photographs were rotated before the model was made, those of the model."""
    images = tmp_path / "images"
    tag(scene.folder / "images", images, orientation, sideways=sideways)
    known = {
        read_image(images / name).tobytes(): np.rot90(depth_m, quarters).copy()
        for name, depth_m in scene.depth_m.items()
    }
    use_mde(monkeypatch, lambda image: bent(known[image.tobytes()]))
    words = ["colmap", str(scene.model), str(images), "--method", "lwlr", "--out", str(tmp_path)]
    assert main(words) == 0
    ambiguous = AMBIGUOUS_ORIENTATION in capsys.readouterr().err
    assert ambiguous == (orientation == 3)  # a half turn has the same size
    record = json.loads((tmp_path / "colmap.json").read_text())
    for frame in record["frames"].values():
        assert (AMBIGUOUS_CODE in [w["code"] for w in frame["warnings"]]) == ambiguous
    scale = scene.scale(read_model(scene.model))
    for name in NAMES:
        stem = name.removesuffix(".png")
        npy = np.load(tmp_path / "depths_npy" / f"{stem}.npy")
        assert np.mean(np.abs(npy / (scale * scene.depth_m[name]) - 1)) < 0.02
        inverse = splatting_reader(tmp_path, stem)
        known = inverse < inverse.max()
        np.testing.assert_allclose(inverse[known], 1 / npy[known], rtol=1e-3)


def test_colmap_frame_orientation_follows_from_the_size_of_the_camera():
    quarter, half = (
        Orientation(transposed=True, columns_reversed=True),
        Orientation(False, True, True),
    )
    upright = Orientation()
    nowhere = Anchors([], [], [])
    landscape, square = (ColmapFrame("a.jpg", s, nowhere, False) for s in ((300, 400), (400, 400)))
    nearly = ColmapFrame("a.jpg", (400, 404), nowhere, False)
    assert landscape.orientation((400, 300), quarter) == (quarter, True)
    assert landscape.orientation((100, 75), quarter) == (quarter, True)  # a smaller copy
    assert landscape.orientation((300, 400), quarter) == (upright, True)
    assert landscape.orientation((300, 400), half) == (half, False)
    assert landscape.orientation((300, 400), upright) == (upright, True)
    assert square.orientation((400, 400), quarter) == (quarter, False)
    assert square.orientation((400, 400), upright) == (upright, True)
    assert nearly.orientation((404, 400), quarter) == (quarter, True)
    assert nearly.orientation((400, 404), quarter) == (upright, True)
    assert nearly.orientation((200, 202), quarter) == (quarter, False)
    turn, _ = landscape.orientation((50, 50), quarter)
    with pytest.raises(InputError, match=r"a\.jpg is 50×50 and the model's camera 400×300"):
        landscape.anchors_in(turn.shape((50, 50)))


def test_colmap_names_frames_with_few_points_and_failed_frames(scene, patched, tmp_path, capsys):
    model = read_model(scene.model)
    image = model.find_image_with_name(NAMES[0])
    for index, point in list(enumerate(image.points2D)):
        if point.has_point3D() and image.num_points3D > 4:
            model.delete_observation(image.image_id, index)
    model.write(str(tmp_path))
    images = tmp_path / "images"
    shutil.copytree(scene.folder / "images", images)
    (images / NAMES[1]).write_bytes(b"no image")
    out = tmp_path / "out"
    words = ["colmap", str(tmp_path), str(images), "--method", "median", "--out", str(out)]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "4 recovered, 1 with too few points, 1 failed" in printed.out
    assert f"{NAMES[0]} has too few points: " in printed.err
    assert f"{NAMES[1]}: not a readable image" in printed.err
    record = json.loads((out / "colmap.json").read_text())
    assert list(record["poor"]) == [NAMES[0]]
    assert NAMES[1] in record["failed"]
    for stem in ("left/v0", "left/v1"):  # trainers demand a file for every image
        assert splatting_reader(out, stem) is None
        assert not np.load(out / "depths_npy" / f"{stem}.npy").any()
    assert main([*words, "--min-points", "100000"]) == 2
    assert "no image has 100000 usable points" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "nosuch"], "no method 'nosuch'"),
        (["--mde", "nosuch"], "no MDE 'nosuch'"),
        (["--min-points", "100000"], "no image has 100000 usable points"),
        (["--min-track", "0"], "--min-track must be 1 or more, found 0"),
        (["--max-error-px", "nan"], "--max-error-px must be above zero, found nan"),
    ],
)
def test_colmap_refuses_bad_input_before_undistorting(scene, tmp_path, capfd, flags, message):
    out = tmp_path / "out"
    words = ["colmap", str(scene.model), str(scene.folder / "images"), "--undistort"]
    assert main([*words, "--out", str(out), *flags]) == 2
    assert message in capfd.readouterr().err
    assert not out.exists()


def test_colmap_wrong_folder_of_images_leaves_an_earlier_result_as_it_was(scene, tmp_path, capsys):
    params = tmp_path / "sparse" / "0" / "depth_params.json"
    params.parent.mkdir(parents=True)
    params.write_text("earlier")
    words = ["colmap", str(scene.model), str(tmp_path), "--method", "median"]
    assert main([*words, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert f"could be recovered; the first: {tmp_path / NAMES[0]}: no such file" in message
    assert params.read_text() == "earlier"
    assert not (tmp_path / "colmap.json").exists()


@pytest.mark.parametrize("damage", ["missing", "small", "short", "turned"])
def test_undistort_refuses_images_that_end_the_process_of_colmap(scene, tmp_path, capfd, damage):
    images, out = tmp_path / "images", tmp_path / "out"
    shutil.copytree(scene.folder / "images", images)
    bad = images / NAMES[1]
    message = {
        "missing": f"{bad}: no such file",
        "small": f"{bad} is 8×6 and the model's camera 320×240",
        "short": f"{bad}: not a readable image",
        "turned": "is 240×320 and the model's camera 320×240; COLMAP takes no notice of the EXIF",
    }
    match damage:
        case "missing":
            bad.unlink()
        case "small":
            Image.fromarray(np.zeros((6, 8, 3), np.uint8)).save(bad)
        case "short":
            bad.write_bytes(bad.read_bytes()[:9000])
        case "turned":
            tag(scene.folder / "images", images, 6, sideways=True)
    words = ["colmap", str(scene.model), str(images), "--undistort", "--out", str(out)]
    assert main([*words, "--method", "median"]) == 2
    assert message[damage] in capfd.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("orientation", [1, 8])
def test_colmap_undistorting_gives_a_scene_of_pinholes_with_their_depth(
    scene, tmp_path, monkeypatch, orientation
):
    """COLMAP keeps the tag in what it makes; the estimator sees that upright."""
    seen = []
    tag(scene.folder / "images", tmp_path / "tagged", orientation)

    def mde(image: np.ndarray) -> MDEOutput:
        seen.append(image.shape[:2])
        return MDEOutput(torch.ones(image.shape[:2]), "depth", model="flat")

    use_mde(monkeypatch, mde)
    words = ["colmap", str(scene.model), str(tmp_path / "tagged"), "--undistort"]
    assert main([*words, "--method", "interpolate", "--out", str(tmp_path)]) == 0
    model = read_model(tmp_path / "sparse" / "0")
    assert {camera.model_name for camera in model.cameras.values()} == {"PINHOLE"}
    (camera,) = model.cameras.values()
    upright = camera.height, camera.width
    assert set(seen) == {upright if orientation == 1 else upright[::-1]}
    # A wall's corner is where the pinhole, and not the lens, sees it.
    for name in NAMES:
        inverse = splatting_reader(tmp_path, name.removesuffix(".png"))
        image = model.find_image_with_name(name)
        observed = [p for p in image.points2D if p.has_point3D()]
        columns, rows = np.array([p.xy for p in observed]).astype(int).T
        points = [model.points3D[p.point3D_id].xyz for p in observed]
        depth = (np.array(points) @ image.cam_from_world().matrix()[:, :3].T)[:, 2]
        depth += image.cam_from_world().matrix()[2, 3]
        inside = (columns < camera.width) & (rows < camera.height)
        found = inverse[rows[inside], columns[inside]] * depth[inside]
        assert np.median(np.abs(found - 1)) < 0.02
    assert len(nerfstudio_reader(tmp_path, scale_factor=1)) == 6
    # The same run again finds everything done.
    photograph = (tmp_path / "images" / NAMES[0]).read_bytes()
    seen.clear()
    assert main([*words, "--method", "interpolate", "--out", str(tmp_path)]) == 0
    assert not seen
    # A folder that has images but no record may be the user's own: it is not touched.
    (tmp_path / "colmap.json").unlink()
    assert main([*words, "--method", "interpolate", "--out", str(tmp_path)]) == 2
    assert (tmp_path / "images" / NAMES[0]).read_bytes() == photograph


def test_colmap_frame_anchors_in_smaller_copies_are_scaled(scene):
    frame = model_frames(read_model(scene.model))[0]
    half = frame.anchors_in((120, 160))
    rows, columns = half.pixels((120, 160))
    full_rows, full_columns = frame.anchors.pixels(SHAPE)
    np.testing.assert_array_equal(rows, full_rows // 2)
    np.testing.assert_array_equal(columns, full_columns // 2)
    with pytest.raises(InputError, match=r"v0\.png is 240×320 and the model's camera 320×240"):
        frame.anchors_in((320, 240))


def test_read_model_names_the_problem(tmp_path):
    with pytest.raises(InputError, match=r"has no cameras.bin or cameras.txt"):
        read_model(tmp_path)
    for name in ("cameras", "images", "points3D"):
        (tmp_path / f"{name}.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match="no registered image or no point"):
        read_model(tmp_path)
    (tmp_path / "cameras.txt").write_text("1 NONSENSE 3 3 1\n")
    with pytest.raises(InputError, match="not a readable COLMAP model"):
        read_model(tmp_path)


def test_write_inverse_depth_counts_clipped_pixels(tmp_path):
    depth = np.array([[0.4, 0.5, 1.0, 100.0, np.nan]])
    assert write_inverse_depth(tmp_path / "a.png", depth, 2.0) == 2
    with Image.open(tmp_path / "a.png") as image:
        assert np.asarray(image).tolist() == [[65535, 65535, 32768, 328, 0]]
