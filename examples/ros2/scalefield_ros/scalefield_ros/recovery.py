"""The recovery of the newest frame. Needs no ROS."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar

import numpy as np

from scalefield import Anchors, Camera, InputError, Stream
from scalefield.geometry.point_clouds import anchors_from_points
from scalefield.mde import MDE

T = TypeVar("T")


class Newest(Generic[T]):
    """A mailbox with room for one: what was not taken is replaced, so that no queue can grow while
    a frame is being worked on."""

    def __init__(self) -> None:
        self.condition, self.content, self.closed = Condition(), None, False

    def put(self, content: T) -> None:
        """Replace the content."""
        with self.condition:
            self.content = content
            self.condition.notify()

    def take(self) -> T | None:
        """The content, as soon as there is one; None once the mailbox is closed."""
        with self.condition:
            self.condition.wait_for(lambda: self.closed or self.content is not None)
            content, self.content = self.content, None
            return None if self.closed else content

    def close(self) -> None:
        """End every `take`."""
        with self.condition:
            self.closed = True
            self.condition.notify_all()


@dataclass
class FrameRecovery:
    """Depth and its standard deviation in metres for the successive frames of one camera."""

    mde: MDE
    stream: Stream = field(default_factory=Stream)
    """Keeps the scale from frame to frame, so that a frame may come without measurements."""

    def from_points(
        self,
        image: np.ndarray,
        points_m: np.ndarray,
        camera: Camera,
        camera_from_points: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The frame's depth and its standard deviation, from points in their sensor's frame."""
        shape = image.shape[0], image.shape[1]
        anchors = anchors_from_points(
            points_m, camera, shape, camera_from_points=camera_from_points
        )
        return self(image, anchors)

    def from_depth(self, image: np.ndarray, depth_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frame's depth and its standard deviation, from a sparse depth image in register."""
        if depth_m.shape != image.shape[:2]:
            found, wanted = (f"{s[1]}×{s[0]}" for s in (depth_m.shape, image.shape))
            raise InputError(f"the depth image is {found} and the photograph {wanted}")
        return self(image, Anchors.from_map(depth_m))

    def __call__(self, image: np.ndarray, anchors: Anchors) -> tuple[np.ndarray, np.ndarray]:
        """The frame's depth and its standard deviation, both float32 in metres."""
        recovery = self.stream(self.mde(image), anchors).numpy()
        assert recovery.std_log is not None  # `field` has one
        depth_m = recovery.depth_m.astype(np.float32)
        return depth_m, (depth_m * recovery.std_log).astype(np.float32)
