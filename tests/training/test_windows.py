"""Windows: the same world seen through other frames."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.training.windows import Windows, clipped, mirrored, recoloured

HEIGHT, WIDTH = 48, 96
CAMERA = (50.0, 50.0, 40.0, 20.0)


@dataclass(frozen=True)
class One:
    """A dataset of one frame whose depth tells each pixel's place."""

    upper_unknown: bool = False
    name: str = "one"

    def names(self, split: str) -> list[str]:
        return ["a/b"] if split == "train" else []

    def load(self, name: str) -> Frame:
        v, u = np.mgrid[0:HEIGHT, 0:WIDTH]
        depth_m = (1 + u + v / 100).astype(np.float32)
        if self.upper_unknown:
            depth_m[: HEIGHT // 2] = np.nan
        image = np.stack([2 * u, 2 * v, u + v], axis=-1).astype(np.uint8)
        return Frame(
            name, "g", "s", image, depth_m, (0.1, 200.0), intrinsics=(50.0, 50.0, 40.0, 20.0)
        )


def test_windows_are_a_dataset_that_its_names_decide() -> None:
    windows = Windows(One(), 3)
    assert isinstance(windows, Dataset)
    assert windows.names("train") == ["a/b@0", "a/b@1", "a/b@2"]
    assert windows.names("val") == []
    first, again, other = (windows.load(n) for n in ("a/b@0", "a/b@0", "a/b@1"))
    assert first.sha256() == again.sha256() != other.sha256()
    assert (first.name, first.group, first.scene) == ("a/b@0", "g", "s")
    assert Windows(One(), 1, seed=1).load("a/b@0").sha256() != first.sha256()


def test_every_pixel_keeps_the_ray_that_it_was_seen_along() -> None:
    whole = One().load("a/b")
    for name in Windows(One(), 20).names("train"):
        window = Windows(One(), 20).load(name)
        height, width = window.mask.shape
        u_whole = np.floor(window.depth_m[0]) - 1
        v_whole = np.round(100 * (window.depth_m[:, 0] % 1))
        _, _, cx, cy = window.intrinsics
        turn = np.sign(u_whole[-1] - u_whole[0])
        np.testing.assert_allclose(turn * (np.arange(width) - cx), u_whole - 40)
        np.testing.assert_allclose(np.arange(height) - cy, v_whole - 20)
        assert width <= WIDTH
        assert height <= HEIGHT
        assert window.image.shape == (height, width, 3)
        assert torch.from_numpy(window.depth_m).shape == (height, width)
    assert whole.mask.all()


def test_windows_come_in_few_shapes_and_several_sizes() -> None:
    shapes = [Windows(One(), 60).load(f"a/b@{i}").mask.shape for i in range(60)]
    aspects = {round(w / h, 1) for h, w in shapes}
    assert {1.0, 2.0} <= aspects
    assert len({w for _, w in shapes}) > 20


def test_windows_look_where_depth_is_known() -> None:
    windows = Windows(One(upper_unknown=True), 40)
    shares = [windows.load(name).mask.mean() for name in windows.names("train")]
    assert min(shares) >= 0.25


def test_mirroring_twice_changes_nothing() -> None:
    frame = clipped(One().load("a/b"), np.s_[3:20, 5:50])
    assert mirrored(mirrored(frame)).sha256() == frame.sha256()
    assert mirrored(mirrored(frame)).intrinsics == frame.intrinsics


def test_colours_change_and_stay_ordered() -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    for seed in range(10):
        seen = recoloured(ramp, np.random.default_rng(seed)).astype(int)
        assert (np.diff(seen, axis=1) >= 0).all()
        assert not np.array_equal(seen, ramp)


def test_a_name_that_is_no_window_is_refused() -> None:
    with pytest.raises(InputError, match="no window"):
        Windows(One(), 1).load("a/b")
