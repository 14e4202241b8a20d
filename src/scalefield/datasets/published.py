"""Test sets of published depth-completion benchmarks, in their own layouts and at their sizes.

A layout lists frames and loads one of them; crops, sizes and masks are those of the public
evaluation of OMNI-DC (Zuo et al., ICCV 2025, github.com/princeton-vl/OMNI-DC, BSD-3-Clause).
These readers follow the published code and descriptions. They were tried on generated samples
only, not on the datasets' own files.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from PIL import Image
from scipy.ndimage import maximum_filter, minimum_filter

from scalefield.datasets.frame import Frame
from scalefield.datasets.mat import read_matrix
from scalefield.datasets.splits import check_split
from scalefield.errors import InputError, import_extra, one_line
from scalefield.geometry.camera import Camera
from scalefield.io import read_bytes, read_image, read_map, read_png16, read_text

RANGE_M = (1e-4, 300.0)
"""Depths that are scored: above OMNI-DC's threshold, and up to the limit of its predictions."""
PNG_UNITS = 256.0
"""Units of a metre in the PNG files of KITTI and VOID."""
NYU_SHORT_SIDE, NYU_CROP = 240, (228, 304)
DIODE_CROP, DIODE_SIZE = (750, 1000), (480, 640)
DIODE_NOISE = (0.05, 0.15)
"""Difference to a neighbour, relative to depth, above which a pixel is noise: indoors, outdoors."""
ETH3D_CROP, ETH3D_POOL = (3840 / 4032, 5120 / 6048), 8
ETH3D_VAL = ("office", "courtyard")
KITTI_TOP = 96
"""Rows without any LiDAR return."""


@dataclass(frozen=True)
class Layout:
    """How the frames of a dataset are found, and one of them is loaded."""

    names: Callable[[Path], list[str]]
    load: Callable[[Path, str], dict[str, Any]]
    """The image, depth_m and further fields of a frame; unknown depths are 0."""
    wanted: str
    """Where the first file is expected, for messages."""
    val: tuple[str, ...] = ()
    """Scenes that OMNI-DC validates on; they are not in the test split."""
    depth_range_m: tuple[float, float] = field(default=RANGE_M)


@dataclass(frozen=True)
class Published:
    """The test set of a published benchmark; see `LAYOUTS`."""

    root: Path
    layout: str

    @property
    def name(self) -> str:
        """Name of the layout."""
        return self.layout

    def names(self, split: str) -> list[str]:
        """All frames for `all`, those of the benchmark for `test`, few or none for `val`."""
        check_split(split)
        layout = LAYOUTS[self.layout]
        names = layout.names(Path(self.root))
        if not names:
            raise InputError(f"no frame of {self.layout} found; wanted {self.root}/{layout.wanted}")
        of_val = [name for name in names if set(name.split("/")) & set(layout.val)]
        if split == "test":
            return [name for name in names if name not in of_val]
        return {"train": [], "val": of_val, "all": names}[split]

    def load(self, name: str) -> Frame:
        """The frame, cropped and resized as published."""
        layout = LAYOUTS[self.layout]
        parts = layout.load(Path(self.root), name)
        maps: dict[str, Any] = {
            key: np.where(parts[key] > 0, parts[key], np.nan).astype(np.float32)
            for key in ("depth_m", "sparse_m")
            if key in parts
        }
        return Frame(
            name=name,
            group=self.layout,
            scene=name.rpartition("/")[0] or name,
            depth_range_m=layout.depth_range_m,
            **{**parts, **maps},
        )


def below(pattern: str, cut: str) -> Callable[[Path], list[str]]:
    """Names of the files of a pattern, relative to the root and without what `cut` matches."""
    return lambda root: sorted(
        re.sub(cut, "", path.relative_to(root).as_posix()) for path in root.glob(pattern)
    )


def centre_crop(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The middle of an image; halves are rounded to even, as in torchvision."""
    if values.shape[0] < shape[0] or values.shape[1] < shape[1]:
        found = f"{values.shape[1]}×{values.shape[0]}"
        raise InputError(f"the image is {found} pixels, less than {shape[1]}×{shape[0]}")
    top, left = (round((values.shape[i] - shape[i]) / 2) for i in range(2))
    return values[top : top + shape[0], left : left + shape[1]]


def resized(values: np.ndarray, shape: tuple[int, int], how: Image.Resampling) -> np.ndarray:
    """An image or a map of float32 at another size."""
    return np.asarray(Image.fromarray(values).resize((shape[1], shape[0]), how))


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Any]:
    """An HDF5 file; what it lacks is an `InputError`."""
    h5py = import_extra("h5py", "protocols", f"reading {path.name}")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, KeyError, ValueError, RuntimeError, IndexError, TypeError) as e:
        raise InputError(f"{path}: not the expected HDF5 file ({one_line(e)})") from None


# ---- NYU Depth v2: 654 test images -------------------------------------------------------------

NYU_MAT = "nyu_depth_v2_labeled.mat"


def nyu_names(root: Path) -> list[str]:
    """Numbers of val/official/*.h5, or those of splits.mat in the official file."""
    if not (root / NYU_MAT).is_file():
        return below("**/official/*.h5", r"\.h5$")(root)
    with matlab(root / "splits.mat"):
        index = read_matrix(read_bytes(root / "splits.mat"), "testNdxs")
        return [f"{int(i):05d}" for i in index.ravel()]


def nyu(root: Path, name: str) -> dict[str, Any]:
    """Half the size, centre crop of 304×228; depths of both files are metres."""
    if (root / NYU_MAT).is_file():
        with opened_hdf5(root / NYU_MAT) as file:
            index = int(name) - 1
            # MATLAB stores columns first.
            image = np.asarray(file["images"][index]).transpose(2, 1, 0)
            depth = np.asarray(file["depths"][index]).T
    else:
        with opened_hdf5(root / f"{name}.h5") as file:
            image = np.asarray(file["rgb"]).transpose(1, 2, 0)
            depth = np.asarray(file["depth"])
    height, width = depth.shape
    shape = (NYU_SHORT_SIDE, round(NYU_SHORT_SIDE * width / height))
    how = Image.Resampling.BILINEAR
    return {
        "image": centre_crop(resized(np.ascontiguousarray(image), shape, how), NYU_CROP),
        "depth_m": centre_crop(resized(depth.astype(np.float32), shape, how), NYU_CROP),
        "intrinsics": (259.4289, 259.7348, 154.7912, 120.8681),
    }


# ---- VOID: sparse depth of visual-inertial odometry ----------------------------------------------


def void_list(root: Path, kind: str) -> list[str]:
    """Paths of test_KIND.txt, relative to the folder above."""
    return read_text(root / f"test_{kind}.txt").split()


def void_names(root: Path) -> list[str]:
    """Images of test_image.txt."""
    listed = (root / "test_image.txt").is_file()
    return [path.removesuffix(".png") for path in void_list(root, "image")] if listed else []


def void(root: Path, name: str) -> dict[str, Any]:
    """The files that the lists of the test set name, line by line."""
    if name not in void_names(root):
        raise InputError(f"{root / 'test_image.txt'}: does not name {name}.png")
    at = void_names(root).index(name)
    kinds = ("image", "sparse_depth", "ground_truth", "intrinsics")
    lists = {kind: void_list(root, kind) for kind in kinds}
    short = [kind for kind, paths in lists.items() if at >= len(paths)]
    if short:
        raise InputError(f"{root / f'test_{short[0]}.txt'}: has no line for {name}")
    paths = {kind: root.parent / paths[at] for kind, paths in lists.items()}
    return {
        "image": read_image(paths["image"]),
        "depth_m": read_png16(paths["ground_truth"])[0] / PNG_UNITS,
        "sparse_m": read_png16(paths["sparse_depth"])[0] / PNG_UNITS,
        "intrinsics": matrix_intrinsics(paths["intrinsics"]),
    }


def matrix_intrinsics(path: Path, top: int = 0) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy of a 3×3 matrix in a text file, after rows were cut from the top."""
    try:
        k = [float(text) for text in read_text(path).split()]
        return Camera(k[0], k[4], k[2], k[5] - top).intrinsics
    except (ValueError, IndexError):  # an InputError about the numbers is a ValueError
        raise InputError(f"{path}: a 3×3 matrix of a camera is wanted") from None


# ---- iBims-1: 100 rooms --------------------------------------------------------------------------


def ibims_names(root: Path) -> list[str]:
    """Lines of imagelist.txt."""
    path = root / "imagelist.txt"
    return read_text(path).split() if path.is_file() else []


def ibims(root: Path, name: str) -> dict[str, Any]:
    """The struct `data` of gt_depth/NAME.mat, or the PNG files of the raw release."""
    path = root / "gt_depth" / f"{name}.mat"
    if not path.is_file():
        raw, _ = read_png16(root / "depth" / f"{name}.png")
        return {
            "image": read_image(root / "rgb" / f"{name}.png"),
            "depth_m": raw * (50 / 65535),
        }
    with matlab(path):
        data = read_bytes(path)
        image, depth = (read_matrix(data, "data", part) for part in ("rgb", "depth"))
        if image.ndim != 3 or image.dtype != np.uint8 or depth.ndim != 2:
            raise ValueError(f"rgb of shape {image.shape} and depth of shape {depth.shape}")
    return {"image": np.ascontiguousarray(image), "depth_m": depth}


@contextmanager
def matlab(path: Path) -> Iterator[None]:
    """Problems of a MATLAB file as an `InputError`."""
    try:
        yield
    except (ValueError, IndexError, zlib.error) as e:
        raise InputError(f"{path}: {one_line(e)}") from None


# ---- DIODE ---------------------------------------------------------------------------------------


def diode(root: Path, name: str) -> dict[str, Any]:
    """Centre crop of 1000×750 at 640×480, without pixels that differ from their neighbours."""
    depth, mask = (
        read_map(root / f"{name}_{kind}.npy").astype(np.float32) for kind in ("depth", "depth_mask")
    )
    depth = np.where((mask > 0) & (depth >= 0.1), depth, 0)
    share = DIODE_NOISE["indoors" not in name]
    highest = maximum_filter(depth, 3, mode="constant", cval=0)
    lowest = minimum_filter(depth, 3, mode="constant", cval=0)
    noisy = np.maximum(highest - depth, depth - lowest) > share * depth
    image = centre_crop(read_image(root / f"{name}.png"), DIODE_CROP)
    depth = centre_crop(np.where(noisy, np.float32(0), depth), DIODE_CROP)
    return {
        "image": resized(np.ascontiguousarray(image), DIODE_SIZE, Image.Resampling.BILINEAR),
        "depth_m": resized(np.ascontiguousarray(depth), DIODE_SIZE, Image.Resampling.NEAREST),
    }


# ---- ETH3D ---------------------------------------------------------------------------------------


def eth3d(root: Path, name: str) -> dict[str, Any]:
    """Centre crop of 5120×3840 at an eighth; depth is the mean of the known pixels."""
    scene, _, photo = name.partition("/images/")
    scene = scene.removeprefix("rgb/")
    depths = f"{scene}/ground_truth_depth/{photo}.JPG"
    beside = root / depths
    path = beside if beside.is_file() else root / "depth" / f"{scene}_dslr_depth" / depths
    image = read_image(root / f"{name}.JPG")
    values = np.frombuffer(read_bytes(path), "<f4")
    if values.size != image.shape[0] * image.shape[1]:
        raise InputError(f"{path}: {values.size} depths for an image of {image.shape[:2]}")
    depth = values.reshape(image.shape[:2])
    height, width = (round(depth.shape[i] * ETH3D_CROP[i]) for i in range(2))
    image = np.ascontiguousarray(centre_crop(image, (height, width)))
    small = (height // ETH3D_POOL, width // ETH3D_POOL)
    return {
        "image": resized(image, small, Image.Resampling.BILINEAR),
        "depth_m": pooled(centre_crop(depth, (height, width)), ETH3D_POOL),
    }


def pooled(depth: Float32[np.ndarray, "h w"], size: int) -> np.ndarray:
    """The mean of the known depths of each square of pixels; 0 where none is known."""
    known = np.isfinite(depth) & (depth > 1e-5)
    shape = (depth.shape[0] // size, size, depth.shape[1] // size, size)
    total = np.where(known, depth, 0).reshape(shape).sum(axis=(1, 3), dtype=np.float64)
    count = known.reshape(shape).sum(axis=(1, 3))
    return total / np.maximum(count, 1)


# ---- KITTI depth completion ----------------------------------------------------------------------


def kitti_dc(root: Path, name: str) -> dict[str, Any]:
    """The selected validation images without their upper 96 rows."""

    def depth(kind: str) -> np.ndarray:
        file = name.rpartition("/")[2].replace("_sync_image_", f"_sync_{kind}_")
        return read_png16(top / kind / f"{file}.png")[0][KITTI_TOP:] / PNG_UNITS

    top = (root / f"{name}.png").parents[1]
    return {
        "image": read_image(root / f"{name}.png")[KITTI_TOP:],
        "depth_m": depth("groundtruth_depth"),
        "sparse_m": depth("velodyne_raw"),
        "intrinsics": matrix_intrinsics(
            top / "intrinsics" / f"{Path(name).name}.txt", top=KITTI_TOP
        ),
    }


LAYOUTS: dict[str, Layout] = {
    "nyu": Layout(nyu_names, nyu, f"val/official/*.h5, or {NYU_MAT} with splits.mat"),
    "void": Layout(void_names, void, "test_image.txt, as in void_1500"),
    "ibims": Layout(ibims_names, ibims, "imagelist.txt"),
    "diode": Layout(
        below("*door*/scene_*/scan_*/*_depth.npy", r"_depth\.npy$"),
        diode,
        "indoors/scene_*/scan_*/*_depth.npy",
    ),
    "eth3d": Layout(
        below("**/images/dslr_images/*.JPG", r"\.JPG$"),
        eth3d,
        "SCENE/images/dslr_images/*.JPG",
        ETH3D_VAL,
    ),
    "kitti-dc": Layout(
        below("**/val_selection_cropped/image/*.png", r"\.png$"),
        kitti_dc,
        "data_depth_selection/val_selection_cropped/image/*.png",
    ),
}
"""The layouts by name."""
