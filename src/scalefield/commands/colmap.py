"""`scalefield colmap`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from scalefield.commands.data import MapOptions, check_counts
from scalefield.commands.recover import parse_options
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError, counted

if TYPE_CHECKING:
    from scalefield.export.splatting import SceneFolder
    from scalefield.geometry.colmap import ColmapFrame
    from scalefield.mde.own_maps import RelativeDepth


AMBIGUOUS_ORIENTATION = (
    "EXIF rotates the picture, and its size does not show whether the model was made from the "
    "rotated or the stored pixels; the stored ones are assumed, because COLMAP reads those"
)
AMBIGUOUS_CODE = "ambiguous_orientation"
RECORD, TRANSFORMS, CLOUD = "colmap.json", "transforms.json", "points.ply"
INDEX_EVERY = 50
"""Images after which colmap.json and depth_params.json are written again."""


@dataclass(frozen=True)
class ColmapCommand:
    """Recover depth for every registered image of a COLMAP model, in the unit of the model.

    The triangulated points are the anchors, weighted by how well their tracks determine them. OUT
    has the layout of a scene, so it may be the scene's own folder: depths/NAME.png and
    sparse/0/depth_params.json for Gaussian splatting, depths_npy/NAME.npy and transforms.json for
    nerfstudio, and colmap.json with a record of every frame. A transforms.json that OUT has is
    kept, and depth_file_path is added to its frames. Frames with too few points get files without
    depth. A second run continues an interrupted one.
    """

    sparse: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """The model's folder, with cameras, images and points3D as .bin or .txt."""
    images: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """The images it was made from, or smaller copies of them."""
    out: Path
    """Output folder."""
    undistort: bool = False
    """First make pinhole images, OUT/images and OUT/sparse/0, as splatting trainers need. Otherwise
    the depth is that of the distorted images."""
    min_points: int = 10
    """Skip frames with fewer usable points, and name them."""
    min_track: int = 3
    """Use points that at least this many images observe; with two, a wrong match cannot be
    detected."""
    max_error_px: float = 2.0
    """Use points with at most this mean reprojection error, in pixels."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    device: str = "cpu"
    """Device of the estimator, for example cpu, cuda or cuda:1."""
    method: Annotated[str, tyro.conf.arg(metavar="NAME")] = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""
    option: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """Option of the method; may be repeated."""
    limit: int | None = None
    """Recover at most this many images; a later run continues."""

    def run(self) -> int:
        """Recover frame by frame; returns 1 if an image could not be read."""
        from scalefield.export.splatting import SceneFolder, reference_inverse
        from scalefield.geometry.colmap import stems
        from scalefield.geometry.colmap import undistort as undistort_images
        from scalefield.io import continues
        from scalefield.methods import make_method

        # What can be refused is refused before the estimator is loaded or anything is written.
        self.check()
        model, rich, poor = self.frames(self.sparse)
        relative = self.relative.source([stem for stem, _ in stems([*rich, *poor])])
        continued, images = continues(self.out / RECORD, self.config(), "depth"), self.images
        method = make_method(self.method, **parse_options(self.option))
        relative = relative.load(self.device)
        if self.undistort:
            if continued:
                sparse, images = self.out / "sparse" / "0", self.out / "images"
            else:
                sparse, images = undistort_images(self.sparse, self.images, self.out)
                self.write_record({}, poor, {})
            model, rich, poor = self.frames(sparse)
        scene = SceneFolder(self.out, reference_inverse(frame.anchors for frame in rich))
        recover = partial(
            _recover_frame, images=images, scene=scene, relative=relative, method=method
        )
        frames = dict(stems([*rich, *poor]))
        done, failed = self.recover_all(recover, scene, frames, poor, continued=continued)
        empty = [stem for stem in frames if stem not in done]
        for stem in empty:
            scene.write_empty(stem, frames[stem].shape)
        scene.write_params(done, empty)
        self.write_record(done, poor, failed)
        trouble = self.write_transforms(model, frames, images, scene, done)
        for sentence in (*trouble, *_complaints(rich, poor, failed, done)):
            print(f"scalefield: {sentence}", file=sys.stderr)
        left = len(rich) - len(done) - len(failed)
        print(
            f"{len(done)} recovered, {len(poor)} with too few points, {len(failed)} failed"
            f"{f', {left} left for a later run' if left else ''}; in {self.out}"
        )
        folder = shlex.quote(str(self.out))
        if not trouble:
            print(
                f"  nerfstudio: ns-train depth-nerfacto --data {folder} nerfstudio-data "
                "--depth-unit-scale-factor 1"
            )
        if self.undistort or not any(frame.distorted for frame in rich):
            print(f"  gaussian-splatting: python train.py -s {folder} -d depths")
        return 1 if failed else 0

    def recover_all(
        self,
        recover: Callable[[str, ColmapFrame], dict[str, Any]],
        scene: SceneFolder,
        frames: Mapping[str, ColmapFrame],
        poor: list[ColmapFrame],
        *,
        continued: bool,
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """The records of all complete frames by stem, and the messages of the failed ones by name.

        If the run continues another, frames that are complete are not recovered again.
        """
        from scalefield.runtime.progress import progress

        records = {stem: scene.read(stem) if continued else None for stem in frames}
        done = {stem: record for stem, record in records.items() if record is not None}
        few_points = {frame.name for frame in poor}
        missing = {
            stem: frame
            for stem, frame in frames.items()
            if stem not in done and frame.name not in few_points
        }
        failed: dict[str, str] = {}
        recovered = 0
        total = len(missing) if self.limit is None else min(self.limit, len(missing))
        with progress(total, unit="image", leave=False) as bar:
            for stem, frame in missing.items():
                if self.limit is not None and recovered >= self.limit:
                    break
                try:
                    done[stem] = recover(stem, frame)
                except InputError as e:
                    failed[frame.name] = str(e)
                    continue
                recovered += 1
                bar.update()
                if recovered % INDEX_EVERY == 1:  # the first too: it marks the folder as this run's
                    self.write_record(done, poor, failed)
                    scene.write_params(done, ())
        if not done:
            first = next(iter(failed.values()))
            raise InputError(f"no image of {self.sparse} could be recovered; the first: {first}")
        return {stem: done[stem] for stem in frames if stem in done}, failed

    def check(self) -> None:
        """Refuse flags out of range."""
        check_counts(self, "min_points", "min_track", "limit")
        self.relative.check()
        if not self.max_error_px > 0:
            raise InputError(f"--max-error-px must be above zero, found {self.max_error_px:g}")

    def config(self) -> dict[str, Any]:
        """The values that must be equal for a run to continue another."""
        values = asdict(self)
        for name in ("out", "device", "limit"):
            del values[name]
        values |= values.pop("relative")
        for name in ("sparse", "images", "depth"):
            values[name] = values[name] and str(values[name].resolve())
        if self.relative.depth is None:
            values["mde"] = values["mde"] or MDE_NAME
        return values

    def write_record(
        self,
        done: Mapping[str, dict[str, Any]],
        poor: list[ColmapFrame],
        failed: Mapping[str, str],
    ) -> None:
        """Write colmap.json."""
        from scalefield.io import as_json, write_json
        from scalefield.runtime.provenance import provenance

        record = {
            "unit": "unit of the COLMAP model",
            "frames": dict(done),
            "poor": {frame.name: len(frame.anchors) for frame in poor},
            "failed": dict(failed),
            "config": as_json(self.config()),
            "provenance": provenance(),
        }
        write_json(self.out / RECORD, record)

    def write_transforms(
        self,
        model: Any,
        frames: Mapping[str, ColmapFrame],
        images: Path,
        scene: SceneFolder,
        done: Mapping[str, dict[str, Any]],
    ) -> list[str]:
        """Write transforms.json, or return the reason why it cannot be written."""
        from scalefield.export.nerfstudio import add_depth, is_ours, make_transforms
        from scalefield.export.splatting import write_model_points
        from scalefield.io import write_json

        write_model_points(model, self.out / CLOUD)
        files = {frame.name: images / frame.name for frame in frames.values()}
        depth = {frame.name: scene.file(stem, ".npy") for stem, frame in frames.items()}
        path = self.out / TRANSFORMS
        try:
            if not is_ours(path):
                content = add_depth(path, model, files, depth)
                write_json(path, {"ply_file_path": CLOUD, **content})
                return []
            shapes = {
                frame.name: _image_shape(frame, images, done.get(stem))
                for stem, frame in frames.items()
            }
            content = make_transforms(model, files, depth, shapes, self.out)
        except InputError as e:
            return [f"no transforms.json for nerfstudio: {e}"]
        write_json(path, {**content, "ply_file_path": CLOUD})
        return []

    def frames(self, sparse: Path) -> tuple[Any, list[ColmapFrame], list[ColmapFrame]]:
        """The model, its frames with enough points, and the others."""
        from scalefield.geometry.colmap import model_frames, read_model, split_poor

        model = read_model(sparse)
        frames = model_frames(model, min_track=self.min_track, max_error_px=self.max_error_px)
        rich, poor = split_poor(frames, self.min_points)
        if not rich:
            most = max(len(frame.anchors) for frame in poor)
            raise InputError(
                f"{self.sparse}: no image has {self.min_points} usable points, the best {most}; "
                "lower --min-points or --min-track, or raise --max-error-px"
            )
        return model, rich, poor


def _complaints(
    rich: list[ColmapFrame],
    poor: list[ColmapFrame],
    failed: dict[str, str],
    done: dict[str, dict[str, Any]],
) -> Iterator[str]:
    yield from (f"{f.name} has too few points: {len(f.anchors)} usable points" for f in poor)
    yield from failed.values()
    ambiguous = sum(
        warning["code"] == AMBIGUOUS_CODE
        for record in done.values()
        for warning in record["warnings"]
    )
    if ambiguous:
        yield f"for {counted(ambiguous, 'image')}: {AMBIGUOUS_ORIENTATION}"
    if any(frame.distorted for frame in rich):
        yield (
            "the cameras have lens distortion, which splatting trainers refuse; --undistort "
            "makes pinhole images and their depth"
        )


def _image_shape(
    frame: ColmapFrame, images: Path, record: Mapping[str, Any] | None
) -> tuple[int, int]:
    """Height and width of a frame's image in the orientation of the model."""
    from PIL import Image

    if record is not None:
        height, width = record["shape"]
        return height, width
    try:
        with Image.open(images / frame.name) as image:
            stored = image.height, image.width
    except (OSError, ValueError):
        return frame.shape
    return stored if frame.fits(stored) else frame.shape


def _recover_frame(
    stem: str,
    frame: ColmapFrame,
    *,
    images: Path,
    scene: SceneFolder,
    relative: RelativeDepth,
    method: Any,
) -> dict[str, Any]:
    """Recover one frame, write its depth and return its record."""
    import numpy as np

    from scalefield.api import recover_from
    from scalefield.geometry.exif import Orientation
    from scalefield.io import read_image
    from scalefield.report import Warning

    path = images / frame.name
    image = read_image(path)  # upright, as estimators expect it
    shape = image.shape[:2]
    turn, certain = frame.orientation(shape, Orientation.of(path))
    anchors = turn.upright(frame.anchors_in(turn.shape(shape)), shape)
    recovery = recover_from(relative(image, stem), anchors, method).numpy()
    report, depth = recovery.report, turn.stored(recovery.depth_m)
    std = None if recovery.std_log is None else turn.stored(recovery.std_log)
    warnings = report.warnings
    if not certain:
        warnings = (*warnings, Warning(AMBIGUOUS_CODE, AMBIGUOUS_ORIENTATION))
    record = {
        "shape": list(depth.shape),
        "anchors": report.anchors_used,
        "median_residual": float(np.expm1(np.median(np.abs(report.residuals_log)))),
        "hole_pixels": report.hole_pixels,
        "fallbacks": [asdict(fallback) for fallback in report.fallbacks],
        "warnings": [asdict(warning) for warning in warnings],
    }
    return scene.write(stem, depth, record, std)
