"""COLMAP models as anchors: the triangulated points of each registered image, with their sigma."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from scalefield.anchors import Anchors
from scalefield.errors import InputError, import_extra, one_line, size_text
from scalefield.geometry.colmap_files import check_counts
from scalefield.geometry.exif import Orientation
from scalefield.io import read_image
from scalefield.runtime.signals import defer_signals

SIGMA_FLOOR = 0.02
"""Fraction of depth added to every sigma. Relative depth is never more accurate, and without it a
few very well triangulated points would dominate."""
SIGMA_LIMIT = 0.3
"""Points whose depth has a larger relative standard deviation are not used."""
POINT_FREEDOM = 3
"""Weight of the model's mean squared error, in observations, when it is combined with a point's own
error: the number of coordinates that the point's observations determine."""
SCALE_TOLERANCE = 0.02
"""Largest difference between the two scales of an image that is a smaller copy of the model's."""
MODEL_UNIT = "units"
"""The unit of a model's depths in messages."""


@dataclass(frozen=True, eq=False)
class ColmapFrame:
    """One registered image with its anchors, whose depth and sigma are in the model's own unit."""

    name: str
    shape: tuple[int, int]
    """Height and width of the model's camera, in which u and v are counted."""
    anchors: Anchors
    distorted: bool
    """Whether the camera has a lens distortion that splatting trainers do not support."""

    def fits(self, shape: tuple[int, int]) -> bool:
        """Whether an image of this size can be the model's, or a smaller copy of it."""
        down, across = (found / own for found, own in zip(shape, self.shape, strict=True))
        return abs(math.log(down / across)) <= SCALE_TOLERANCE

    def orientation(self, upright: tuple[int, int], exif: Orientation) -> tuple[Orientation, bool]:
        """The orientation of the model's pixels relative to the upright picture, and whether it is
        certain.

        COLMAP reads pixels as they are stored and ignores EXIF. If the photographs were rotated
        before, the camera has the upright picture's size. If both sizes are equal, this cannot be
        decided.
        """
        for match in (self.shape.__eq__, self.fits):
            either = dict.fromkeys((exif, Orientation()))
            matching = [one for one in either if match(one.shape(upright))]
            if matching:
                return matching[0], len(matching) == 1
        return exif, True  # a size of neither, which `anchors_in` refuses

    def anchors_in(self, shape: tuple[int, int]) -> Anchors:
        """The anchors for an image of this size: the model's, or a smaller copy of it."""
        if shape == self.shape:
            return self.anchors
        if not self.fits(shape):
            found, wanted = map(size_text, (shape, self.shape))
            raise InputError(f"{self.name} is {found} and the model's camera {wanted}")
        down, across = (found / own for found, own in zip(shape, self.shape, strict=True))
        u, v = (self.anchors.u + 0.5) * across - 0.5, (self.anchors.v + 0.5) * down - 0.5
        return self.anchors.moved(u, v)


def read_model(folder: str | Path) -> Any:
    """The pycolmap.Reconstruction of a folder, binary or text."""
    pycolmap = _import_pycolmap()
    folder = Path(folder)
    if not any((folder / f"cameras.{kind}").is_file() for kind in ("bin", "txt")):
        raise InputError(f"{folder}: not a COLMAP model: has no cameras.bin or cameras.txt")
    try:
        check_counts(folder)
        model = pycolmap.Reconstruction(str(folder))
    except (ValueError, RuntimeError, IndexError, KeyError) as e:
        reason = str(e).strip().splitlines()[-1] if str(e).strip() else type(e).__name__
        raise InputError(f"{folder}: not a readable COLMAP model ({one_line(reason)})") from None
    if not model.num_reg_images() or not model.num_points3D():
        raise InputError(f"{folder}: this model has no registered image or no point")
    return model


def model_frames(model: Any, *, min_track: int = 3, max_error_px: float = 2.0) -> list[ColmapFrame]:
    """Every registered image by name, with the points that it observes as anchors.

    Points in fewer than `min_track` images are left out: with two, a wrong match along the epipolar
    line has no reprojection error. Points with a mean reprojection error above `max_error_px`, and
    points whose depth the model does not determine, are left out too.
    """
    try:
        tracks = _Tracks.of(model)
    except (KeyError, UnicodeDecodeError) as e:
        why = one_line(repr(e))
        raise InputError(f"the COLMAP model contradicts itself or has no names ({why})") from None
    covariance = tracks.covariances()
    good = (tracks.length >= min_track) & (tracks.error_px <= max_error_px)
    frames = []
    for view in tracks.views:
        kept = good[view.points]
        points, pixels = view.points[kept], view.pixels[kept]
        depth = view.in_camera(tracks.xyz[points])[:, 2]
        axis = view.rotation[2]  # depth is the coordinate along the optical axis
        sigma = np.sqrt(np.einsum("i,nij,j->n", axis, covariance[points], axis))
        u, v = pixels.T - 0.5  # COLMAP's pixel centres are at halves
        height, width = view.shape
        usable = (depth > 0) & (sigma < SIGMA_LIMIT * depth)
        usable &= (u >= -0.5) & (u < width - 0.5) & (v >= -0.5) & (v < height - 0.5)
        u, v, depth, sigma = u[usable], v[usable], depth[usable], sigma[usable]
        anchors = Anchors(u, v, depth, np.hypot(sigma, SIGMA_FLOOR * depth), unit=MODEL_UNIT)
        frames.append(ColmapFrame(view.name, view.shape, anchors, view.distorted))
    return sorted(frames, key=lambda frame: frame.name)


@dataclass(frozen=True, eq=False)
class _View:
    """One registered image: its pose and which points it observes where."""

    name: str
    shape: tuple[int, int]
    focal_px: tuple[float, float]
    distorted: bool
    rotation: Float64[np.ndarray, "3 3"]
    translation: Float64[np.ndarray, " 3"]
    points: Int64[np.ndarray, " m"]
    pixels: Float64[np.ndarray, "m 2"]

    @classmethod
    def of(cls, image: Any, index: dict[int, int]) -> _View:
        camera, pose = image.camera, image.cam_from_world().matrix()
        if camera.model_name in ("SPHERICAL", "EQUIRECTANGULAR"):
            raise InputError(f"{image.name}: a {camera.model_name} camera has no optical axis")
        if min(camera.height, camera.width) < 1:
            raise InputError(f"{image.name}: its camera is {camera.width}×{camera.height} pixels")
        observed = [p for p in image.points2D if p.has_point3D()]
        return cls(
            image.name,
            (camera.height, camera.width),
            (camera.focal_length_x, camera.focal_length_y),
            camera.model_name not in ("PINHOLE", "SIMPLE_PINHOLE"),
            pose[:, :3],
            pose[:, 3],
            np.array([index[p.point3D_id] for p in observed], np.int64),
            np.array([p.xy for p in observed], np.float64).reshape(-1, 2),
        )

    def in_camera(self, xyz: Float64[np.ndarray, "m 3"]) -> Float64[np.ndarray, "m 3"]:
        return xyz @ self.rotation.T + self.translation


@dataclass(frozen=True, eq=False)
class _Tracks:
    """The model's points as arrays, and the views that see them."""

    xyz: Float64[np.ndarray, "n 3"]
    error_px: Float64[np.ndarray, " n"]
    length: Int64[np.ndarray, " n"]
    views: list[_View]

    @classmethod
    def of(cls, model: Any) -> _Tracks:
        points = model.points3D
        if any(p.error < 0 for p in points.values()):  # a model may come without them
            model.update_point_3d_errors()
        index = {key: i for i, key in enumerate(points)}
        images = (image for image in model.images.values() if image.has_pose)
        return cls(
            np.array([p.xyz for p in points.values()]),
            np.array([p.error for p in points.values()]),
            np.array([p.track.length() for p in points.values()]),
            [_View.of(image, index) for image in images],
        )

    def covariances(self) -> Float64[np.ndarray, "n 3 3"]:
        """Each point's covariance for correct cameras: σ² (Σ JᵀJ)⁻¹ over its observations.

        J is the derivative of the pixel by the point; long tracks from distant views make the
        covariance small. σ² is the point's own mean squared error, shrunk towards the model's,
        because few observations leave a small residual whatever the noise is.
        """
        information = np.zeros((len(self.xyz), 3, 3))
        for view in self.views:
            x, y, z = view.in_camera(self.xyz[view.points]).T
            zero = np.zeros_like(z)
            by_camera = np.stack([[1 / z, zero, -x / z**2], [zero, 1 / z, -y / z**2]])
            J = np.einsum("rcm,r,ci->mri", by_camera, view.focal_px, view.rotation)
            np.add.at(information, view.points, J.mT @ J)
        length = self.length.astype(np.float64)
        mean_square = float(np.average(self.error_px**2, weights=length))
        own = length * self.error_px**2 + POINT_FREEDOM * mean_square
        variance = own / (length + POINT_FREEDOM)
        # A point that two views see from one place has no depth; a tiny term makes it vast.
        trace = np.einsum("nii->n", information)
        information += (1e-12 * trace + 1e-300)[:, None, None] * np.eye(3)
        return variance[:, None, None] * np.linalg.inv(information)


def undistort(model_folder: Path, images_folder: Path, out: Path) -> tuple[Path, Path]:
    """The model and its images as pinhole images, by COLMAP's undistorter: `sparse/0` and `images`.

    Both appear under `out` when they are complete. Existing files are never replaced.
    """
    pycolmap = _import_pycolmap()
    sparse, images = out / "sparse" / "0", out / "images"
    for target in (sparse, images):
        if target.exists():
            raise InputError(f"{target} exists; undistorted images need a folder of their own")
    model = read_model(model_folder)
    for image in model.images.values():
        _require_size(images_folder / image.name, model.cameras[image.camera_id])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".undistorted.") as staging:
        level = pycolmap.logging.minloglevel
        pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value  # else a line for every image
        try:
            pycolmap.undistort_images(staging, str(model_folder), str(images_folder))
        except (ValueError, RuntimeError) as e:
            raise InputError(f"{images_folder}: cannot be undistorted ({e})") from None
        finally:
            pycolmap.logging.minloglevel = level
        for image in model.images.values():  # what it cannot read it leaves out
            if not Path(staging, "images", image.name).is_file():
                raise InputError(f"{images_folder / image.name}: COLMAP cannot undistort it")
        with defer_signals():
            for source, target in ((f"{staging}/sparse", sparse), (f"{staging}/images", images)):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, target)
    return sparse, images


def _require_size(path: Path, camera: Any) -> None:
    """Check every image first: COLMAP ends the process if a size differs, and invents the missing
    part of a damaged image."""
    upright, exif = read_image(path).shape[:2], Orientation.of(path)
    found, wanted = exif.shape(upright), (camera.height, camera.width)
    if found != wanted:
        turned = "; COLMAP takes no notice of the EXIF that turns it, so turn its pixels"
        raise InputError(
            f"{path} is {size_text(found)} and the model's camera {size_text(wanted)}"
            + (turned if upright == wanted else "")
        )


def split_poor(
    frames: list[ColmapFrame], least: int
) -> tuple[list[ColmapFrame], list[ColmapFrame]]:
    """The frames with `least` anchors or more, and the others."""
    rich = [frame for frame in frames if len(frame.anchors) >= least]
    return rich, [frame for frame in frames if len(frame.anchors) < least]


def stems(frames: list[ColmapFrame]) -> Iterator[tuple[str, ColmapFrame]]:
    """Frames by the names that trainers use: the path without its suffix."""
    seen: dict[str, str] = {}
    for frame in frames:
        stem = frame.name.rpartition(".")[0] or frame.name
        if stem.startswith("/") or ".." in Path(stem).parts:
            raise InputError(f"{frame.name}: an image's name in a model must not leave its folder")
        if stem in seen:
            raise InputError(f"{seen[stem]} and {frame.name} would share the depth map {stem}.png")
        seen[stem] = frame.name
        yield stem, frame


def _import_pycolmap() -> Any:
    return import_extra("pycolmap", "colmap", "reading COLMAP models")
