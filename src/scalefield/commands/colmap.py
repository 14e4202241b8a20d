"""`scalefield colmap`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError

if TYPE_CHECKING:
    from scalefield.geometry.colmap import ColmapFrame


AMBIGUOUS_ORIENTATION = (
    "EXIF rotates the picture, and its size does not show whether the model was made from the "
    "rotated or the stored pixels; the stored ones are assumed, because COLMAP reads those"
)
AMBIGUOUS_CODE = "ambiguous_orientation"


@dataclass(frozen=True)
class ColmapCommand:
    """Recover depth for every registered image of a COLMAP model, in the model's own scale.

    The triangulated points are the anchors, weighted by how well their tracks determine them. OUT
    has the layout of a scene, so it may be the scene's own folder: depths/NAME.png and
    sparse/0/depth_params.json for Gaussian splatting, depths_npy/NAME.npy for nerfstudio, and
    colmap.json with a record of every frame, including those with too few points.
    """

    sparse: tyro.conf.Positional[Path]
    """The model's folder, with cameras, images and points3D as .bin or .txt."""
    images: tyro.conf.Positional[Path]
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
    mde: Annotated[str, tyro.conf.arg(metavar="NAME")] = MDE_NAME
    """Depth estimator by name; `scalefield models` lists the names."""
    device: str = "cpu"
    """Device of the estimator: cpu, cuda, cuda:1, …"""
    method: Annotated[str, tyro.conf.arg(metavar="NAME")] = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""

    def run(self) -> int:
        """Recover frame by frame; returns 1 if an image could not be read."""
        from tqdm import tqdm

        from scalefield.geometry.colmap import stems
        from scalefield.geometry.colmap import undistort as undistort_images
        from scalefield.io import write_json
        from scalefield.mde import load_mde
        from scalefield.methods import make_method
        from scalefield.runtime.provenance import provenance

        self.check()
        sparse, images = self.sparse, self.images
        # What can be refused is refused before anything is undistorted.
        mde, method = load_mde(self.mde, device=self.device), make_method(self.method)
        rich, poor = self.frames(sparse)
        if self.undistort:
            sparse, images = undistort_images(sparse, images, self.out)
            rich, poor = self.frames(sparse)
        named = dict(stems(rich))
        recover = _Recover(images, self.out / "depths_npy", mde, method)
        done, failed = {}, {}
        for stem, frame in tqdm(named.items(), disable=None, unit="image", leave=False):
            try:
                done[stem] = recover(stem, frame)
            except InputError as e:
                failed[frame.name] = str(e)
        if not done:
            first = next(iter(failed.values()))
            raise InputError(f"no image of {self.sparse} could be recovered; the first: {first}")
        for stem, clipped in self.write_inverse(done).items():
            done[stem]["clipped_pixels"] = clipped
        write_json(
            self.out / "colmap.json",
            {"frames": done, "poor": poor, "failed": failed, "provenance": provenance()},
        )
        for sentence in _complaints(rich, poor, failed, done):
            print(f"scalefield: {sentence}", file=sys.stderr)
        print(
            f"{len(done)} recovered, {len(poor)} with too few points, {len(failed)} failed; "
            f"in {self.out}"
        )
        return 1 if failed else 0

    def check(self) -> None:
        """Refuse flags out of range."""
        for flag, least in (("min-points", self.min_points), ("min-track", self.min_track)):
            if least < 1:
                raise InputError(f"--{flag} must be 1 or more, found {least}")
        if not self.max_error_px > 0:
            raise InputError(f"--max-error-px must be above zero, found {self.max_error_px:g}")

    def write_inverse(self, done: dict[str, dict[str, Any]]) -> dict[str, int]:
        """Write inverse depth for splatting trainers; returns the number of clipped pixels of each
        image.

        One scale is used for all images, so it is known only when all are recovered.
        """
        import numpy as np

        from scalefield.export.splatting import write_inverse_depth
        from scalefield.io import write_json

        scale = max(1 / record["nearest"] for record in done.values())
        clipped = {}
        for stem in done:
            depth = np.load(self.out / "depths_npy" / f"{stem}.npy", allow_pickle=False)
            target = self.out / "depths" / f"{stem}.png"
            clipped[stem] = write_inverse_depth(target, depth, scale)
        params = {stem: {"scale": scale, "offset": 0.0} for stem in done}
        write_json(self.out / "sparse" / "0" / "depth_params.json", params)
        return clipped

    def frames(self, sparse: Path) -> tuple[list[ColmapFrame], dict[str, int]]:
        """The frames with enough points, and the names of the others with their numbers of
        points."""
        from scalefield.geometry.colmap import model_frames, read_model, split_poor

        model = read_model(sparse)
        found = model_frames(model, min_track=self.min_track, max_error_px=self.max_error_px)
        rich, poor = split_poor(found, self.min_points)
        if not rich:
            most = max(poor.values())
            raise InputError(
                f"{self.sparse}: no image has {self.min_points} usable points, the best {most}; "
                "lower --min-points or --min-track, or raise --max-error-px"
            )
        return rich, poor


def _complaints(
    rich: list[ColmapFrame],
    poor: dict[str, int],
    failed: dict[str, str],
    done: dict[str, dict[str, Any]],
) -> Iterator[str]:
    yield from (f"{name} has too few points: {count} usable points" for name, count in poor.items())
    yield from failed.values()
    ambiguous = sum(
        warning["code"] == AMBIGUOUS_CODE
        for record in done.values()
        for warning in record["warnings"]
    )
    if ambiguous:
        yield f"for {ambiguous} images: {AMBIGUOUS_ORIENTATION}"
    if any(frame.distorted for frame in rich):
        yield (
            "the cameras have lens distortion, which splatting trainers refuse; --undistort "
            "makes pinhole images and their depth"
        )


@dataclass(frozen=True)
class _Recover:
    """Recovers one frame, writes its depth and returns its record."""

    images: Path
    folder: Path
    mde: Any
    method: Any

    def __call__(self, stem: str, frame: ColmapFrame) -> dict[str, Any]:
        import numpy as np

        from scalefield.api import recover_from
        from scalefield.export.splatting import write_npy_depth
        from scalefield.geometry.exif import Orientation
        from scalefield.io import read_image
        from scalefield.report import Warning

        path = self.images / frame.name
        image = read_image(path)  # upright, as estimators know the world
        shape = image.shape[:2]
        turn, certain = frame.orientation(shape, Orientation.of(path))
        anchors = turn.upright(frame.anchors_in(turn.shape(shape)), shape)
        recovery = recover_from(self.mde(image), anchors, self.method).numpy()
        write_npy_depth(self.folder / f"{stem}.npy", turn.stored(recovery.depth_m))
        report = recovery.report
        warnings = report.warnings
        if not certain:
            warnings = (*warnings, Warning(AMBIGUOUS_CODE, AMBIGUOUS_ORIENTATION))
        return {
            "anchors": report.anchors_used,
            "median_residual": float(np.expm1(np.median(np.abs(report.residuals_log)))),
            # Not the minimum: a single absurd pixel must not take all the 16 bits.
            "nearest": float(np.nanpercentile(recovery.depth_m, 0.1)),
            "hole_pixels": report.hole_pixels,
            "fallbacks": [asdict(fallback) for fallback in report.fallbacks],
            "warnings": [asdict(warning) for warning in warnings],
        }
