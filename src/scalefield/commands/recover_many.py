"""`scalefield recover` over several images, a folder, a glob or a video."""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalefield.commands.data import find_images, read_anchors
from scalefield.errors import InputError, counted, one_line, require_package

if TYPE_CHECKING:
    import numpy as np

    from scalefield.anchors import Anchors
    from scalefield.commands.recover import RecoverCommand
    from scalefield.geometry.survey import Survey
    from scalefield.io.videos import VideoFrame
    from scalefield.recovery import Recovery

Solver = Callable[["np.ndarray", "Anchors", "Survey | None", str], "Recovery"]
"""Called with an image, its anchors, its other measurements and its name."""
Step = Callable[[str], None]
"""Called with the name of a step when it begins, to show the progress."""

RECORDS = "recoveries.jsonl"
"""Name of the file with one line for each image or frame."""
TABLE_SUFFIXES = (".csv", ".npz", ".txt")
"""Suffixes of tables, which are often given by mistake in place of an image."""
ANCHOR_SUFFIXES = (".anchors.csv", ".anchors.npz", ".anchors.png", ".csv", ".npz", ".png")
"""Endings of anchor files after the name of the image; the last three in a folder of anchors."""


@dataclass(frozen=True, eq=False)
class Item:
    """One image or frame to recover."""

    key: str
    path: Path
    frame: VideoFrame | None = None
    """The frame of a video; None for an image."""

    def read(self) -> np.ndarray:
        """The pixels as uint8 RGB."""
        from scalefield.io import read_image

        return read_image(self.path) if self.frame is None else self.frame.image


@dataclass(frozen=True)
class Source:
    """The images or the video in the arguments of `scalefield recover`."""

    name: str
    """Name of the default output folder, without its ending."""
    images: tuple[Item, ...] = ()
    folder: Path | None = None
    """The folder that was searched."""
    video: Path | None = None

    @property
    def single(self) -> Item | None:
        """The image, if exactly one file was named."""
        return self.images[0] if len(self.images) == 1 and self.folder is None else None


def find_source(given: tuple[Path, ...]) -> Source:
    """The images or the video that the arguments name; a pattern is expanded."""
    from scalefield.io import refuse_address
    from scalefield.io.videos import is_video

    for path in given:
        refuse_address(path)
    paths = [expanded for path in given for expanded in _expanded(path)]
    if not paths:
        raise InputError("no image is given")
    for path in paths:
        if path.suffix.lower() in TABLE_SUFFIXES:
            raise InputError(f"{path} is no image; give anchors as --anchors {path}")
    if len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]
        paths = find_images(folder)
        keys = (path.relative_to(folder).with_suffix("").as_posix() for path in paths)
        return Source(folder.resolve().name, _items(keys, paths), folder)
    if len(paths) == 1 and is_video(paths[0]):
        return Source(paths[0].stem, video=paths[0])
    for path in paths if len(paths) > 1 else ():
        if path.is_dir() or is_video(path):
            raise InputError(f"{path}: a folder or a video is given alone, not among images")
    return Source("images", _items((path.stem for path in paths), paths))


def _expanded(path: Path) -> list[Path]:
    """The files that match a pattern; any other path, and an existing one, stays as it is."""
    try:
        if path.exists() or not glob.has_magic(str(path)):
            return [path]
    except (OSError, ValueError):  # no file has such a name; its reader reports that
        return [path]
    matches = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    if not matches:
        raise InputError(f"{path}: no file matches")
    return matches


def _items(keys: Iterable[str], paths: list[Path]) -> tuple[Item, ...]:
    """The images, whose keys name their output folders and must differ."""
    items: dict[str, Item] = {}
    for key, path in zip(keys, paths, strict=True):
        if key in items:
            other = items[key].path
            raise InputError(f"{other} and {path} would have the same output folder {key!r}")
        items[key] = Item(key, path)
    return tuple(items.values())


def recover_many(command: RecoverCommand, source: Source) -> int:
    """Recover every image or frame; returns 1 if one failed."""
    stream = command.stream == "on" or (command.stream == "auto" and source.video is not None)
    out = command.out or Path(f"{source.name}_metric")
    _check(command, source, out, stream)
    from scalefield.io import write_atomic
    from scalefield.runtime.progress import progress

    anchors_of = anchor_finder(command.anchors, source)
    solve = make_solver(command, [item.key for item in source.images], stream=stream)
    records: list[dict[str, Any]] = []
    items = islice(_every_nth(source, command.every), command.limit)
    total = _count(source, command)
    unit = "image" if source.video is None else "frame"
    try:
        with progress(total, unit=unit, leave=False) as bar:
            for item in items:
                try:
                    file = anchors_of(item)
                    recovery, overflow = recover_item(
                        command, item, file, lambda: solve, out / item.key
                    )
                    record = _record(recovery, overflow, file)
                    bar.write(f"{item.key}: {_one_line(record)}")
                except InputError as e:
                    record = {"failed": str(e)}
                    bar.write(f"scalefield: {item.key} failed: {e}", file=sys.stderr)
                records.append({"key": item.key, **record})
                bar.update()
    finally:  # also of a video that ends in damage, and after an interruption
        if records:
            lines = "".join(json.dumps(record) + "\n" for record in records)
            write_atomic(out / RECORDS, lines.encode())
    failed = sum("failed" in record for record in records)
    done, manner = len(records) - failed, " as a stream" if stream else ""
    outcome = f"{counted(done, unit)} recovered{manner}, {failed} failed"
    print(f"{outcome}; {out / RECORDS}" if records else f"no {unit} was found")
    return 1 if failed or not records else 0


def _check(command: RecoverCommand, source: Source, out: Path, stream: bool) -> None:
    """Refuse, before anything is loaded, flags that several images do not have."""
    if command.labels is not None:
        raise InputError("--labels is a map of one image; several are given")
    if stream and command.method != "field":
        raise InputError(
            f"a stream is recovered by `field`, not by {command.method}; --stream off recovers "
            "each frame alone"
        )
    if command.measurements is not None:
        raise InputError("--measurements are those of one image; several are given")
    if command.anchors is not None and not command.anchors.exists():
        raise InputError(f"{command.anchors}: no such file or folder")
    if command.anchors is not None and not command.anchors.is_dir() and not stream:
        raise InputError(
            f"{command.anchors} is one file of anchors and several images are given; wanted is a "
            "folder with one file for each, or NAME.anchors.csv beside each image"
        )
    if source.folder is not None and out.resolve().is_relative_to(source.folder.resolve()):
        raise InputError(f"{out} is inside {source.folder}, whose images are read; give --out")
    if source.video is not None:
        from scalefield.io.videos import import_av

        import_av()


def _every_nth(source: Source, every: int) -> Iterator[Item]:
    """Every n-th image or frame of a source."""
    if source.video is None:
        yield from source.images[::every]
        return
    from scalefield.io.videos import read_frames

    for frame in read_frames(source.video, every=every):
        yield Item(_frame_key(frame.index), source.video, frame)


def _count(source: Source, command: RecoverCommand) -> int | None:
    """The number of images or frames to recover, where it is known."""
    total: int | None = len(source.images)
    if source.video is not None:
        from scalefield.io.videos import count_frames

        total = count_frames(source.video)
    if total is None:
        return command.limit
    total = -(-total // command.every)
    return total if command.limit is None else min(total, command.limit)


def anchor_finder(given: Path | None, source: Source) -> Callable[[Item], Path | None]:
    """A function from an image or frame to its file of anchors, which is None if it has none."""
    if given is None:
        return lambda item: None if item.frame is not None else _beside(item.path)
    if not given.is_dir():  # the anchors of the first frame of a stream
        first = source.images[0].key if source.images else _frame_key(0)
        return lambda item: given if item.key == first else None
    files: dict[str, Path] = {}
    for path in sorted(given.rglob("*")):
        name = path.relative_to(given).as_posix()
        suffix = next((s for s in ANCHOR_SUFFIXES if name.endswith(s)), None)
        if suffix is not None:
            stem = name.removesuffix(suffix)
            numbered = source.video is not None and stem.isdigit()
            files.setdefault(_frame_key(int(stem)) if numbered else stem, path)
    if source.video is None and not files.keys() & {item.key for item in source.images}:
        raise InputError(f"{given}: no file of anchors in it is named as an image (NAME.csv)")
    if source.video is not None and not any(stem.isdigit() for stem in files):
        raise InputError(f"{given}: no file of anchors in it is named as a frame (000012.csv)")
    return lambda item: files.get(item.key)


def _frame_key(index: int) -> str:
    """The name of a frame's folder and of its anchors, with its number counted from 0."""
    return f"{index:06d}"


def _beside(path: Path) -> Path | None:
    files = (path.with_name(path.stem + suffix) for suffix in ANCHOR_SUFFIXES[:3])
    return next((file for file in files if file.is_file()), None)


def make_solver(
    command: RecoverCommand,
    names: list[str] | None = None,
    *,
    stream: bool = False,
    step: Step = lambda name: None,
) -> Solver:
    """The function that recovers one image; a stream carries its state from call to call. `names`
    are those of several images, as far as they are known."""
    from scalefield.api import Stream, recover_from
    from scalefield.methods import make_method
    from scalefield.validation import check_options

    options = command.options()
    if stream:
        check_options("a stream", Stream, options)
        following = Stream(**options)
    else:
        method = make_method(command.method, **options)
        method.prepare()
        if method.wants_labels:
            require_package("skimage", "region", f"method {command.method} without --labels")
    step("estimating relative depth")
    relative = command.relative.source(names).load(command.device)

    def solve(image: np.ndarray, anchors: Anchors, survey: Survey | None, key: str) -> Recovery:
        mde_output = relative(image, key)
        step("recovering")
        if stream:
            return replace(following(mde_output, anchors), image=image)
        return recover_from(
            mde_output, anchors, method, image=image, survey=survey, leave_one_out=True
        )

    return solve


def recover_item(
    command: RecoverCommand,
    item: Item,
    file: Path | None,
    solver: Callable[[], Solver],
    folder: Path,
    *,
    step: Step = lambda name: None,
) -> tuple[Recovery[np.ndarray], int]:
    """Recover one image with the anchors of a file and write its folder.

    Returns the recovery and the number of pixels that depth.png cannot hold. `solver` is called
    once the image, the anchors and the camera are known to be usable.
    """
    from scalefield.export.result_folder import write_outputs
    from scalefield.geometry.camera import find_camera
    from scalefield.geometry.exif import choose_camera
    from scalefield.geometry.survey import with_measurements
    from scalefield.measurements import measurements

    image, anchors = item.read(), read_anchors(file, command.anchor_units)
    place(anchors, image, item)
    camera = find_camera(command.intrinsics, command.fov_deg, image.shape[:2])
    if camera is None and item.frame is None:
        camera = choose_camera(None, None, image.shape[:2], item.path)
    given = with_measurements(anchors, measurements(command.measurements), image.shape[:2], camera)
    recovery = solver()(image, *given, item.key).numpy()
    step("writing")
    overflow = write_outputs(
        folder,
        recovery,
        inputs={"image": item.path, "anchors": file, "depth": command.relative.depth},
        png_units=command.png_units,
        formats=command.formats,
        camera=camera,
        max_points=command.max_points,
    )
    return recovery, overflow


def place(anchors: Anchors, image: np.ndarray, item: Item) -> None:
    """Refuse anchors outside the image before the estimator runs."""
    from scalefield.io import exif_orientation

    try:
        anchors.pixels(image.shape[:2])
    except InputError as e:
        if item.frame is not None or exif_orientation(item.path) == 1:
            raise
        turned = "EXIF rotates the photograph, and u and v refer to the upright picture"
        raise InputError(f"{e}; {turned}") from None


def _record(recovery: Recovery[np.ndarray], overflow: int, file: Path | None) -> dict[str, Any]:
    import numpy as np

    from scalefield.export.result_folder import median_error

    report = recovery.report
    codes = [warning.code for warning in report.warnings]
    return {
        "anchors": None if file is None else str(file),
        "anchors_used": report.anchors_used,
        "anchors_given": report.anchors_given,
        "median_depth_m": float(np.nanmedian(recovery.depth_m)),
        "typical_std_log": recovery.typical_std_log(),
        "leave_one_out_error": median_error(report.leave_one_out_log),
        "warnings": codes + ["png_overflow"] * (overflow > 0),
    }


def _one_line(record: dict[str, Any]) -> str:
    from scalefield.export.preview import format_std_log

    text = f"{record['anchors_used']} of {record['anchors_given']} anchors, "
    text += f"median depth {record['median_depth_m']:.2f} m"
    if record["typical_std_log"] is not None:
        text += f" {format_std_log(record['typical_std_log'])}"
    codes = record["warnings"]
    return one_line(text + (f" ({', '.join(codes)})" if codes else ""))
