"""Frames of video files, decoded by PyAV (the extra `video`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from scalefield.errors import InputError, import_extra, one_line
from scalefield.io.disk import check_memory

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
"""Suffixes of video files."""
FRAME_WORK = 32
"""Bytes for each pixel of a frame: decoders keep up to 16 earlier frames."""


@dataclass(frozen=True, eq=False)
class VideoFrame:
    """One frame of a video."""

    index: int
    """Number of the frame, counted from 0."""
    image: UInt8[np.ndarray, "h w 3"]
    """The frame in RGB, upright as players show it."""


def is_video(path: str | Path) -> bool:
    """Whether a file is a video by its suffix."""
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def count_frames(path: Path) -> int | None:
    """The number of frames that the file declares; None if it declares none."""
    av = import_av()
    try:
        with av.open(str(path), metadata_errors="replace") as container:
            return container.streams.video[0].frames or None
    except (av.FFmpegError, IndexError):
        return None


def read_frames(path: Path, *, every: int = 1) -> Iterator[VideoFrame]:
    """Every `every`-th frame of the first video stream, rotated as its metadata state."""
    av = import_av()
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        with av.open(str(path), metadata_errors="replace") as container:
            if not container.streams.video:
                raise InputError(f"{path}: has no video stream")
            stream = container.streams.video[0]
            codec = stream.codec_context
            if codec is None:
                raise InputError(f"{path}: its video has no codec that can be read")
            size = (codec.width, codec.height)
            needed = size[0] * size[1] * FRAME_WORK
            check_memory(f"frames of {size[0]}×{size[1]} pixels", needed, path.stat().st_size)
            for index, frame in enumerate(container.decode(stream)):
                if index % every == 0:
                    image = frame.to_ndarray(format="rgb24")
                    turned = np.rot90(image, round(getattr(frame, "rotation", 0) / 90))
                    yield VideoFrame(index, np.ascontiguousarray(turned))
    except InputError:
        raise
    except (av.FFmpegError, ValueError) as e:
        raise InputError(f"{path}: not a readable video ({one_line(e)})") from None


def import_av() -> Any:
    """PyAV, or the command that installs it."""
    return import_extra("av", "video", "reading videos")
