"""`scalefield scene`."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from scalefield.commands.data import File, Intrinsics, MapOptions, check_camera_flags, check_counts
from scalefield.commands.recover_many import anchor_finder, find_source, read_anchors
from scalefield.errors import InputError, counted

if TYPE_CHECKING:
    from scalefield.geometry.poses import PosedCamera
    from scalefield.recovery import Recovery
    from scalefield.scene.solver import Scene

RECORD, TRANSFORMS, STATES = "scene.json", "transforms.json", "states"
CLOUD = "points.ply"
MOST_POINTS = 300_000
"""Points of the cloud at most."""


@dataclass(frozen=True)
class SceneCommand:
    """Recover depth for all views of a scene in one scale, from their poses.

    Each view uses its own anchors, matches with its neighbours, and what the neighbours see of the
    same surfaces; views without anchors take part. Writes depths_npy/NAME.npy, std_npy/NAME.npy
    (standard deviation of log-depth), depths/NAME.png, transforms.json for nerfstudio, points.ply
    and scene.json. A second run continues an interrupted one.
    """

    poses: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="POSES")]
    """A COLMAP model, a transforms.json, a trajectory (.txt) of TUM or KITTI, or a folder with the
    JSON files of 3D Scanner App or Polycam."""
    images: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """The folder of the images."""
    out: Path
    """Output folder."""
    anchors: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Known depths in the unit of the poses, by the images' names; by default NAME.anchors.csv
    (.npz, .png) beside each image, or the points of a COLMAP model."""
    anchor_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of anchors in a .png."""
    measure: File = None
    """Measurements in metres that give the scene its unit: a .csv with image and u,v,depth_m;
    u,v,u2,v2,length_m; or other,distance_m between two cameras. All output is then in metres."""
    intrinsics: Intrinsics = None
    """The camera of a trajectory, in pixels with centres at integers."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    device: str = "cpu"
    """Device of the estimator, for example cpu, cuda or cuda:1."""
    match: bool = True
    """Match views along their epipolar lines."""
    tie: bool = True
    """Tie views where they see one surface."""
    workers: int = 1
    """Number of processes."""

    def run(self) -> int:
        """Recover all views and write their files; 0."""
        from scalefield.export.nerfstudio import scene_transforms
        from scalefield.export.splatting import SceneFolder, reference_inverse
        from scalefield.io import as_json, continues, write_json
        from scalefield.runtime.progress import progress
        from scalefield.runtime.provenance import provenance
        from scalefield.scene.unit import metric_scale, read_measurements

        self.check()
        measured = None if self.measure is None else read_measurements(self.measure)
        scene = self.scene()
        config = {**self.config(), "views": _fingerprint(scene)}
        continues(self.out / RECORD, config, "depth")
        self.out.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {
            "config": as_json(config), "provenance": provenance(), "frames": {},
            "metres_per_unit": None,
        }  # fmt: skip
        write_json(self.out / RECORD, record)
        steps: Counter[str] = Counter()
        with progress(None, unit="view", leave=False) as bar:

            def step(name: str) -> None:
                steps[name] += 1
                bar.set_description_str(name)
                bar.update()

            scene.solve(step)
            factor = 1.0
            if measured is not None:
                estimates = {each.image: scene.estimate(each.image) for each in measured
                             if not each.other and each.image in scene.views}  # fmt: skip
                scale = metric_scale(measured, scene.views, estimates)
                factor = scale.metres_per_unit
                record["metres_per_unit"] = {
                    "value": factor, "interval_90": scale.interval_90,
                    "residuals_log": scale.residuals_log,
                }  # fmt: skip
            anchors = [view.anchors for view in scene.views.values() if len(view.anchors)]
            reference = reference_inverse(anchors) / factor if anchors else 1.0
            folder = SceneFolder(self.out, reference)
            write = partial(_write, folder, factor, MOST_POINTS // len(scene.views))
            written = dict(scene.each(step, write))
        record["frames"] = {name: values for name, (values, _) in written.items()}
        clouds = [cloud for _, cloud in written.values() if cloud is not None]
        cloud_file = _merged(clouds, self.out / CLOUD) if clouds else None
        shapes = {name: tuple(values["shape"]) for name, values in record["frames"].items()}
        write_json(
            self.out / TRANSFORMS,
            scene_transforms(scene.views, shapes, folder, factor, cloud_file),
        )
        folder.write_params(record["frames"], ())
        write_json(self.out / RECORD, record)
        print(f"{counted(len(written), 'view')} recovered in one scale; in {self.out}")
        if measured is not None:
            low, high = record["metres_per_unit"]["interval_90"]
            print(f"  one unit of the poses is {factor:.4g} m (90 %: {low:.4g} … {high:.4g} m)")
        return 0

    def check(self) -> None:
        """Refuse contradictory flags before anything is loaded."""
        self.relative.check()
        check_counts(self, "workers")
        check_camera_flags(self.intrinsics, None)
        if self.anchors is not None and not self.anchors.is_dir():
            raise InputError(f"{self.anchors}: no such folder of anchors")
        if not self.images.is_dir():
            raise InputError(f"{self.images}: no such folder of images")
        if not self.poses.exists():
            raise InputError(f"{self.poses}: no such file or folder of poses")

    def config(self) -> dict[str, Any]:
        """The values that must be equal for a run to continue another."""
        values = dataclasses.asdict(self)
        for name in ("out", "device", "workers", "measure"):
            del values[name]
        values |= values.pop("relative")
        for name in ("poses", "images", "anchors", "depth"):
            values[name] = values[name] and str(values[name].resolve())
        return values

    def scene(self) -> Scene:
        """The scene with its views."""
        from PIL import Image

        from scalefield.anchors import Anchors
        from scalefield.geometry.camera import Camera
        from scalefield.geometry.poses import read_poses
        from scalefield.io import exif_orientation
        from scalefield.scene.solver import Scene, SceneConfig

        source = find_source((self.images,))
        items = {item.key: item for item in source.images}
        camera = None if self.intrinsics is None else Camera(*self.intrinsics)
        posed = _by_key(read_poses(self.poses, list(items), camera), items, self.poses)
        relative = self.relative.source(list(posed)).load(self.device)
        points = {} if self.anchors is not None else _model_points(self.poses)
        anchors_of = anchor_finder(self.anchors, source)
        config = SceneConfig()
        config = dataclasses.replace(
            config,
            stereo=config.stereo if self.match else None,
            ties=config.ties if self.tie else None,
        )
        scene = Scene(
            relative.mde, metres=not points, config=config, folder=self.out / STATES,
            workers=self.workers,
        )  # fmt: skip
        for key, each in posed.items():
            path = items[key].path
            if exif_orientation(path) != 1:
                raise InputError(f"{path}: EXIF rotates it, and poses are of the stored pixels; "
                                 "turn its pixels")  # fmt: skip
            with Image.open(path) as image:
                shape = image.height, image.width
            file, frame = anchors_of(items[key]), points.get(key)
            anchors = Anchors([], [], [])
            if file is not None:
                anchors = read_anchors(file, self.anchor_units)
            elif frame is not None:
                anchors = frame.anchors_in(shape)
            scene.add(
                path, anchors, camera=each.for_shape(shape).camera,
                camera_to_world=each.camera_to_world, name=key,
            )  # fmt: skip
        missing = len(items) - len(scene.views)
        if missing:
            print(f"scalefield: {counted(missing, 'image')} without a pose", file=sys.stderr)
        return scene


def _fingerprint(scene: Scene) -> str:
    """Hash of the poses, cameras and anchors of all views, with which a run continues another."""
    digest = hashlib.sha256()
    for name, view in scene.views.items():
        sigma = view.anchors.sigma_m
        columns = (view.anchors.u, view.anchors.v, view.anchors.depth_m)
        digest.update(f"{name}{view.camera}{sigma is None}".encode())
        for values in (view.camera_to_world, *columns, *(() if sigma is None else (sigma,))):
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def _by_key(posed: list[PosedCamera], items: dict[str, Any], path: Path) -> dict[str, PosedCamera]:
    """The posed cameras by the keys of the images: paths below their folder without the suffix, of
    which a pose may name more or less of the folders."""
    keys: dict[str, list[str]] = {}
    for key in items:
        keys.setdefault(Path(key).name, []).append(key)
    found: dict[str, PosedCamera] = {}
    for each in posed:
        spellings = [each.name, each.name.rpartition(".")[0] or each.name]
        exact = [name for name in spellings if name in items]
        near = {key for name in spellings for key in keys.get(Path(name).name, [])}
        chosen = exact or sorted(near)
        if exact or len(near) == 1:
            found[chosen[0]] = each
    if not found:
        raise InputError(
            f"{path}: none of its {len(posed)} poses is of one of the {len(items)} images, the "
            f"first of {posed[0].name}"
        )
    return found


def _model_points(path: Path) -> dict[str, Any]:
    """The points of a COLMAP model as anchors by the images' names without the suffix; nothing for
    poses of other files."""
    if not path.is_dir() or not any((path / f"cameras.{k}").is_file() for k in ("bin", "txt")):
        return {}
    from scalefield.geometry.colmap import model_frames, read_model, stems

    return dict(stems(model_frames(read_model(path))))


def _write(  # noqa: PLR0917
    folder: Any, factor: float, most_points: int, name: str, recovery: Recovery, view: Any
) -> tuple[dict[str, Any], Any]:
    """Write the files of a view; its record and its cloud in the world, if it has a point."""
    from scalefield.export.cloud import PointCloud

    maps = recovery.numpy()
    assert recovery.image is not None
    depth = maps.depth_m * factor
    report = recovery.report
    record = {
        "shape": list(depth.shape),
        "anchors": report.anchors_used,
        "median_residual": float(np.expm1(np.median(np.abs(report.residuals_log or (0.0,))))),
        "hole_pixels": report.hole_pixels,
        "warnings": [dataclasses.asdict(warning) for warning in report.warnings],
    }
    record = folder.write(name, depth, record, std=maps.std_log)
    try:
        cloud = PointCloud.of(
            depth, view.camera, recovery.image, maps.std_log, max_points=max(1, most_points)
        )
    except InputError:
        return record, None
    turn = view.camera_to_world[:3, :3].T
    centre = view.camera_to_world[:3, 3] * factor
    return record, dataclasses.replace(
        cloud,
        points_m=(cloud.points_m @ turn + centre).astype(np.float32),
        normals=(cloud.normals @ turn).astype(np.float32),
    )


def _merged(clouds: list[Any], path: Path) -> Path:
    """Write clouds as one file."""
    from scalefield.export.cloud import PointCloud, write_ply

    columns = [
        np.concatenate([getattr(cloud, f.name) for cloud in clouds])
        for f in dataclasses.fields(PointCloud)
    ]
    write_ply(path, PointCloud(*columns), "axes of the poses' world")
    return path
