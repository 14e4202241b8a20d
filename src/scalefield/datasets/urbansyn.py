"""UrbanSyn: rendered streets with exact depth and labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from scalefield.datasets.frame import Frame, read_label_image
from scalefield.datasets.splits import check_split, count_differences, split_frames
from scalefield.errors import InputError, one_line
from scalefield.geometry.camera import Camera
from scalefield.io import read_image, read_json, read_map


@dataclass(frozen=True)
class UrbanSyn:
    """UrbanSyn in its own layout, 2048×1024.

    `rgb/rgb_NNNN.png`; `depth/depth_NNNN.exr` with one float channel, value × 1e5 = metres;
    `ss/ss_NNNN.png` with Cityscapes train ids in the first channel, sky = 10;
    `camera_metadata.json`. Licence CC BY-SA 4.0. This reader follows public loaders and has not
    been tried on the dataset's own files.
    """

    root: Path
    name: ClassVar[str] = "urbansyn"
    depth_range_m: ClassVar[tuple[float, float]] = (0.1, 80.0)
    metres_per_unit: ClassVar[float] = 1e5
    sky_label: ClassVar[int] = 10
    split_counts: ClassVar[tuple[int, int, int]] = (6031, 754, 754)

    def names(self, split: str) -> list[str]:
        """`NNNN`, by image."""
        check_split(split)
        names = sorted(p.stem.removeprefix("rgb_") for p in Path(self.root).glob("rgb/rgb_*.png"))
        if not names:
            raise InputError(f"no UrbanSyn image found; wanted {self.root}/rgb/rgb_NNNN.png")
        return names if split == "all" else split_frames(names, self.split_counts)[split]

    def incomplete(self) -> str:
        """A sentence if there are not the 7,539 images of the whole dataset."""
        return count_differences(
            {"rgb": len(self.names("all"))}, {"rgb": sum(self.split_counts)}, "images"
        )

    def load(self, name: str) -> Frame:
        """The frame with exact depth, labels and the sky they mark."""
        root = Path(self.root)
        image = read_image(root / "rgb" / f"rgb_{name}.png")
        ids = read_label_image(root / "ss" / f"ss_{name}.png")
        labels = ids if ids.ndim == 2 else ids[..., 0]
        depth_m = read_map(root / "depth" / f"depth_{name}.exr", scale=self.metres_per_unit)
        return Frame(
            name=name,
            group=self.name,
            scene=name,
            image=image,
            depth_m=np.where(np.isfinite(depth_m) & (depth_m > 0), depth_m, np.nan).astype("f4"),
            depth_range_m=self.depth_range_m,
            labels=labels,
            sky=labels == self.sky_label,
            intrinsics=_intrinsics(root / "camera_metadata.json", image.shape[:2]),
        )


def _intrinsics(path: Path, shape: tuple[int, int]) -> tuple[float, float, float, float] | None:
    if not path.exists():
        return None
    height, width = shape
    metadata = read_json(path)
    try:
        metadata = metadata["parameters"][0]["Camera"]
        fx = metadata["focalLength_mm"] / metadata["sensorWidth_mm"] * width
        fy = metadata["focalLength_mm"] / metadata["sensorHeight_mm"] * height
        camera = Camera(fx, fy, (width - 1) / 2, (height - 1) / 2)
    except (ValueError, KeyError, IndexError, TypeError, ArithmeticError) as e:
        why = one_line(repr(e))
        raise InputError(f"{path}: not UrbanSyn's camera metadata ({why})") from None
    return camera.intrinsics
