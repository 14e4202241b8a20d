"""`scalefield recover`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from scalefield.commands.data import Intrinsics, check_depth_flags
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from scalefield.anchors import Anchors
    from scalefield.mde.output import MDEOutput


@dataclass(frozen=True)
class RecoverCommand:
    """Recover metric depth for one image from a few pixels of known depth.

    Writes depth.png (16-bit, scale in its metadata), depth.npz (depth_m, log_scale and the other
    maps of the method), preview.png and recovery.json (inputs, rejected anchors, fallbacks and
    warnings).
    """

    image: tyro.conf.Positional[Path]
    """The photograph."""
    anchors: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Known depths: .csv (u,v,depth_m[,sigma_m]), .npz (the same names) or a sparse 16-bit .png.
    Without anchors, `field` returns the depth that its model expects, with a large std_log."""
    mde: Annotated[
        str | None,
        tyro.conf.arg(metavar="NAME", help=f"The depth estimator; {MDE_NAME} if none is named."),
    ] = None
    device: str = "cpu"
    """Device of the estimator: cpu, cuda, cuda:1, …"""
    depth: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Your own relative depth map instead of an MDE: .npy, .npz, 16-bit .png, .exr or .pfm."""
    kind: Annotated[
        Literal["depth", "disparity"] | None, tyro.conf.arg(metavar="depth|disparity")
    ] = None
    """Kind of --depth: depth grows with distance, disparity falls with it. An --mde knows its
    kind."""
    affine: Annotated[Literal["yes", "no"] | None, tyro.conf.arg(metavar="yes|no")] = None
    """Whether the shift of the map is unknown as well as its scale, as for MiDaS and Depth
    Anything. By default an --mde knows it, and the shift of a disparity map of your own is
    unknown; say no for disparity with a known zero, as of a stereo camera."""
    depth_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the array of an .npz, or of the channel of an .exr, given as --depth."""
    resize: bool = False
    """Allow resizing a --depth of another size to the image."""
    method: Annotated[str, tyro.conf.arg(metavar="NAME")] = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""
    option: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """Option of the method; may be repeated."""
    labels: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """For --method region: an image or .npy of integers, equal within a region."""
    anchor_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of an anchor .png: 1000 for millimetres, 256 for KITTI, 5000 for TUM."""
    png_units: Annotated[float, tyro.conf.arg(metavar="PER_METRE")] = 1000.0
    """Units per metre of depth.png; 16 bits reach 65.5 m at 1000 and 256 m at 256."""
    formats: tuple[Literal["ply", "glb", "exr", "pfm", "normals", "rrd"], ...] = ()
    """Further output formats: point clouds, float depth, normals, a recording for rerun. All but
    exr and pfm need the camera."""
    intrinsics: Intrinsics = None
    """Intrinsics of the camera in pixels, with pixel centres at integers."""
    fov_deg: Annotated[float | None, tyro.conf.arg(metavar="DEGREES")] = None
    """Horizontal field of view, if the intrinsics are not known."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Output folder; by default a folder in the current one, named after the image."""

    def run(self) -> None:
        """Recover, write all files and print a summary."""
        self.check()
        folder = self.out or Path(f"{self.image.stem}_metric")
        from tqdm import tqdm

        # Importing torch takes a moment and an estimator may take minutes: show the progress.
        form = "{desc} {bar:20} {elapsed}"
        with tqdm(total=4, disable=None, leave=False, bar_format=form, desc="reading") as progress:
            from scalefield.api import recover_from
            from scalefield.export import format_files
            from scalefield.export.result_folder import OUTPUTS, summary, write_outputs
            from scalefield.geometry.camera import find_camera
            from scalefield.geometry.exif import say_if_turned
            from scalefield.io import read_image, spare_inputs
            from scalefield.methods import make_method

            inputs = {"image": self.image, "anchors": self.anchors, "depth": self.depth}
            names = (*OUTPUTS, *format_files(self.formats))
            spare_inputs([folder / name for name in names], [*inputs.values(), self.labels])
            anchors = self.read_anchors()
            image = read_image(self.image)
            self.place(anchors, image)
            say_if_turned(self.image)
            camera = find_camera(self.intrinsics, self.fov_deg, image.shape[:2])
            method = make_method(self.method, **self.options())
            _next(progress, "estimating relative depth")
            mde_output = self.relative_depth(image)
            _next(progress, "recovering")
            recovery = recover_from(mde_output, anchors, method).numpy()
            _next(progress, "writing")
            overflow = write_outputs(
                folder,
                recovery,
                anchors,
                image,
                inputs=inputs,
                png_units=self.png_units,
                formats=self.formats,
                camera=camera,
            )
            progress.update()
        print(summary(recovery, anchors))
        if overflow:
            reach_m = 65535 / self.png_units
            print(
                f"  depth.png ends at {reach_m:.1f} m: {overflow} farther pixels are 0 in it "
                "(depth.npz has them); smaller --png-units reach farther"
            )
        print(f"  {folder}: {', '.join(names)}")

    def check(self) -> None:
        """Refuse contradictory flags before anything is loaded."""
        check_depth_flags(self.depth, self.mde, self.depth_key, resize=self.resize)
        if self.depth is not None and self.kind is None:
            raise InputError("--depth needs --kind depth (grows with distance) or --kind disparity")
        if self.anchor_units is not None and not str(self.anchors).lower().endswith(".png"):
            raise InputError(
                f"--anchor-units is for a .png; depth_m of --anchors {self.anchors} is in metres"
            )
        if self.intrinsics and self.fov_deg:
            raise InputError("--intrinsics and --fov-deg are alternatives; give one of them")
        if self.formats and self.intrinsics is None and self.fov_deg is None:
            from scalefield.export import IN_SPACE

            for name in sorted(set(self.formats) & set(IN_SPACE)):
                raise InputError(f"--formats {name} needs the camera: --intrinsics or --fov-deg")
        if not 1e-3 <= self.png_units <= 1e9:
            raise InputError(f"--png-units must be 0.001 … 1e9, found {self.png_units:g}")

    def read_anchors(self) -> Anchors:
        """The anchors of the file; empty if none is given."""
        from scalefield.anchors import Anchors

        if self.anchors is None:
            return Anchors([], [], [])
        return Anchors.read(self.anchors, png_units_per_metre=self.anchor_units)

    def relative_depth(self, image: np.ndarray) -> MDEOutput:
        """The estimator's output for the image, or the user's own map."""
        from scalefield.inputs import estimate, from_array
        from scalefield.io import read_map

        affine = None if self.affine is None else self.affine == "yes"
        if self.depth is None:
            name = MDE_NAME if self.mde is None else self.mde
            return estimate(image, name, self.kind, self.device, affine=affine)
        zero_is_far = self.kind == "disparity" and affine is not False
        values = read_map(self.depth, key=self.depth_key, zero_is_far=zero_is_far)
        return from_array(values, self.kind, image, affine=affine, resize=self.resize)

    def place(self, anchors: Anchors, image: np.ndarray) -> None:
        """Refuse anchors outside the image before the estimator runs."""
        from scalefield.io import exif_orientation

        try:
            anchors.pixels(image.shape[:2])
        except InputError as e:
            if exif_orientation(self.image) == 1:
                raise
            turned = "EXIF rotates the photograph, and u and v refer to the upright picture"
            raise InputError(f"{e}; {turned}") from None

    def options(self) -> dict[str, Any]:
        """The method's options as Python values."""
        options = parse_options(self.option)
        if self.labels is not None:
            from scalefield.io import read_labels

            options["labels"] = read_labels(self.labels)
        return options


def _next(progress: Any, step: str) -> None:
    progress.update()
    progress.set_description_str(step)


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """The options by name; an option given twice is refused."""
    options: dict[str, Any] = {}
    for name, value in map(parse_option, texts):
        if name in options:
            raise InputError(f"--option {name} is given twice, {options[name]!r} and {value!r}")
        options[name] = value
    return options


def parse_option(text: str) -> tuple[str, Any]:
    """Name and value of `name=value`; the value becomes bool, int, float or None if it can."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise InputError(f"--option must be name=value, found {text!r}")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    return name, value
