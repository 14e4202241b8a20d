"""`scalefield recover`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import tyro

from scalefield.commands.data import Intrinsics, MapOptions, check_camera_flags, check_counts
from scalefield.defaults import METHOD_NAME
from scalefield.errors import InputError
from scalefield.export import FORMATS, check_formats, format_files

if TYPE_CHECKING:
    from scalefield.commands.recover_many import Item

    FormatName: TypeAlias = str
else:
    FormatName = Literal[tuple(FORMATS)]


@dataclass(frozen=True)
class RecoverCommand:
    """Recover metric depth for an image from a few pixels of known depth.

    Writes depth.png (16-bit, scale in its metadata), depth.npz (depth_m, log_scale, std_log and the
    other maps of the method, residuals of the anchors), preview.png and recovery.json (inputs,
    rejected anchors, fallbacks and warnings).

    Several images, a folder, a glob in quotes or a video get one such folder for each image or
    frame, and recoveries.jsonl with a line for each. The frames of a video are recovered as a
    stream, in which the scale is carried from frame to frame. A bad image is named and skipped, and
    the exit code is then 1.
    """

    image: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="IMAGE")]
    """The photograph; or several, a folder, a glob or a video."""
    anchors: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Known depths: .csv (u,v,depth_m[,sigma_m]), .npz (the same names) or a sparse 16-bit .png.
    Without anchors, `field` returns the depth that its model expects, with a large std_log. For
    several images, a folder of such files by the images' names; by default NAME.anchors.csv (.npz,
    .png) beside each image. For a video, a folder of files by frame number (000012.csv), or one
    file with the anchors of the first frame."""
    measurements: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Lengths, slant distances, heights, planes and others: .csv with the header
    kind,value,u,v,u2,v2. Without a camera the focal length of the file's EXIF is taken, and without
    that it is uncertain."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    device: str = "cpu"
    """Device of the estimator, for example cpu, cuda or cuda:1."""
    method: Annotated[str, tyro.conf.arg(metavar="NAME")] = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""
    option: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """Option of the method; may be repeated."""
    labels: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Regions for --method region: an image or .npy of integers, equal within a region."""
    anchor_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of an anchor .png: 1000 for millimetres, 256 for KITTI, 5000 for TUM."""
    png_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of depth.png; by default 1000 if its 16 bits then hold every pixel (up to
    65.5 m), otherwise 256 (256 m) or fewer."""
    formats: tuple[FormatName, ...] = ()
    """Further output formats: point clouds, float depth, normals, a recording for rerun. All but
    exr and pfm need the camera."""
    intrinsics: Intrinsics = None
    """Intrinsics of the camera in pixels, with pixel centres at integers."""
    fov_deg: Annotated[float | None, tyro.conf.arg(metavar="DEGREES")] = None
    """Horizontal field of view, if the intrinsics are not known."""
    max_points: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Points of a cloud at most; by default all pixels for ply and 500,000 for glb (12 MB)."""
    stream: Literal["auto", "on", "off"] = "auto"
    """Carry the scale from frame to frame, for successive frames of one camera (`field` only).
    auto: on for a video, off for images."""
    every: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Recover every N-th image or frame."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Stop after N images or frames."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Output folder; by default a folder in the current one, named after the image."""

    def run(self) -> int:
        """Recover, write all files and print a summary."""
        self.check()
        from scalefield.commands.recover_many import find_source, recover_many
        from scalefield.geometry.ros import is_bag

        for path in self.image:
            if is_bag(path):
                raise InputError(
                    f"{path} is a rosbag2; `scalefield anchors {path} --out FOLDER` writes its "
                    "frames with their anchors, and `scalefield recover FOLDER --stream on` takes "
                    "them"
                )
        source = find_source(self.image)
        if source.single is None:
            return recover_many(self, source)
        if self.stream == "on" or self.every != 1 or self.limit is not None:
            raise InputError("--stream on, --every and --limit are for several images or a video")
        self.recover_one(source.single)
        return 0

    def recover_one(self, item: Item) -> None:
        """Recover one image, write all files and print a summary."""
        path, folder = item.path, self.out or Path(f"{item.key}_metric")
        from scalefield.runtime.progress import progress as progress_bar

        # Importing torch takes a moment and an estimator may take minutes: show the progress.
        form = "{desc} {bar:20} {elapsed}"
        with progress_bar(4, desc="reading", leave=False, bar_format=form) as progress:
            from scalefield.commands.recover_many import make_solver, recover_item
            from scalefield.export.result_folder import OUTPUTS, depth_png_units, summary
            from scalefield.geometry.exif import notify_if_rotated
            from scalefield.io import spare_inputs

            def step(name: str) -> None:
                progress.set_description_str(name)
                progress.update()

            given = (path, self.anchors, self.measurements, self.relative.depth)
            names = (*OUTPUTS, *format_files(self.formats))
            spare_inputs([folder / name for name in names], [*given, self.labels])
            require_files(given)
            solver = partial(make_solver, self, step=step)
            recovery, overflow = recover_item(self, item, self.anchors, solver, folder, step=step)
            progress.update()
        notify_if_rotated(path)
        print(summary(recovery))
        units = self.png_units or depth_png_units(recovery.depth_m)
        if overflow:
            print(
                f"  depth.png ends at {65535 / units:.1f} m: {overflow} farther pixels "
                "are 0 in it (depth.npz has them); smaller --png-units reach farther"
            )
        elif units != 1000:
            print(f"  depth.png has {units:g} units per metre (in its metadata)")
        print(f"  {folder}: {', '.join(names)}")

    def check(self) -> None:
        """Refuse contradictory flags before anything is loaded."""
        self.relative.check()
        one_file = self.anchors is None or not self.anchors.is_dir()
        png = str(self.anchors).lower().endswith(".png")
        if self.anchor_units is not None and one_file and not png:
            raise InputError(
                f"--anchor-units is for a .png; depth_m of --anchors {self.anchors} is in metres"
            )
        check_camera_flags(self.intrinsics, self.fov_deg)
        for name in self.formats:
            if FORMATS[name].needs_camera and not self.knows_camera:
                raise InputError(f"--formats {name} needs the camera: --intrinsics or --fov-deg")
        check_formats(self.formats)  # before minutes of work
        check_counts(self, "max_points", "limit", "every")
        if self.png_units is not None and not 1e-3 <= self.png_units <= 1e9:
            raise InputError(f"--png-units must be 0.001 … 1e9, found {self.png_units:g}")

    @property
    def knows_camera(self) -> bool:
        """Whether a flag or the EXIF of every image has the camera."""
        if self.intrinsics is not None or self.fov_deg is not None:
            return True
        from scalefield.geometry.exif import photo_fov_deg
        from scalefield.io import IMAGE_SUFFIXES

        photos = all(p.is_file() and p.suffix.lower() in IMAGE_SUFFIXES for p in self.image)
        return photos and all(photo_fov_deg(path) is not None for path in self.image)

    def options(self) -> dict[str, Any]:
        """The method's options as Python values."""
        options = parse_options(self.option)
        if self.labels is not None:
            from scalefield.io import read_labels

            options["labels"] = read_labels(self.labels)
        return options


def require_files(paths: Iterable[Path | None]) -> None:
    """Refuse files that do not exist, all of them in one sentence."""
    from scalefield.io import refuse_address

    missing = [path for path in paths if path is not None and not path.exists()]
    for path in missing:
        refuse_address(path)
    if missing:
        raise InputError(f"{', '.join(map(str, missing))}: no such file{'s' * (len(missing) > 1)}")


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
    for convert in (int, float):
        try:
            return name, convert(value)
        except ValueError:
            continue
    return name, value
