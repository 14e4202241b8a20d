"""Flags that several commands share, and their checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError

if TYPE_CHECKING:
    from scalefield.anchors import Anchors
    from scalefield.datasets import Dataset
    from scalefield.datasets.source import FrameSource
    from scalefield.mde.own_maps import RelativeDepth

Layout = Literal[
    "folder", "kitti", "urbansyn", "sunrgbd", "predictions",
    "nyu", "void", "ibims", "diode", "eth3d", "kitti-dc",
]  # fmt: skip
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Intrinsics = Annotated[
    tuple[float, float, float, float] | None, tyro.conf.arg(metavar="FX FY CX CY")
]
Ranges = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE=NEAR,FAR")]


@dataclass(frozen=True)
class DataOptions:
    """A dataset with true depth, and an estimator."""

    root: Path
    """The dataset's folder."""
    mde: str | None = None
    """Monocular depth estimator by name, or your own as module:object; affine:NAME takes its
    output as affine-invariant disparity; stored takes the predictions of --dataset predictions."""
    depth: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Your own maps by the frames' names instead, as in `scalefield recover`; needs --kind."""
    kind: Annotated[
        Literal["depth", "disparity"] | None, tyro.conf.arg(metavar="depth|disparity")
    ] = None
    """Kind of --depth."""
    affine: Annotated[Literal["yes", "no"] | None, tyro.conf.arg(metavar="yes|no")] = None
    """Whether the shift of --depth is unknown; that of disparity is by default."""
    dataset: Layout = "folder"
    """The layout of that folder."""
    name: str | None = None
    """Name of the data in tables; by default the name of the layout."""
    range: Ranges = ()
    """Depth ranges in metres of a folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    sunrgbd_max_m: float | None = None
    """Depths of SUN RGB-D above this are unknown: 8, where its own toolbox ends, if left out; the
    paper scores up to 10."""
    device: str = "cpu"
    """Device of the MDE, for example cpu, cuda or cuda:1."""
    cache: Path | None = None
    """Folder that keeps the MDE's outputs for other runs with the same images."""
    workers: int = os.cpu_count() or 1
    """Processes."""
    limit: int | None = None
    """Take only this many frames, evenly spaced over the split."""

    def open(self) -> Dataset:
        """The reader of the dataset. Adds the current folder to the module search path."""
        from scalefield.datasets import open_dataset

        # As `python -m` does, so that workers also find a module:function in the current folder.
        sys.path.insert(0, str(Path.cwd()))
        return open_dataset(
            self.dataset, self.root, self.ranges_m, sunrgbd_max_m=self.sunrgbd_max_m
        )

    def source(self) -> FrameSource:
        """The frames of the dataset with the estimator's outputs."""
        from scalefield.datasets.source import FrameSource

        if (self.mde is None) == (self.depth is None):
            raise InputError("one of --mde NAME and --depth FOLDER is wanted")
        dataset = self.open()
        if self.mde is not None:
            if self.kind is not None or self.affine is not None:
                raise InputError("--kind and --affine are for --depth, which is not given")
            return FrameSource(dataset, self.mde, self.device, self.cache)
        maps = MapOptions(depth=self.depth, kind=self.kind, affine=self.affine)
        maps.check()
        return FrameSource(dataset, maps.source(dataset.names("all")).mde)

    @property
    def ranges_m(self) -> dict[str, tuple[float, float]]:
        """The declared depth ranges by source."""
        return parse_ranges(self.range)

    @property
    def data_name(self) -> str:
        """Name of the data in tables."""
        return self.name or self.dataset

    @property
    def mde_name(self) -> str:
        """Name of the estimator in tables."""
        from scalefield.mde.affine import public_name

        if self.mde is None:
            return f"maps of {self.depth.name}" if self.depth is not None else ""
        return public_name(self.mde)


@dataclass(frozen=True)
class MapOptions:
    """The relative depth of images: an estimator, or maps of the user."""

    mde: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="NAME",
            help=f"The depth estimator; {MDE_NAME} if none is named. `scalefield models` lists "
            "them.",
        ),
    ] = None
    depth: Annotated[Path | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None
    """Your own relative depth instead of an MDE: .npy, .npz, 16-bit .png, .exr or .pfm (8-bit .png
    of disparity too). For several images, a folder of such maps by the images' names, or by the
    numbers of a video's frames."""
    kind: Annotated[
        Literal["depth", "disparity"] | None, tyro.conf.arg(metavar="depth|disparity")
    ] = None
    """Kind of --depth: depth grows with distance, disparity falls with it. The kind of an --mde is
    known, except of some files."""
    affine: Annotated[Literal["yes", "no"] | None, tyro.conf.arg(metavar="yes|no")] = None
    """Whether the shift of the map is unknown as well as its scale, as for MiDaS and Depth
    Anything. By default, the model card of an --mde decides, and the shift of your own disparity
    map is unknown. Use no for disparity with a known zero, for example of a stereo camera."""
    depth_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the array of an .npz, or of the channel of an .exr, given as --depth."""
    resize: bool = False
    """Allow resizing a --depth of another size to the image."""

    def check(self) -> None:
        """Refuse contradictory flags before anything is loaded."""
        if self.depth is not None and self.mde is not None:
            raise InputError(
                "--depth is your own depth map and --mde computes one; give one of them"
            )
        if self.depth is None and (self.depth_key or self.resize):
            raise InputError(
                "--depth-key and --resize apply only to --depth FILE, which is not given"
            )
        if self.depth is not None and self.kind is None:
            raise InputError("--depth needs --kind depth (grows with distance) or --kind disparity")

    def source(self, names: Iterable[str] | None = None) -> RelativeDepth:
        """Where the relative depth comes from. `names` are those of several images, for which own
        maps must be a folder with a map of at least one."""
        from scalefield.io import refuse_address
        from scalefield.mde.own_maps import OwnMaps, RelativeDepth

        affine = None if self.affine is None else self.affine == "yes"
        if self.depth is None:
            return RelativeDepth(MDE_NAME if self.mde is None else self.mde, self.kind, affine)
        assert self.kind is not None
        refuse_address(self.depth)
        if not self.depth.exists():
            raise InputError(f"{self.depth}: no such file or folder")
        maps = OwnMaps(self.depth.resolve(), self.kind, affine, self.depth_key, self.resize)
        if names is not None:
            if not self.depth.is_dir():
                raise InputError(
                    f"--depth {self.depth} is a map of one image and several are given; wanted is "
                    "a folder with a map for each"
                )
            maps.require(names)
        return RelativeDepth(maps)


def check_counts(options: object, *names: str) -> None:
    """Refuse options of these names that are below one; None is one that is not given."""
    for name in names:
        count = getattr(options, name)
        if count is not None and count < 1:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more, found {count}")


def check_camera_flags(intrinsics: tuple[float, ...] | None, fov_deg: float | None) -> None:
    """Refuse a camera that is given in two ways."""
    if intrinsics and fov_deg:
        raise InputError("--intrinsics and --fov-deg are alternatives; give one of them")


def read_anchors(path: Path | None, units_per_metre: float | None) -> Anchors:
    """The anchors of a file, none without a file; the units are those of a .png."""
    from scalefield.anchors import Anchors

    if path is None:
        return Anchors([], [], [])
    png = path.suffix.lower() == ".png"
    return Anchors.read(path, png_units_per_metre=units_per_metre if png else None)


def parse_ranges(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Depth ranges by source, each from SOURCE=NEAR,FAR."""
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        source, _, limits = text.rpartition("=")
        try:
            nearest, farthest = (float(x) for x in limits.split(","))
        except ValueError:
            raise InputError(f"--range must be SOURCE=NEAR,FAR in metres, found {text!r}") from None
        if not 0 < nearest < farthest < float("inf"):
            raise InputError(f"--range {text}: wanted 0 < NEAR < FAR")
        if source in ranges:
            raise InputError(f"--range {source} is given twice")
        ranges[source] = nearest, farthest
    return ranges


def find_images(folder: Path) -> list[Path]:
    """All image files below a folder, in order of their paths, without files of anchors."""
    if not folder.is_dir():
        problem = "a file; wanted a folder of images" if folder.exists() else "no such folder"
        raise InputError(f"{folder}: {problem}")
    from scalefield.io import IMAGE_SUFFIXES, files_below

    images = [p for p in files_below(folder) if p.suffix.lower() in IMAGE_SUFFIXES]
    paths = [p for p in images if not p.stem.endswith(".anchors")]
    if not paths:
        raise InputError(f"{folder}: no images in it ({', '.join(IMAGE_SUFFIXES)})")
    return paths
