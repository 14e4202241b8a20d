"""Metric depth for every frame of a camera, a video file or a KITTI drive, with its rate.

    python examples/camera_loop.py --kitti 2011_09_26/2011_09_26_drive_0009_sync --limit 50
    python examples/camera_loop.py --video drive.mp4 --anchors anchors.csv
    python examples/camera_loop.py --camera 0 --anchors anchors.csv --device cuda

A KITTI drive brings a LiDAR scan for every image. A video or a camera brings none: the anchors of a
CSV file are then used in every frame, as those of a fixed camera. Videos and cameras need OpenCV.
Arrays go in and come out as numpy. On a processor `Stream` is used; on a GPU one CUDA graph does
everything after the estimator (`LiveField`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from scalefield import Anchors, LiveField, Stream
from scalefield.datasets.kitti import read_calibration
from scalefield.geometry.point_clouds import anchors_from_points, read_points
from scalefield.io import read_image
from scalefield.mde import MDE, load_mde
from scalefield.mde.output import Kind

Frame = tuple[np.ndarray, Anchors]
"""An RGB image and the anchors measured in it."""
Step = Callable[[np.ndarray, Anchors], tuple[np.ndarray, np.ndarray]]
"""From a frame to its depth in metres and standard deviation of log-depth."""


def kitti_frames(drive: Path) -> Iterator[Frame]:
    """The images of camera 2 with the points of the scan taken at the same time."""
    calibration = read_calibration(drive.parent)
    for path in sorted((drive / "image_02" / "data").glob("*.png")):
        scan = drive / "velodyne_points" / "data" / f"{path.stem}.bin"
        if scan.exists():
            image = read_image(path)
            yield (
                image,
                anchors_from_points(
                    read_points(scan),
                    calibration.camera,
                    image.shape[:2],
                    camera_from_points=calibration.camera_from_velo,
                ),
            )


def video_frames(source: str | int, anchors: Anchors) -> Iterator[Frame]:
    """The frames of a video file or a camera, with the same anchors in each."""
    import cv2

    capture = cv2.VideoCapture(source)
    if not capture.isOpened():
        raise SystemExit(f"{source}: cannot be opened as a video or a camera")
    while True:
        captured, image = capture.read()
        if not captured:
            return
        yield np.ascontiguousarray(image[..., ::-1]), anchors


def on_processor(mde: MDE) -> Step:
    """Depth and deviation by `Stream`, which takes any number of anchors."""
    stream = Stream()

    def step(image: np.ndarray, anchors: Anchors) -> tuple[np.ndarray, np.ndarray]:
        recovery = stream(mde(image), anchors).numpy()
        return recovery.depth_m, recovery.std_log

    return step


def on_gpu(mde: MDE, device: str, max_anchors: int) -> Step:
    """Depth and deviation by `LiveField`, whose graph is captured for the first frame's size."""
    live: LiveField | None = None

    def step(image: np.ndarray, anchors: Anchors) -> tuple[np.ndarray, np.ndarray]:
        nonlocal live
        output = mde(image)
        # Of disparity with an unknown shift, LiveField takes the disparity itself.
        kind: Kind = output.kind if output.affine else "depth"
        prediction = output.disparity if kind == "disparity" else output.mde_depth
        if live is None:
            live = LiveField(
                output.shape,
                kind=kind,
                affine=output.affine,
                max_anchors=max_anchors,
                estimator=output.model,
                device=device,
            )
        depth_m, std_log = live(
            prediction.float(),
            torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).float(),
            torch.tensor(anchors.depth_m).float(),
            image=torch.tensor(image),
        )
        return depth_m.cpu().numpy(), std_log.cpu().numpy()

    return step


def run(frames: Iterator[Frame], mde_name: str, device: str, max_anchors: int) -> None:
    """Recover every frame and print depth and rate."""
    mde = load_mde(mde_name, device=device)
    step = on_processor(mde) if device == "cpu" else on_gpu(mde, device, max_anchors)
    for index, (image, anchors) in enumerate(frames):
        start = time.perf_counter()
        depth_m, std_log = step(image, anchors)
        seconds = time.perf_counter() - start
        print(
            f"frame {index}: {len(anchors)} anchors, median depth {np.nanmedian(depth_m):.2f} m "
            f"± {100 * np.nanmedian(std_log):.0f} %, {1 / seconds:.1f} frames/s",
            flush=True,
        )


def main() -> None:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--kitti", type=Path, help="folder of a drive of KITTI Raw")
    source.add_argument("--video", help="video file")
    source.add_argument("--camera", type=int, help="number of a camera")
    parser.add_argument("--anchors", type=Path, help="CSV of anchors, for --video and --camera")
    parser.add_argument("--mde", default="lite", help="estimator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-anchors", type=int, default=20_000)
    parser.add_argument("--limit", type=int, help="stop after this number of frames")
    flags = parser.parse_args()
    if flags.kitti is not None:
        frames = kitti_frames(flags.kitti)
    elif flags.anchors is None:
        parser.error("--video and --camera need --anchors")
    else:
        given = flags.video if flags.video is not None else flags.camera
        frames = video_frames(given, Anchors.read(flags.anchors))
    run(islice(frames, flags.limit), flags.mde, flags.device, flags.max_anchors)


if __name__ == "__main__":
    main()
