import json

import numpy as np
import pytest
from PIL import Image

from scalefield.datasets import Folder, open_dataset
from scalefield.errors import InputError


@pytest.fixture
def root(tmp_path):
    """Two recordings of one room, and a street of two scenes."""
    meta = {
        "home/day": [("a", "room"), ("b", "room")],
        "home/night": [("c", "room")],
        "street/walk": [("d", "corner"), ("e", "park")],
    }
    for source, frames in meta.items():
        folder = tmp_path / source
        for sub in ("rgb", "depth", "label"):
            (folder / sub).mkdir(parents=True)
        for name, _ in frames:
            Image.fromarray(np.zeros((3, 5, 3), np.uint8)).save(folder / "rgb" / f"{name}.png")
            depth = np.arange(15, dtype=np.uint16).reshape(3, 5) * 500
            Image.fromarray(depth).save(folder / "depth" / f"{name}.png")
        about = [{"name": n, "scene": s, "K": [5, 5, 2, 1]} for n, s in frames]
        (folder / "meta.json").write_text(
            json.dumps({"depth_scale_per_metre": 1000, "frames": about})
        )
    labels = np.tile(np.array([1, 1, 2, 2, 2], np.uint8), (3, 1))
    Image.fromarray(labels).save(tmp_path / "street" / "walk" / "label" / "d.png")
    (tmp_path / "test.txt").write_text("home/day/a\nhome/day/b\nhome/night/c\n")
    (tmp_path / "val.txt").write_text("street/walk/d\nstreet/walk/e\n")
    return tmp_path


RANGES = {"street": (0.1, 80.0), "*": (0.1, 5.0)}


def test_open_dataset_frames_carry_what_their_source_declares(root) -> None:
    dataset = open_dataset("folder", root, RANGES)
    frame = dataset.load("home/day/a")
    expected = np.arange(15).reshape(3, 5) * 0.5
    expected[0, 0] = np.nan
    np.testing.assert_allclose(frame.depth_m, expected)
    np.testing.assert_array_equal(frame.mask, (expected > 0) & (expected <= 5))
    assert frame.intrinsics == (5, 5, 2, 1)
    assert frame.labels is None
    assert dataset.load("street/walk/d").depth_range_m == (0.1, 80.0)
    assert dataset.load("street/walk/d").labels[0].tolist() == [1, 1, 2, 2, 2]


def test_folder_groups_are_places(root) -> None:
    dataset = Folder(root, RANGES)
    groups = {name: dataset.load(name).group for name in dataset.names("all")}
    assert groups == {
        "street/walk/d": "street/walk",
        "street/walk/e": "street/walk",
        "home/day/a": "room",
        "home/day/b": "room",
        "home/night/c": "room",
    }
    assert dataset.load("home/day/a").scene != dataset.load("home/night/c").scene


def test_folder_range_is_declared_and_never_guessed(root) -> None:
    with pytest.raises(InputError, match=r"home/day: no depth range .*--range home="):
        Folder(root).load("home/day/a")
    assert Folder(root, {"home": (1.0, 2.0)}).load("home/day/a").depth_range_m == (1.0, 2.0)
    ranges = {"home": (1.0, 2.0), "home/day": (1.0, 3.0)}
    assert Folder(root, ranges).load("home/day/a").depth_range_m == (1.0, 3.0)
    path = root / "home" / "day" / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {"depth_range_m": [0.5, 4]}))
    assert Folder(root, RANGES).load("home/day/a").depth_range_m == (0.5, 4.0)
    path.write_text(json.dumps(meta | {"depth_range_m": [4, 0.5]}))
    with pytest.raises(InputError, match="must grow from above 0"):
        Folder(root).load("home/day/a")


def test_folder_sky_label_is_masked(root) -> None:
    path = root / "street" / "walk" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sky_label": 2}))
    mask = Folder(root, RANGES).load("street/walk/d").mask
    assert not mask[:, 2:].any()
    assert mask[1:, :2].all()


def test_folder_fingerprint_follows_the_data(root) -> None:
    first = Folder(root, RANGES).load("home/day/a").sha256()
    assert first == Folder(root, RANGES).load("home/day/a").sha256()
    assert first != Folder(root, {"*": (0.1, 6.0)}).load("home/day/a").sha256()
    Image.fromarray(np.ones((3, 5, 3), np.uint8)).save(root / "home" / "day" / "rgb" / "a.png")
    assert first != Folder(root, RANGES).load("home/day/a").sha256()


def test_open_dataset_errors_name_the_file(root) -> None:
    dataset = open_dataset("folder", root, RANGES)
    with pytest.raises(InputError, match=r"train\.txt: no such file"):
        dataset.names("train")
    with pytest.raises(InputError, match="no split 'dev'; there are train, val, test and all"):
        dataset.names("dev")
    (root / "home" / "day" / "depth" / "b.png").unlink()
    with pytest.raises(InputError, match=r"depth/b\.png: no such file"):
        dataset.load("home/day/b")
    with pytest.raises(InputError, match=r"rgb/z\.jpg: no such file"):
        dataset.load("home/day/z")
    (root / "home" / "night" / "meta.json").write_text('{"frames": []}')
    with pytest.raises(InputError, match="wanted JSON with depth_scale_per_metre"):
        dataset.load("home/night/c")
    with pytest.raises(InputError, match="no dataset 'nyuv2'; there are kitti, urbansyn"):
        open_dataset("nyuv2", root)
    with pytest.raises(InputError, match="drop --range"):
        open_dataset("kitti", root, RANGES)


def test_open_dataset_real_frames(shared_data) -> None:
    dataset = open_dataset("folder", shared_data / "data", {"kitti": (0.1, 80.0), "*": (0.1, 10.0)})
    counts = {split: len(dataset.names(split)) for split in ("train", "val", "test", "all")}
    assert counts == {"train": 782, "val": 124, "test": 213, "all": 1119}
    groups = {dataset.load(name).group for name in dataset.names("test")[::8]}
    assert groups == {
        "2011_09_30_drive_0016",
        "freiburg1_desk",
        "freiburg1_xyz",
        "icl_livingroom1",
        "taskonomy/sample_model_1",
    }
