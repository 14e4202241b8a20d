"""Maps of the user in place of an estimator's."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield.errors import InputError
from scalefield.io import write_map
from scalefield.mde.own_maps import OwnMaps, RelativeDepth

SHAPE = (6, 8)
IMAGE = np.zeros((*SHAPE, 3), np.uint8)


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 200, SHAPE).astype(np.float32)


def write(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".npz":
            np.savez(path, **{path.stem: array, "other": array + 1})
        case ".png":
            Image.fromarray(array.astype(np.uint16)).save(path)
        case _:
            write_map(path, array)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".png", ".pfm", ".exr"])
def test_own_maps_every_format_gives_the_same_output(tmp_path, suffix):
    if suffix == ".exr":
        pytest.importorskip("OpenEXR")
    write(tmp_path / f"sub/a{suffix}", values())
    output = OwnMaps(tmp_path, "depth")(IMAGE, "sub/a")
    np.testing.assert_array_equal(output.prediction.numpy(), values())
    assert (output.kind, output.affine, output.model) == ("depth", False, "array")
    np.testing.assert_array_equal(output.image.numpy(), IMAGE)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.npy", "a"),
        ("a.npy", "room/a"),  # one flat folder of maps
        ("room/a.npy", "a"),  # or one flat folder of images
        ("a.jpg.npy", "a"),
        ("1305031453.359684.npy", "1305031453.359684"),
        ("12.npy", "000012"),
        ("000012.npy", "12"),
    ],
)
def test_own_maps_find_the_file_of_an_image(tmp_path, file, name):
    path = write(tmp_path / file, values())
    write(tmp_path / "others/b.npy", values(1))
    assert OwnMaps(tmp_path, "depth").find(name) == path


def test_own_maps_find_prefers_the_path_and_refuses_a_choice(tmp_path):
    for name in ("a.npy", "x/a.npy", "y/b.npy", "z/b.npy", "c.npy", "c.png"):
        write(tmp_path / name, values())
    maps = OwnMaps(tmp_path, "depth")
    assert maps.find("a") == tmp_path / "a.npy"
    assert maps.find("x/a") == tmp_path / "x/a.npy"
    for name in ("b", "c"):
        with pytest.raises(InputError, match=f"could both be the map of {name}"):
            maps.find(name)
    with pytest.raises(InputError, match="no map for d"):
        maps.require(["d", "e"])
    maps.require(["d", "a"])


def test_own_maps_zeros_of_disparity_are_far_if_its_shift_is_unknown(tmp_path):
    array = values()
    array[0, 0] = 0
    write(tmp_path / "a.png", array)
    valid = {
        (kind, affine): bool(OwnMaps(tmp_path, kind, affine)(IMAGE, "a").valid.all())
        for kind, affine in (("disparity", None), ("disparity", False), ("depth", None))
    }
    assert list(valid.values()) == [True, False, False]


def test_own_maps_of_another_size_need_resize_and_errors_name_the_file(tmp_path):
    write(tmp_path / "a.npy", values()[::2, ::2])
    with pytest.raises(InputError, match=r"a\.npy: the depth map is 4×3.*--resize"):
        OwnMaps(tmp_path, "depth")(IMAGE, "a")
    assert OwnMaps(tmp_path, "depth", resize=True)(IMAGE, "a").shape == SHAPE


def test_relative_depth_is_the_same_one_by_one_in_batches_and_after_pickling(tmp_path):
    for i, name in enumerate("ab"):
        write(tmp_path / f"{name}.npy", values(i))
    relative = RelativeDepth(OwnMaps(tmp_path, "disparity"), affine=False).load()
    batch = pickle.loads(pickle.dumps(relative)).batch([IMAGE, IMAGE], ["a", "b"])
    for i, (name, output) in enumerate(zip("ab", batch, strict=True)):
        np.testing.assert_array_equal(output.prediction.numpy(), values(i))
        assert torch.equal(relative(IMAGE, name).prediction, output.prediction)
        assert not output.affine
    with pytest.raises(InputError, match="gives disparity, but kind=depth"):
        RelativeDepth(OwnMaps(tmp_path, "disparity"), kind="depth")(IMAGE, "a")
