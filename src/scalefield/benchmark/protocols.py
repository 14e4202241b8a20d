"""The sampling of public depth-completion benchmarks.

Patterns follow the public code of OMNI-DC (Zuo et al., ICCV 2025, github.com/princeton-vl/OMNI-DC,
BSD-3-Clause): with generators of the same seeds they give the same pixels. The public evaluation
draws from one generator over all images in order; here each image has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8

from scalefield.anchors import Anchors
from scalefield.datasets import Frame
from scalefield.errors import InputError, did_you_mean, import_extra
from scalefield.seeding import seeded_rng

KNOWN_M = 1e-4
"""Depth above which a pixel of the truth is known."""
NOISE_POINTS = 2150
"""Points of the patterns with outliers and with misprojection."""
FEWEST_POINTS, FEWEST_KEYPOINTS, INSTEAD_OF_KEYPOINTS = 5, 20, 1000.0
LIDAR_PITCH, LIDAR_COLUMNS = 0.5, 200
"""Half of the virtual scanner's vertical range in radians, and its points in a line."""


@dataclass(frozen=True)
class Protocol:
    """The datasets and the patterns of a public benchmark."""

    datasets: tuple[str, ...]
    patterns: tuple[str, ...]
    note: str = ""


PROTOCOLS: dict[str, Protocol] = {
    "omni-dc": Protocol(
        ("ibims", "diode", "eth3d"),
        ("random-2150", "random-300", "random-100", "noise-0.05", "noise-0.1", "orb", "sift",
         "lidar-64", "lidar-16", "lidar-8", "shift-4"),
        "published rows are means over iBims-1, ARKitScenes, ETH3D and DIODE",
    ),
    "nyu": Protocol(("nyu",), tuple(f"points-{n}" for n in (500, 200, 100, 50, 5))),
    "void": Protocol(("void",), ("given",), "published rows by the folder void_1500, 500 or 150"),
    "kitti-dc": Protocol(
        ("kitti-dc",),
        tuple(f"lines-{n}" for n in (64, 32, 16, 8, 4)),
        "published rows are of the first 749 of the 1000 images",
    ),
}  # fmt: skip
"""Public benchmarks by name. shift-4 (anchors misprojected by 4 pixels) and lines-4 are ours."""


def protocol_named(name: str, dataset: str) -> Protocol:
    """The protocol of that name, if it is for this dataset."""
    if name not in PROTOCOLS:
        near = did_you_mean(name, PROTOCOLS)
        raise InputError(f"no protocol {name!r}; there are {', '.join(PROTOCOLS)}{near}")
    protocol = PROTOCOLS[name]
    if dataset not in protocol.datasets:
        wanted = " or ".join(protocol.datasets)
        raise InputError(f"the protocol {name} is for --dataset {wanted}, found {dataset}")
    if "sift" in protocol.patterns:
        import_opencv()
    return protocol


def import_opencv() -> Any:
    """The module cv2."""
    return import_extra(
        "cv2", "protocols", "the patterns sift and orb", package="opencv-python-headless"
    )


def protocol_anchors(frame: Frame, pattern: str, seed: int) -> Anchors:
    """The anchors of a pattern on a frame; its random numbers depend on the seed, the frame's name
    and the pattern."""
    number = int(seeded_rng(seed, frame.name, "protocol", pattern).integers(2**31))
    depth = np.where(frame.mask, frame.depth_m, 0).astype(np.float32)
    sparse = sparse_map(
        depth, pattern, Draw.of(number), image=frame.image, given=frame.sparse_m,
        intrinsics=frame.intrinsics,
    )  # fmt: skip
    rows, columns = np.nonzero(sparse)
    if not len(rows):
        raise InputError(f"{frame.name}: the pattern {pattern} has no pixel with a known depth")
    return Anchors(columns, rows, sparse[rows, columns].astype(np.float64))


@dataclass(frozen=True, eq=False)
class Draw:
    """The two generators of the public code: torch chooses points, numpy makes their errors."""

    points: torch.Generator
    errors: np.random.RandomState

    @classmethod
    def of(cls, seed: int) -> Draw:
        """Generators that give what torch.manual_seed and numpy.random.seed lead to."""
        draw = cls(torch.Generator().manual_seed(seed), np.random.RandomState(seed))
        draw.errors.random_sample()  # the public code first draws one of a list of patterns
        return draw


def sparse_map(
    depth: Float32[np.ndarray, "h w"],
    pattern: str,
    draw: Draw,
    *,
    image: UInt8[np.ndarray, "h w 3"] | None = None,
    given: Float32[np.ndarray, "h w"] | None = None,
    intrinsics: Sequence[float] | None = None,
) -> Float32[np.ndarray, "h w"]:
    """Measured depths of a pattern on a map of true depth; 0 where there is none.

    points-N: N random known pixels; random-N: so many as N are of the whole image; noise-P: 2150
    with a share P replaced by random depths; shift-K: 2150 that are displaced by K pixels; sift and
    orb: keypoints; lidar-N: N lines of a virtual scanner; given, lines-N: the measurements that
    came with the frame, or N of 64 lines of them.
    """
    kind, _, amount = pattern.partition("-")
    match kind:
        case "points" | "random" | "noise" | "shift":
            return random_points(depth, kind, float(amount), draw)
        case "sift" | "orb":
            mask = keypoints(image, kind)
            if mask is None:
                draw.errors.random_sample()
                return random_points(depth, "random", INSTEAD_OF_KEYPOINTS, draw)
            return depth * mask
        case "lidar":
            return depth * scanner(depth.shape, int(amount))
    if given is None:
        raise InputError(f"the pattern {pattern} needs measurements that come with the frame")
    measured = np.nan_to_num(given)
    return measured if kind == "given" else scan_lines(measured, intrinsics, int(amount))


def random_points(
    depth: Float32[np.ndarray, "h w"], kind: str, amount: float, draw: Draw
) -> Float32[np.ndarray, "h w"]:
    """Random known pixels; see `sparse_map`."""
    known = np.flatnonzero(depth > KNOWN_M)
    count = int(amount) if kind in ("points", "random") else NOISE_POINTS
    if kind != "points":
        count = max(round(len(known) * count / depth.size), FEWEST_POINTS)
    order = torch.randperm(len(known), generator=draw.points).numpy()
    values = noisy(depth, amount, draw.errors) if kind == "noise" else depth
    sparse = np.zeros_like(depth)
    sparse.flat[known[order[:count]]] = values.flat[known[order[:count]]]
    if kind != "shift":
        return sparse
    # An error of the calibration displaces all points alike.
    angle = 2 * np.pi * draw.errors.random_sample()
    step = np.rint(amount * np.array([np.sin(angle), np.cos(angle)])).astype(int)
    rows, columns = np.nonzero(sparse)
    moved = np.stack([rows, columns]) + step[:, None]
    inside = ((moved >= 0) & (moved < np.array(depth.shape)[:, None])).all(axis=0)
    displaced = np.zeros_like(depth)
    displaced[tuple(moved[:, inside])] = sparse[rows, columns][inside]
    return displaced


def noisy(
    depth: Float32[np.ndarray, "h w"], share: float, rng: np.random.RandomState
) -> Float32[np.ndarray, "h w"]:
    """A share of all pixels with random depths between the 10th and the 90th percentile."""
    share = rng.uniform(share, share)  # drawn, because the public code may be given a range
    wrong = rng.binomial(n=1, p=share, size=depth.shape) == 1
    low, high = np.percentile(depth, 10), np.percentile(depth, 90)
    values = rng.uniform(low, high, size=depth.shape).astype(np.float32)
    return np.where(wrong, values, depth)


def keypoints(
    image: UInt8[np.ndarray, "h w 3"] | None, kind: str
) -> Bool[np.ndarray, "h w"] | None:
    """The pixels of keypoints; None for fewer than 20."""
    cv2 = import_opencv()
    if image is None:
        raise InputError(f"the pattern {kind} needs the image")
    if kind == "sift":
        detector = cv2.SIFT.create()
    else:
        detector = cv2.ORB.create(nfeatures=100_000, scoreType=cv2.ORB_FAST_SCORE)
    found = detector.detect(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))
    if len(found) < FEWEST_KEYPOINTS:
        return None
    mask = np.zeros(image.shape[:2], bool)
    places = np.array([[round(v), round(u)] for u, v in (point.pt for point in found)])
    mask[tuple(places.T)] = True
    return mask


def scanner(shape: tuple[int, ...], lines: int) -> Bool[np.ndarray, "h w"]:
    """Pixels that a virtual scanner at the camera hits; the focal length is the height."""
    height, width = shape
    pitch, yaw = np.meshgrid(
        np.linspace(-LIDAR_PITCH, LIDAR_PITCH, lines),
        np.linspace(-np.pi / 2.1, np.pi / 2.1, LIDAR_COLUMNS),
    )
    x, y = np.cos(pitch) * np.sin(yaw), np.sin(pitch)
    z = np.sqrt(1 - x**2 - y**2)
    u, v = (height * x + 0.5 * width * z) / (z + 1e-8), (height * y + 0.5 * height * z) / (z + 1e-8)
    columns, rows = np.round(u).astype(int).ravel(), np.round(v).astype(int).ravel()
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    mask = np.zeros((height, width), bool)
    mask[rows[inside], columns[inside]] = True
    return mask


def scan_lines(
    measured: Float32[np.ndarray, "h w"], intrinsics: Sequence[float] | None, lines: int
) -> Float32[np.ndarray, "h w"]:
    """The points of a scanner of 64 lines whose line, by its pitch, is one of those kept."""
    if lines >= 64:
        return measured
    if intrinsics is None:
        raise InputError("lines of a scanner need the camera's intrinsics")
    fx, fy, cx, cy = intrinsics
    rows, columns = np.nonzero(measured)
    if not len(rows):
        return measured
    z = measured[rows, columns].astype(np.float64)
    x, y = (columns - cx) / fx * z, (rows - cy) / fy * z
    pitch = np.arcsin(y / np.sqrt(x**2 + y**2 + z**2))
    interval = (pitch.max() - pitch.min()) / 64
    line = np.round((pitch - pitch.min()) / interval) if interval > 0 else np.zeros(len(pitch))
    kept = line % (64 / lines) == 0
    sparse = np.zeros_like(measured)
    sparse[rows[kept], columns[kept]] = measured[rows[kept], columns[kept]]
    return sparse
