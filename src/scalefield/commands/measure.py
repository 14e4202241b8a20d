"""`scalefield measure`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from scalefield.commands.data import (
    File,
    Intrinsics,
    MapOptions,
    check_camera_flags,
    read_anchors,
)
from scalefield.errors import InputError


@dataclass(frozen=True)
class MeasureCommand:
    """Read lengths, heights, areas and distances from a photograph, with 90 % intervals.

    `scalefield measure photo.jpg --anchors a.csv --read "length 320,400 420,400"` prints the
    length between two pixels. Without a camera its focal length is taken as uncertain.
    """

    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The photograph."""
    read: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KIND U,V …")
    ] = ()
    """What to read: depth or slant at a pixel; length between two; path or area through several;
    height of the first pixel above the level of the second, or above the plane of three; nearest or
    mean distance in the rectangle of two corners. May be repeated."""
    anchors: File = None
    """Known depths: .csv, .npz or a sparse 16-bit .png."""
    measurements: File = None
    """Measurements of other kinds: .csv with the header kind,value,u,v,u2,v2. Rows without a value
    are read."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    anchor_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of anchors in a .png: 1000 for millimetres, 256 for KITTI, 5000 for TUM."""
    intrinsics: Intrinsics = None
    """Intrinsics of the camera in pixels, with pixel centres at integers."""
    fov_deg: Annotated[float | None, tyro.conf.arg(metavar="DEGREES")] = None
    """Horizontal field of view, if the intrinsics are not known."""
    level: float = 0.9
    """Probability of the intervals."""
    json: bool = False
    """Print a JSON object for each value instead of a sentence."""

    def run(self) -> None:
        """Print a line for each value."""
        self.relative.check()
        check_camera_flags(self.intrinsics, self.fov_deg)
        from scalefield.api import recover
        from scalefield.geometry.camera import find_camera
        from scalefield.geometry.exif import notify_if_rotated
        from scalefield.io import read_image
        from scalefield.measurements import measurement, measurements

        listed = measurements(self.measurements)
        questions = [m for m in listed if m.is_question]
        known = [m for m in listed if not m.is_question]
        questions += [measurement(*parse_question(text)) for text in self.read]
        if not questions:
            raise InputError(
                'nothing to read: give --read "length U,V U,V", or rows without a value'
            )
        shape = read_image(self.image).shape[:2]
        recovery = recover(
            self.image,
            read_anchors(self.anchors, self.anchor_units),
            measurements=known,
            camera=find_camera(self.intrinsics, self.fov_deg, shape),
            mde=self.relative.source().load(),
        )
        notify_if_rotated(self.image)
        for warning in recovery.report.warnings:
            print(f"warning: {warning}")
        readings = recovery.measure(questions, level=self.level)
        for question, (value, low, high, _) in zip(questions, readings, strict=True):
            if self.json:
                print(json.dumps({**question.as_dict(), "value": value, "low": low, "high": high}))
                continue
            unit = "m²" if question.degree == 2 else "m"
            interval = f"{low:.3g} … {high:.3g} {unit} ({100 * self.level:g} %)"
            print(f"{question}: {value:.3g} {unit}, {interval}")


def parse_question(text: str) -> tuple[str, list[tuple[float, float]]]:
    """Kind and pixels of "length 320,400 420,400"."""
    words = text.split()
    first = next((i for i, word in enumerate(words) if "," in word), len(words))
    try:
        pixels = [(float(u), float(v)) for u, v in (word.split(",") for word in words[first:])]
    except ValueError:
        wanted = "a kind and pixels such as length 320,400 420,400"
        raise InputError(f"--read must be {wanted}, found {text!r}") from None
    return " ".join(words[:first]), pixels
