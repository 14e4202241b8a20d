"""`scalefield suggest`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from scalefield.commands.data import File, MapOptions, read_anchors
from scalefield.errors import InputError


@dataclass(frozen=True)
class SuggestCommand:
    """Print the pixels to measure next, or the anchors to keep."""

    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The photograph."""
    anchors: File = None
    """Existing anchors: .csv, .npz or a sparse 16-bit .png."""
    n: int = 3
    """Number of pixels."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
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
        spots = suggest(
            self.image,
            read_anchors(self.anchors, self.anchor_units),
            self.n,
            mde=self.relative.source().load(),
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
        self.relative.check()
        files = [path for path in (self.anchors, self.among) if path is not None]
        png = any(path.suffix.lower() == ".png" for path in files)
        if self.anchor_units is not None and not png:
            raise InputError("--anchor-units is for anchors in a .png, and none is given")
