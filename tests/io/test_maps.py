"""Maps on disk: exact round trips, and errors of one sentence for ambiguous files."""

import io
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from scalefield.errors import InputError, MissingExtra
from scalefield.io import read_map, write_map

MAP = np.array([[1.5, np.nan, np.inf], [0.25, 2.0, -3.0]], np.float32)


@pytest.mark.parametrize("suffix", [".npy", ".pfm", ".exr"])
def test_write_map_round_trip(tmp_path, suffix):
    if suffix == ".exr":
        pytest.importorskip("OpenEXR")
    write_map(tmp_path / f"map{suffix}", MAP)
    found = read_map(tmp_path / f"map{suffix}")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, MAP)
    np.testing.assert_array_equal(read_map(tmp_path / f"map{suffix}", scale=2.0), 2 * MAP)


def test_read_map_pfm_known_bytes(tmp_path):
    """Rows run from the bottom up, and a positive scale means big-endian."""
    path = tmp_path / "map.pfm"
    path.write_bytes(b"Pf\n2 2\n1.0\n" + np.array([3, 4, 1, 2], ">f4").tobytes())
    np.testing.assert_array_equal(read_map(path), [[1, 2], [3, 4]])


def test_read_map_png_zero_is_unknown(tmp_path):
    values = np.array([[0, 1], [256, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "map.png")
    found = read_map(tmp_path / "map.png", scale=1 / 256)
    np.testing.assert_array_equal(found, np.float32([[np.nan, 1 / 256], [1, 65535 / 256]]))


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float16", "float32"),
        ("float32", "float32"),
        ("uint16", "float32"),
        ("int32", "float64"),
        ("float64", "float64"),
        (">f8", "float64"),
    ],
)
def test_read_map_keeps_every_digit(tmp_path, dtype, wanted):
    values = np.array([[1, 2, 60001 if dtype != "float16" else 2047]], dtype)
    np.save(tmp_path / "map.npy", values)
    found = read_map(tmp_path / "map.npy")
    assert found.dtype == np.dtype(wanted)
    np.testing.assert_array_equal(found, values)


@given(st.floats(1e-3, 1e3), st.sampled_from([(1, 3, 2), (3, 2, 1), (3, 2)]))
def test_read_map_scale_and_unit_axes(tmp_path_factory, scale, shape):
    path = tmp_path_factory.mktemp("maps") / "map.npy"
    values = np.linspace(1, 2, 6, dtype=np.float32)
    np.save(path, values.reshape(shape))
    np.testing.assert_allclose(read_map(path, scale=scale), values.reshape(3, 2) * scale, rtol=1e-6)


def test_read_map_several_arrays_are_named(tmp_path):
    path = tmp_path / "maps.npz"
    np.savez(path, depth=MAP, confidence=2 * MAP)
    with pytest.raises(InputError, match="choose one of them: confidence, depth"):
        read_map(path)
    with pytest.raises(InputError, match="nothing called 'z'"):
        read_map(path, key="z")
    np.testing.assert_array_equal(read_map(path, key="depth"), MAP)
    np.savez(path, only=MAP)
    np.testing.assert_array_equal(read_map(path), MAP)


def test_read_map_exr_channels_are_named(tmp_path):
    openexr = pytest.importorskip("OpenEXR")
    path = tmp_path / "map.exr"
    with openexr.File({}, {"RGB": np.stack([MAP] * 3, -1).astype(np.float16)}) as file:
        file.write(str(path))
    with pytest.raises(InputError, match="choose one of them: B, G, R"):
        read_map(path)
    np.testing.assert_array_equal(read_map(path, key="R"), MAP)


def _npy(values):
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def _png(values):
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def test_read_map_takes_three_equal_channels_of_a_disparity_picture_as_one(tmp_path):
    grey = np.array([[0, 1], [128, 255]], np.uint8)
    (tmp_path / "grey.png").write_bytes(_png(np.stack([grey] * 3, axis=-1)))
    np.testing.assert_array_equal(read_map(tmp_path / "grey.png", zero_is_far=True), grey)
    with pytest.raises(InputError, match="mode RGB with 8 bits"):
        read_map(tmp_path / "grey.png")
    (tmp_path / "colour.png").write_bytes(_png(np.stack([grey, grey, 255 - grey], axis=-1)))
    with pytest.raises(InputError, match="mode RGB with 8 bits"):
        read_map(tmp_path / "colour.png", zero_is_far=True)


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 1, 2, 3), (2, 3, 1), (1, 2, 3, 1)])
def test_read_map_drops_axes_of_batch_and_channel(tmp_path, shape):
    np.save(tmp_path / "map.npy", MAP.reshape(shape))
    np.testing.assert_array_equal(read_map(tmp_path / "map.npy"), MAP)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.npy", _npy(np.zeros((2, 2), np.uint8)), "8-bit depth"),
        ("a.png", _png(np.zeros((2, 2), np.uint8)), "8 bits"),
        ("a.npy", _npy(np.zeros((2, 2), complex)), "real numbers, found complex128"),
        ("a.npy", _npy(np.zeros((2, 2), bool)), "real numbers, found bool"),
        ("a.npy", _npy(np.zeros((2, 2, 3))), r"found \(2, 2, 3\)"),
        ("a.npy", _npy(np.zeros((0, 2))), r"found \(0, 2\)"),
        ("a.npy", _npy(np.array([{}], object)), "not a readable NPY"),
        ("a.npy", b"", "not a readable NPY"),
        ("a.npz", b"PK\x03\x04oops", "not a readable NPZ"),
        ("a.pfm", b"Pf\n2 2\n-1\n1234", "16 bytes of pixels, found 4"),
        ("a.pfm", b"PF\n1 1\n-1\n" + bytes(12), "one-channel"),
        ("a.pfm", b"Pf\n", "not a readable PFM"),
        ("a.pfm", b"Pf\n1 1\n0\n1234", "not a readable PFM"),
        ("a.pfm", b"Pf\n1 1\nnan\n1234", "not a readable PFM"),
        ("a.tif", b"", "not '.tif'"),
    ],
)
def test_read_map_doubtful_files_are_refused(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_map(tmp_path / name)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_read_map_scale_is_positive(tmp_path, scale):
    with pytest.raises(InputError, match="above zero"):
        read_map(tmp_path / "map.npy", scale=scale)


@pytest.mark.parametrize("suffix", ["npy", "npz", "png", "exr", "pfm"])
def test_read_map_absent_file(tmp_path, suffix):
    if suffix == "exr":
        pytest.importorskip("OpenEXR")
    with pytest.raises(InputError, match="no such file"):
        read_map(tmp_path / f"absent.{suffix}")


def test_read_map_broken_exr(tmp_path):
    pytest.importorskip("OpenEXR")
    (tmp_path / "a.exr").write_bytes(b"v/1\x01 and then nothing")
    with pytest.raises(InputError, match="not a readable EXR"):
        read_map(tmp_path / "a.exr")


def test_read_map_exr_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(MissingExtra, match=r"pip install 'scalefield\[exr\]'"):
        read_map(tmp_path / "a.exr")


def test_read_map_ignores_objects_beside_a_map(tmp_path):
    """Estimators' scripts keep a dict of settings in the same file."""
    path = tmp_path / "maps.npz"
    depth = np.ones((2, 3), np.float32)
    np.savez(path, depth=depth, settings=np.array({"a": 1}, dtype=object))
    np.testing.assert_array_equal(read_map(path, key="depth"), depth)
    with pytest.raises(InputError, match="holds 2 arrays; choose one of them: depth, settings"):
        read_map(path)
    with pytest.raises(InputError, match="pickled Python objects, which may be programs"):
        read_map(path, key="settings")
