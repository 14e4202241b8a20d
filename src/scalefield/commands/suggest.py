"""`scalefield suggest`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from scalefield.commands.data import File, MapOptions, read_anchors
from scalefield.errors import InputError

OUTPUTS = ("points.png", "points.csv")
LEAST_REMOVED = 0.005
"""Share of the deviation; pixels that reduce it by less are not worth a measurement."""
MOST_PRINTED = 20
"""Pixels that are printed; the table has all."""


@dataclass(frozen=True)
class SuggestCommand:
    """Print the pixels to measure next, or the anchors to keep.

    Writes points.png, the photograph with numbered marks, and points.csv: the existing anchors, and
    a line for each new pixel whose depth is to be filled in for `scalefield recover`. With --among,
    it has the anchors to keep.
    """

    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The photograph."""
    anchors: File = None
    """Existing anchors: .csv, .npz or a sparse 16-bit .png."""
    n: int = 3
    """Number of pixels at most; those that would tell nothing new are left out."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    anchor_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of anchors in a .png: 1000 for millimetres, 256 for KITTI, 5000 for TUM."""
    reachable: File = None
    """Image that is white where a measurement is possible."""
    among: File = None
    """Select among these anchors instead, and print the best ones by line of the .csv, or by number
    counted from 0."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Output folder; by default a folder in the current one, named after the image."""

    def run(self) -> None:
        """Write the picture and the table, and print a line for each pixel, best first."""
        self.check()
        from scalefield.api import suggest
        from scalefield.export.preview import format_std_log, with_numbers
        from scalefield.geometry.exif import notify_if_rotated
        from scalefield.io import read_image, spare_inputs, write_atomic, write_folder, write_image

        folder = self.out or Path(f"{self.image.stem}_points")
        spare_inputs([folder / name for name in OUTPUTS], [self.image, self.anchors, self.among])
        image, anchors = read_image(self.image), read_anchors(self.anchors, self.anchor_units)
        among = None if self.among is None else read_anchors(self.among, self.anchor_units)
        spots = suggest(
            image,
            anchors,
            self.n,
            mde=self.relative.source().load(),
            reachable=None if self.reachable is None else read_image(self.reachable)[..., 0] > 127,
            among=among,
        )
        if among is None:  # the first stays: there is always a best pixel
            spots = spots[:1] + [spot for spot in spots[1:] if spot.removes >= LEAST_REMOVED]
        kept = anchors if among is None else among[[spot.anchor for spot in spots]]
        with write_folder(folder) as staging:
            pixels = [(spot.u, spot.v) for spot in spots]
            write_image(staging / OUTPUTS[0], with_numbers(image, pixels, anchors))
            table = staging / OUTPUTS[1]
            kept.write(table)
            if among is None:
                wanted = "".join(f"{spot.u},{spot.v},\n" for spot in spots)
                write_atomic(table, table.read_bytes() + wanted.encode())
        notify_if_rotated(self.image)
        for number, spot in enumerate(spots[:MOST_PRINTED], 1):
            label = ""
            if among is not None and spot.anchor is not None:
                lines = among.lines
                label = f"#{spot.anchor} " if lines is None else f"line {lines[spot.anchor]}: "
            print(
                f"{number}. {label}u={spot.u} v={spot.v}: now {format_std_log(spot.std_log)}; "
                f"measuring it reduces the mean standard deviation by {100 * spot.removes:.0f} %"
            )
        if len(spots) > MOST_PRINTED:
            print(f"and {len(spots) - MOST_PRINTED} more in {OUTPUTS[1]}")
        if among is None and len(spots) < self.n:
            percent = f"{100 * LEAST_REMOVED:g} %"
            print(f"any other pixel reduces it by less than {percent}, or is next to one of these")
        print(f"  {folder}: {', '.join(OUTPUTS)}")

    def check(self) -> None:
        """Refuse contradictory flags before anything is loaded."""
        self.relative.check()
        files = [path for path in (self.anchors, self.among) if path is not None]
        png = any(path.suffix.lower() == ".png" for path in files)
        if self.anchor_units is not None and not png:
            raise InputError("--anchor-units is for anchors in a .png, and none is given")
