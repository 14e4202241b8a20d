"""`scalefield suggest`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scalefield.commands.data import (
    YesNo,
    as_bool,
    check_depth_flags,
    read_anchors,
    read_relative_map,
)
from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError

File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True)
class SuggestCommand:
    """Print the pixels to measure next, or the anchors to keep."""

    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The photograph."""
    anchors: File = None
    """Existing anchors: .csv, .npz or a sparse 16-bit .png."""
    n: int = 3
    """Number of pixels."""
    mde: Annotated[
        str | None,
        tyro.conf.arg(metavar="NAME", help=f"The depth estimator; {MDE_NAME} if none is named."),
    ] = None
    depth: File = None
    """Your own relative depth map instead of an MDE."""
    kind: Annotated[
        Literal["depth", "disparity"] | None, tyro.conf.arg(metavar="depth|disparity")
    ] = None
    """Kind of --depth: depth grows with distance, disparity falls with it."""
    affine: Annotated[YesNo | None, tyro.conf.arg(metavar="yes|no")] = None
    """Whether the shift of the map is unknown as well as its scale, as for MiDaS and Depth
    Anything. By default, the model card of an --mde decides, and the shift of your own disparity
    map is unknown. Use no for disparity with a known zero, for example of a stereo camera."""
    depth_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the array of an .npz, or of the channel of an .exr, given as --depth."""
    resize: bool = False
    """Allow resizing a --depth of another size to the image."""
    anchor_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of anchors in a .png: 1000 for millimetres, 256 for KITTI, 5000 for TUM."""
    reachable: File = None
    """Image that is white where a measurement is possible."""
    among: File = None
    """Select among these anchors instead, and print the best ones by line of the .csv, or by number
    counted from 0."""

    def run(self) -> None:
        """Print a line for each pixel, best first."""
        self.check()
        from scalefield.api import suggest
        from scalefield.export.preview import format_std_log
        from scalefield.geometry.exif import notify_if_rotated
        from scalefield.io import read_image

        among = None if self.among is None else read_anchors(self.among, self.anchor_units)
        affine, depth = as_bool(self.affine), None
        if self.depth is not None:
            depth = read_relative_map(self.depth, self.depth_key, self.kind, affine)
        spots = suggest(
            self.image,
            read_anchors(self.anchors, self.anchor_units),
            self.n,
            mde=MDE_NAME if self.mde is None else self.mde,
            mde_depth=depth,
            kind=self.kind,
            affine=affine,
            resize=self.resize,
            reachable=None if self.reachable is None else read_image(self.reachable)[..., 0] > 127,
            among=among,
        )
        notify_if_rotated(self.image)
        for spot in spots:
            label = ""
            if among is not None and spot.anchor is not None:
                lines = among.lines
                label = f"#{spot.anchor} " if lines is None else f"line {lines[spot.anchor]}: "
            print(
                f"{label}u={spot.u} v={spot.v}: now {format_std_log(spot.std_log)}; measuring it "
                f"reduces the mean standard deviation by {100 * spot.removes:.0f} %"
            )

    def check(self) -> None:
        """Refuse contradictory flags before anything is loaded."""
        check_depth_flags(self.depth, self.mde, self.depth_key, resize=self.resize)
        files = [path for path in (self.anchors, self.among) if path is not None]
        png = any(path.suffix.lower() == ".png" for path in files)
        if self.anchor_units is not None and not png:
            raise InputError("--anchor-units is for anchors in a .png, and none is given")
