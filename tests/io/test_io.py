"""Files: atomic writes, units in the file, errors of one sentence."""

import json
import os
import stat
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from scalefield import InputError, io


def test_write_atomic_replaces_whole_files_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b.bin"
    io.write_atomic(path, b"first")
    io.write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in path.parent.iterdir()] == ["b.bin"]  # no temporary file stays
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_write_atomic_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    io.write_atomic(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        io.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_writers_flush_the_folder_after_the_new_name_is_there(tmp_path, monkeypatch):
    synced = []

    def fsync(handle: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((target, target.is_dir() and sorted(os.listdir(target))))

    if not Path("/proc/self/fd").exists():
        pytest.skip("the paths of handles are read from /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    io.write_atomic(tmp_path / "a.bin", b"new")
    assert synced[-1] == (tmp_path, ["a.bin"])
    with io.write_folder(tmp_path / "out") as folder:
        (folder / "b.bin").write_bytes(b"new")
    assert synced[-2] == (tmp_path / "out", ["b.bin"])


def test_write_atomic_does_not_touch_the_umask_of_other_threads(tmp_path, monkeypatch):
    former = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        io.write_atomic(tmp_path / "a.bin", b"new")
    finally:
        monkeypatch.undo()
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == 0o640


def test_readers_refuse_a_pipe_and_do_not_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for read in (io.read_image, io.read_map, io.disk.read_text):
        with pytest.raises(InputError, match=r"pipe.png: is a device or a pipe; give a file"):
            read(tmp_path / "pipe.png")


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127])
def test_write_atomic_accepts_the_longest_names_of_the_system(tmp_path, name):
    io.write_atomic(tmp_path / name, b"a")
    assert (tmp_path / name).read_bytes() == b"a"
    with io.write_folder(tmp_path / "f" / name) as folder:
        (folder / "b").write_bytes(b"b")
    assert (tmp_path / "f" / name / "b").read_bytes() == b"b"


def test_write_atomic_names_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        io.write_atomic(tmp_path / "file" / "a.bin", b"")
    with (
        pytest.raises(InputError, match="cannot be written"),
        io.write_folder(tmp_path / "file") as folder,
    ):
        (folder / "a.bin").write_bytes(b"")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_remove_temporary_takes_what_killed_writers_left_and_nothing_else(tmp_path):
    names = ("x.json", ".hidden", ".x.json.orig", "x.abcd1234", ".x.json.12345678.gz")
    kept = [tmp_path / "a" / name for name in names]
    for file in kept:
        io.write_atomic(file, b"1")
    prefix = io.disk._hidden(tmp_path / "b.bin")
    for _ in range(20):
        os.close(tempfile.mkstemp(dir=tmp_path / "a", prefix=prefix)[0])
    (Path(tempfile.mkdtemp(dir=tmp_path, prefix=prefix)) / "half").touch()
    io.remove_temporary(tmp_path)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    io.remove_temporary(tmp_path / "nothing here")


def test_write_folder_writes_all_files_or_none(tmp_path):
    out = tmp_path / "new" / "out"

    def break_off() -> None:
        with io.write_folder(out) as folder:
            (folder / "a.txt").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert list(out.parent.iterdir()) == []
    with io.write_folder(out) as folder:
        (folder / "a.txt").write_text("new")
        assert not out.exists()
    assert (out / "a.txt").read_text() == "new"
    (out / "mine.txt").write_text("kept")
    with io.write_folder(out) as folder:
        (folder / "a.txt").write_text("newer")
    assert {p.name: p.read_text() for p in out.iterdir()} == {"a.txt": "newer", "mine.txt": "kept"}
    assert [p.name for p in out.parent.iterdir()] == ["out"]


@given(
    values=hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6)),
    units=st.sampled_from([1000.0, 256.0, 5000.0, 1234.56789]),
)
def test_depth_png_round_trip_needs_no_units(tmp_path_factory, values, units):
    path = tmp_path_factory.mktemp("png") / "depth.png"
    depth_m = np.where(values > 0, values / units, np.nan)
    assert io.write_depth_png(path, depth_m, units) == 0
    np.testing.assert_array_equal(io.read_depth_png(path), depth_m)


def test_write_depth_png_counts_overflowed_pixels(tmp_path):
    depth_m = np.array([[1.0, 65.5351, 65.5356], [np.nan, np.inf, -2.0], [80.0, 1e9, 0.0]])
    assert io.write_depth_png(tmp_path / "d.png", depth_m, 1000.0) == 3
    known = io.read_depth_png(tmp_path / "d.png")
    np.testing.assert_array_equal(known[0], [1.0, 65.535, np.nan])
    assert np.isnan(known[1:]).all()
    with Image.open(tmp_path / "d.png") as image:  # other programs find the scale too
        assert image.mode == "I;16"
        assert float(image.text["scalefield:units_per_metre"]) == 1000


@pytest.mark.parametrize("units", [0.0, -1.0, float("nan"), float("inf")])
def test_read_depth_png_refuses_impossible_units(tmp_path, units):
    io.write_depth_png(tmp_path / "d.png", np.ones((2, 2)), 1000.0)
    with pytest.raises(InputError, match="units per metre must be above zero"):
        io.read_depth_png(tmp_path / "d.png", units_per_metre=units)


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1", "LA", "RGBA"])
def test_read_depth_png_refuses_eight_bits(tmp_path, mode):
    Image.new(mode, (3, 2)).save(tmp_path / "d.png")
    with pytest.raises(InputError, match=f"found mode {mode} with 8 bits a channel"):
        io.read_depth_png(tmp_path / "d.png", units_per_metre=1000.0)


def test_read_image_is_upright_rgb(tmp_path):
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0] = (200, 10, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90° clockwise to see it upright
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    upright = io.read_image(tmp_path / "turned.png")
    np.testing.assert_array_equal(upright, np.rot90(pixels, k=-1))
    Image.new("LA", (3, 2), (7, 255)).save(tmp_path / "grey.png")
    assert io.read_image(tmp_path / "grey.png").tolist() == [[[7, 7, 7]] * 3] * 2


def test_read_image_names_the_problem_of_unreadable_and_16_bit_images(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8 cut off")
    with pytest.raises(InputError, match=r"a\.jpg: not a readable image"):
        io.read_image(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="no such file"):
        io.read_image(tmp_path / "b.jpg")
    with pytest.raises(InputError, match="cannot be read"):
        io.read_image(tmp_path)
    io.write_depth_png(tmp_path / "d.png", np.ones((2, 2)), 1000.0)
    with pytest.raises(InputError, match=r"d\.png: .*grey image of 16 bits must use"):
        io.read_image(tmp_path / "d.png")


def test_read_labels_of_png_palette_and_npy_are_integers(tmp_path):
    labels = np.array([[0, 1, 255], [7, 7, 2]], np.uint8)
    Image.fromarray(labels).save(tmp_path / "a.png")
    palette = Image.fromarray(labels).convert("P")
    palette.save(tmp_path / "p.png")
    np.save(tmp_path / "a.npy", labels.astype(np.int32) * 1000)
    np.testing.assert_array_equal(io.read_labels(tmp_path / "a.png"), labels)
    assert len(np.unique(io.read_labels(tmp_path / "p.png"))) == len(np.unique(labels))
    np.testing.assert_array_equal(io.read_labels(tmp_path / "a.npy"), labels * np.int64(1000))
    np.save(tmp_path / "f.npy", np.ones((2, 3)))
    Image.new("RGB", (3, 2)).save(tmp_path / "rgb.png")
    for name in ("f.npy", "rgb.png"):
        with pytest.raises(InputError, match="labels must be integers of shape"):
            io.read_labels(tmp_path / name)
    (tmp_path / "bad.png").write_bytes(b"no")
    with pytest.raises(InputError, match="not a readable image"):
        io.read_labels(tmp_path / "bad.png")


def test_write_json_refuses_nan(tmp_path):
    io.write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": 1, "a": [1.5, None]}
    with pytest.raises(ValueError, match="JSON compliant"):
        io.write_json(tmp_path / "b.json", {"a": float("nan")})
    assert not (tmp_path / "b.json").exists()


@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=3, max_side=3),
    )
)
def test_npz_round_trip(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    io.write_npz(path, first=array, second=np.zeros(2))
    back = io.read_npz(path, required=("first",), optional=("second", "third"))
    assert set(back) == {"first", "second"}
    np.testing.assert_array_equal(back["first"], array)
    assert back["first"].dtype == array.dtype


def test_read_npy_of_a_short_file_allocates_nothing(tmp_path):
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    (tmp_path / "bomb.npy").write_bytes(buffer.getvalue() + bytes(80))
    with pytest.raises(InputError, match=r"float64 of shape \(1000000, 1000000\) in 80 bytes"):
        io.read_map(tmp_path / "bomb.npy")


def test_read_npz_refuses_to_unpack_too_much(tmp_path, monkeypatch):
    io.write_npz(tmp_path / "bomb.npz", depth=np.zeros((100, 100)))
    monkeypatch.setattr("scalefield.io.disk.MEMORY_ALWAYS", 80_000)
    with pytest.raises(InputError, match=r"its arrays in 3.. bytes need 0 MB of memory"):
        io.read_map(tmp_path / "bomb.npz")


def test_read_npz_of_little_compression_may_be_large(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).random((100, 100))
    io.write_npz(tmp_path / "whole.npz", depth=noise)
    monkeypatch.setattr("scalefield.io.disk.MEMORY_ALWAYS", 1)
    np.testing.assert_array_equal(io.read_map(tmp_path / "whole.npz"), noise)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/dev/zero", "^/dev/zero: is a device or a pipe; give a file"),
        ("folder.png", "^folder.png: cannot be read"),
        ("circle.png", "^circle.png: cannot be read"),
        ("nowhere.png", "^nowhere.png: no such file"),
        ("a.eps", "^a.eps: not a readable image .[0-9]+ bytes that are none of JPEG, PNG"),
        ("empty.png", "^empty.png: not a readable image .0 bytes that are none of JPEG, PNG"),
    ],
)
def test_read_image_names_the_problem_once_and_without_addresses(
    tmp_path, monkeypatch, path, sentence
):
    monkeypatch.chdir(tmp_path)
    Path("folder.png").mkdir()
    Path("circle.png").symlink_to("circle.png")
    Image.new("RGB", (8, 6)).save("a.eps")  # Pillow would start Ghostscript
    Path("empty.png").touch()
    with pytest.raises(InputError, match=sentence):
        io.read_image(path)


def test_read_exr_of_a_folder_names_the_problem(tmp_path):
    pytest.importorskip("OpenEXR")
    with pytest.raises(InputError, match="cannot be read"):
        io.read_map(folder_at(tmp_path / "a.exr"))


def test_read_exr_of_a_damaged_file_hides_the_messages_of_openexr(tmp_path, capfd):
    pytest.importorskip("OpenEXR")
    path = tmp_path / "a.exr"
    io.write_map(path, np.linspace(1, 2, 48 * 64, dtype=np.float32).reshape(48, 64))
    whole = path.read_bytes()
    for damaged in (whole[:200], whole[:-40], whole[:600] + bytes(40) + whole[640:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a.exr: not a readable EXR file \((Unable|Warning)"):
            io.read_map(path)
    assert capfd.readouterr() == ("", "")


def folder_at(path: Path) -> Path:
    path.mkdir()
    return path


def test_spare_inputs_refuses_to_overwrite_inputs(tmp_path):
    photo, link = tmp_path / "depth.png", tmp_path / "link.png"
    photo.write_bytes(b"")
    link.symlink_to(photo)
    io.spare_inputs([tmp_path / "new.png"], [photo, None])
    for read in (photo, link):
        with pytest.raises(InputError, match=r"depth.png is an input and would be overwritten"):
            io.spare_inputs([tmp_path / "new.png", photo], [None, read])


def test_files_below_lists_every_file_or_gives_the_reason(tmp_path, monkeypatch):
    for name in ("b/c/2.txt", "b/1.txt", "a.txt", "b/c/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = [path.relative_to(tmp_path).as_posix() for path in io.files_below(tmp_path)]
    assert found == ["a.txt", "b/1.txt", "b/c/.hidden", "b/c/2.txt"]
    scandir = os.scandir

    def locked(path):
        if Path(path).name == "c":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(InputError, match=r"b/c: cannot be read \(Permission denied\)"):
        io.files_below(tmp_path)


def test_write_image_keeps_every_value_of_16_bits(tmp_path):
    values = np.array([[0, 1], [255, 65535]], np.uint16)
    io.write_image(tmp_path / "new" / "a.png", Image.fromarray(values))
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "new" / "a.png")), values)
    assert (tmp_path / "new" / "a.png").read_bytes() == io.image_bytes(Image.fromarray(values))


def test_image_bytes_pass_options_to_the_encoder():
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    small, large = (io.image_bytes(Image.fromarray(noise), "JPEG", quality=q) for q in (20, 95))
    assert small[:2] == large[:2] == b"\xff\xd8"
    assert len(small) < len(large)
