"""Depth of a scene's images as trainers of Gaussian splats and radiance fields read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.export.cloud import PointCloud, write_ply
from scalefield.io import read_json, write_image, write_json, write_map

LEVELS = 65536
"""The Gaussian-splatting trainer divides 16-bit values by 2¹⁶, not by 65535."""


def write_inverse_depth(
    path: str | Path, depth: Float[np.ndarray, "h w"], largest_inverse: float
) -> int:
    """A 16-bit PNG from which 1/depth = value / 2¹⁶ · `largest_inverse`; holes are 0.

    Returns the number of pixels that are nearer and were clipped. `largest_inverse` is the image's
    "scale" in depth_params.json (its "offset" is 0). The trainer does not use the depth of images
    whose scale is below a fifth or above five times the median.
    """
    with np.errstate(divide="ignore"):
        inverse = np.nan_to_num(1 / depth, nan=0.0, posinf=0.0)  # a hole is NaN, or 0
    values = np.round(LEVELS * inverse / largest_inverse)
    write_image(path, Image.fromarray(np.minimum(values, LEVELS - 1).astype(np.uint16)))
    return int(np.count_nonzero(values > LEVELS - 1))


def write_npy_depth(path: str | Path, depth: Float[np.ndarray, "h w"]) -> None:
    """Float32 depth as nerfstudio loads it, with depth_unit_scale_factor 1; holes are 0."""
    write_map(path, np.nan_to_num(depth).astype(np.float32))


def reference_inverse(anchors: Iterable[Anchors]) -> float:
    """Twice the inverse of a scene's near depth: the median over images of their 1st percentile.

    It depends on the anchors of the whole scene and on no recovered depth, so an image can be
    written before the others are recovered.
    """
    near = [np.percentile(each.depth_m, 1) for each in anchors if len(each)]
    return 2 / float(np.median(near))


def write_model_points(model: Any, path: Path) -> None:
    """The points of a COLMAP model with their colours as PLY, from which splats can begin."""
    points = list(model.points3D.values())
    xyz = np.array([point.xyz for point in points], np.float32)
    colours = np.array([point.color for point in points], np.uint8)
    write_ply(path, PointCloud(xyz, colours, np.zeros_like(xyz)), "world of the COLMAP model")


@dataclass(frozen=True)
class SceneFolder:
    """Depth of a scene's images under `out`, in the model's unit, each written when it is known.

    depths/NAME.png and sparse/0/depth_params.json are for the Gaussian-splatting trainer,
    depths_npy/NAME.npy for nerfstudio; std_npy/NAME.npy is the standard deviation of log-depth,
    from which losses and fusions take their weights. depths_npy/NAME.json is the record of an
    image. It is written last, so an image with a record is complete.
    """

    out: Path
    reference: float
    """Inverse depth near which the 16-bit files end; see `reference_inverse`."""

    @property
    def params(self) -> Path:
        """depth_params.json, where the trainer looks for it."""
        return self.out / "sparse" / "0" / "depth_params.json"

    def file(self, stem: str, kind: str) -> Path:
        """The .png, .npy or .json of an image."""
        folder = "depths" if kind == ".png" else "depths_npy"
        return self.out / folder / f"{stem}{kind}"

    def write(
        self,
        stem: str,
        depth: Float[np.ndarray, "h w"],
        record: Mapping[str, Any],
        std: Float[np.ndarray, "h w"] | None = None,
    ) -> dict[str, Any]:
        """Write an image's depth and record; returns the record with its scale and clipped pixels.

        The 16-bit file ends at the image's own near depth, by at most a factor of two from the
        reference. Two images then differ by at most a factor of four, which the trainer allows.
        """
        # Not the minimum: one wrong pixel would use up all 16 bits.
        nearest = float(np.nanpercentile(depth, 0.1))
        scale = float(np.clip(1 / nearest, self.reference / 2, 2 * self.reference))
        write_npy_depth(self.file(stem, ".npy"), depth)
        clipped = write_inverse_depth(self.file(stem, ".png"), depth, scale)
        if std is not None:
            write_map(self.out / "std_npy" / f"{stem}.npy", std.astype(np.float32))
        complete = {**record, "nearest": nearest, "inverse_scale": scale, "clipped_pixels": clipped}
        write_json(self.file(stem, ".json"), complete)
        return complete

    def read(self, stem: str) -> dict[str, Any] | None:
        """The record of an image that is complete; None for others."""
        path = self.file(stem, ".json")
        if not path.is_file():
            return None
        record = read_json(path)
        if not isinstance(record, dict) or not isinstance(record.get("inverse_scale"), float):
            raise InputError(f"{path}: not the record of an image; remove it to recover it again")
        return record

    def write_empty(self, stem: str, shape: tuple[int, int]) -> None:
        """Write files without depth: 0 at every pixel.

        Trainers demand a file for every image. nerfstudio takes a depth of 0 as unknown, and the
        Gaussian-splatting trainer ignores images of scale 0.
        """
        empty = np.full(shape, np.nan, np.float32)
        write_npy_depth(self.file(stem, ".npy"), empty)
        write_inverse_depth(self.file(stem, ".png"), empty, self.reference)

    def write_params(self, records: Mapping[str, Mapping[str, Any]], empty: Iterable[str]) -> None:
        """Write depth_params.json for the images with a record and for those without depth."""
        scales = {stem: record["inverse_scale"] for stem, record in records.items()}
        scales |= dict.fromkeys(empty, 0.0)
        write_json(self.params, {s: {"scale": scales[s], "offset": 0.0} for s in sorted(scales)})
