"""SUN RGB-D: rooms seen by four kinds of depth camera."""

from __future__ import annotations

import fnmatch
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, UInt16

from scalefield.datasets.frame import Frame
from scalefield.datasets.mat import read_matrix
from scalefield.datasets.splits import check_split, count_differences, split_frames
from scalefield.errors import InputError, one_line
from scalefield.geometry.camera import Camera
from scalefield.io import read_bytes, read_image, read_png16

IMAGES = {"kv1": 2003, "kv2": 3784, "realsense": 1159, "xtion": 3389}
"""Images of each sensor in the whole dataset."""


@dataclass(frozen=True)
class SunRgbd:
    """SUN RGB-D in its own layout, `SUNRGBD/<sensor>/<set>/…/<frame>/`.

    `image/*.jpg`; `depth_bfx/*.png` (holes filled by the authors), uint16 rotated left by 3 bits,
    millimetres once rotated back, 0 = unknown; `intrinsics.txt` 3×3; labels `seg.mat` where
    present. For research use.
    """

    root: Path
    max_m: float = 8.0
    """Larger depths are unknown. The authors' own toolbox sets them to 8 m when it reads the files;
    the paper scores depths up to 10 m."""
    name: ClassVar[str] = "sunrgbd"
    depth_range_m: ClassVar[tuple[float, float]] = (0.1, 10.0)
    units_per_metre: ClassVar[float] = 1000.0
    split_counts: ClassVar[tuple[int, int, int]] = (8267, 1034, 1034)

    @property
    def ranges_m(self) -> dict[str, tuple[float, float]]:
        """The depths that are known, as `Folder` declares them by source."""
        return {self.name: (self.depth_range_m[0], min(self.max_m, self.depth_range_m[1]))}

    def names(self, split: str) -> list[str]:
        """`<sensor>/<set>/…/<frame>`, by image."""
        check_split(split)
        top = self._top()
        names = sorted(_frames(top))
        if not names:
            raise InputError(f"no SUN RGB-D image found; wanted {top}/SENSOR/SET/FRAME/image/*.jpg")
        return names if split == "all" else split_frames(names, self.split_counts)[split]

    def incomplete(self) -> str:
        """A sentence if there are not the 10,335 images of the whole dataset, by sensor."""
        found = Counter(name.split("/")[0] for name in self.names("all"))
        return count_differences(found, IMAGES, "images")

    def load(self, name: str) -> Frame:
        """The frame with its hole-filled depth."""
        folder = self._top() / name
        raw, _ = read_png16(_only(folder / "depth_bfx", "*.png"))
        depth_m = decode(raw.astype(np.uint16)) / self.units_per_metre
        known = (depth_m > 0) & (depth_m <= self.max_m)
        parts = name.split("/")
        return Frame(
            name=name,
            group=parts[0],
            # Sets with a folder between set and frame are videos (SUN3D); elsewhere frames differ.
            scene="/".join(parts[:-1]) if len(parts) > 3 else name,
            image=read_image(_only(folder / "image", "*.jpg")),
            depth_m=np.where(known, depth_m, np.nan).astype(np.float32),
            depth_range_m=self.depth_range_m,
            labels=_labels(folder / "seg.mat"),
            intrinsics=_intrinsics(folder / "intrinsics.txt"),
        )

    def _top(self) -> Path:
        root = Path(self.root)
        return root / "SUNRGBD" if (root / "SUNRGBD").is_dir() else root


def _frames(top: Path) -> Iterator[str]:
    """A frame's folder for each image/*.jpg below `top`; linked folders are followed."""
    for folder, inside, files in os.walk(top, followlinks=True):
        path = Path(folder)
        # A link to a folder that leads here would never end.
        for link in [name for name in inside if (path / name).is_symlink()]:
            if (path / link).resolve() in {above.resolve() for above in (path, *path.parents)}:
                inside.remove(link)
        if path.name == "image":
            for _ in fnmatch.filter(files, "*.jpg"):
                yield path.parent.relative_to(top).as_posix()


def decode(raw: UInt16[np.ndarray, "h w"]) -> Float64[np.ndarray, "h w"]:
    """Depth units of the stored values: rotated right by 3 bits."""
    return ((raw >> 3) | (raw << 13)).astype(np.float64)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise InputError(f"{folder}: one file {pattern} is wanted, found {len(found)}")
    return found[0]


def _labels(path: Path) -> np.ndarray | None:
    if not path.exists():
        return None
    try:
        labels = read_matrix(read_bytes(path), "seglabel")
        if labels.ndim != 2 or labels.dtype.kind not in "iu":
            raise ValueError(f"{labels.dtype} of shape {labels.shape}")
    except (ValueError, IndexError, zlib.error) as e:
        raise InputError(f"{path}: no readable label image 'seglabel' ({one_line(e)})") from None
    return labels.astype(np.int32)


def _intrinsics(path: Path) -> tuple[float, float, float, float]:
    try:
        k = np.array([float(x) for x in read_bytes(path).split()]).reshape(3, 3)
        camera = Camera(*k[[0, 1, 0, 1], [0, 1, 2, 2]].tolist())
    except InputError as e:
        raise InputError(f"{path}: {e}") from None
    except ValueError:
        raise InputError(f"{path}: a 3×3 matrix is wanted") from None
    return camera.intrinsics
