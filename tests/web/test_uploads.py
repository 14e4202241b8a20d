import io
import math
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, features

from scalefield.errors import InputError
from scalefield.io.lengths import LengthError
from scalefield.web.uploads import (
    LINE_CHARACTERS,
    Limits,
    SeveralArrays,
    fov_from_exif,
    read_anchor_table,
    read_depth,
    read_length,
    read_photo,
)
from web.conftest import encoded, picture

LIMITS = Limits(pixels=10_000)


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "AVIF"])
def test_read_photo_decodes_every_format(form: str) -> None:
    if form == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    pixels = picture(80, 60)
    photo = read_photo(encoded(pixels, form), LIMITS)
    assert photo.pixels.shape == (60, 80, 3)
    assert np.abs(photo.pixels.astype(int) - pixels).mean() < 12
    assert photo.fov_deg is None


def test_read_photo_is_upright_and_has_the_field_of_view() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    exif.get_ifd(0x8769)[41989] = 26
    photo = read_photo(encoded(picture(80, 60), "JPEG", exif=exif), LIMITS)
    assert photo.pixels.shape == (80, 60, 3)
    assert photo.fov_deg == fov_from_exif(26, (60, 80))


def test_fov_from_exif_takes_the_35mm_equivalent_for_the_diagonal() -> None:
    # On a 3:2 image the equivalent is the focal length on a frame of 36 × 24 mm itself.
    assert fov_from_exif(18, (3000, 2000)) == pytest.approx(90.0)
    assert fov_from_exif(None, (3000, 2000)) is None
    assert fov_from_exif(0, (3000, 2000)) is None
    tall, wide = fov_from_exif(26, (3000, 4000)), fov_from_exif(26, (4000, 3000))
    assert tall is not None
    assert wide is not None
    assert math.tan(math.radians(wide / 2)) / math.tan(math.radians(tall / 2)) == pytest.approx(
        4 / 3
    )


def promising_png(width: int, height: int) -> bytes:
    """A PNG that declares pixels and contains none: decoding it would fail with another error."""
    chunks = [b"IHDR" + struct.pack(">II5B", width, height, 8, 2, 0, 0, 0), b"IDAT"]
    framed = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def test_read_photo_refuses_a_size_before_decoding() -> None:
    with pytest.raises(InputError, match=r"has 20\.0 megapixels.*at most 0\.01"):
        read_photo(promising_png(5_000, 4_000), LIMITS)
    with pytest.raises(InputError, match=r"more than 0\.01 megapixels"):
        read_photo(promising_png(40_000, 25_000), LIMITS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"GIF89a" + bytes(40), "not an image"),
        (encoded(picture(3, 2)), "4 pixels or more a side, found 3×2"),
        (encoded(picture(640, 1)), "4 pixels or more a side, found 640×1"),
        (encoded(picture(80, 60))[:200], "cannot be decoded"),
        (encoded(np.zeros((20, 30), np.uint16)), "grey image of 16 bits must use"),
    ],
)
def test_read_photo_names_the_problem(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_photo(data, LIMITS)


def test_read_depth_from_bytes() -> None:
    values = np.random.default_rng(0).uniform(1, 9, (6, 8)).astype(np.float32)
    np.testing.assert_array_equal(read_depth(npy(values), ".npy", LIMITS), values)
    np.testing.assert_array_equal(read_depth(npz(d=values), ".npz", LIMITS), values)
    units = (1000 * values).astype(np.uint16)
    np.testing.assert_array_equal(read_depth(encoded(units), ".png", LIMITS), units)
    pfm = b"Pf\n8 6\n-1.0\n" + values[::-1].astype("<f4").tobytes()
    np.testing.assert_array_equal(read_depth(pfm, ".pfm", LIMITS), values)


def test_read_depth_checks_the_size_in_the_header_of_an_exr(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("OpenEXR")
    from scalefield.io import write_map

    path = tmp_path_factory.mktemp("exr") / "d.exr"
    values = np.random.default_rng(0).uniform(1, 9, (6, 8)).astype(np.float32)
    write_map(path, values)
    np.testing.assert_array_equal(read_depth(path.read_bytes(), ".exr", LIMITS), values)
    with pytest.raises(InputError, match="megapixels"):
        read_depth(path.read_bytes(), ".exr", Limits(pixels=47))
    with pytest.raises(InputError, match="not a readable EXR"):
        read_depth(b"no exr", ".exr", LIMITS)


def promising_npy(shape: str) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()


@pytest.mark.parametrize(
    ("data", "suffix", "words"),
    [
        (promising_npy("(1000000, 1000000)"), ".npy", "megapixels"),
        (npz(d=np.zeros((300, 300))), ".npz", "megapixels"),
        (encoded(np.ones((200, 200), np.uint16)), ".png", "megapixels"),
        (b"no npz", ".npz", "NPZ"),
        (b"no npy", ".npy", "NPY"),
        (b"no png", ".png", "PNG"),
        (npy(np.array([object()])), ".npy", "the depth file"),
        (encoded(picture(8, 6)), ".png", "8 bits"),
        (b"x", ".sh", "read from .npy"),
        (b"x", "", "read from .npy"),
    ],
)
def test_read_depth_names_the_problem_without_a_path_of_the_server(
    data: bytes, suffix: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        read_depth(data, suffix, LIMITS)
    assert "/" not in str(refusal.value)


def exr(tmp_path, parts: list[dict[str, np.ndarray]]) -> bytes:
    openexr = pytest.importorskip("OpenEXR")
    path = tmp_path / "made.exr"
    made = [openexr.Part({"name": f"part{i}"}, channels) for i, channels in enumerate(parts)]
    with openexr.File(made) as file:
        file.write(str(path))
    return path.read_bytes()


def test_read_depth_counts_channels_and_parts_of_an_exr_first(tmp_path, monkeypatch) -> None:
    """A small file may hold many channels of zeros; only the header shows their number."""
    zeros = np.zeros((60, 80), np.float32)
    many_channels = exr(tmp_path, [{f"c{i}": zeros for i in range(3)}])
    many_parts = exr(tmp_path, [{"Z": zeros}, {"Z": zeros}, {"Z": zeros}])
    monkeypatch.setattr("scalefield.web.uploads.read_map", lambda *_, **__: pytest.fail("was read"))
    for data in (many_channels, many_parts):
        with pytest.raises(InputError, match=r"all channels and parts.*megapixels"):
            read_depth(data, ".exr", LIMITS, key="c0")


def test_read_depth_of_several_arrays_names_them_and_takes_a_key(tmp_path) -> None:
    values = np.random.default_rng(0).uniform(1, 9, (6, 8)).astype(np.float32)
    for data, suffix in (
        (npz(depth=values, mask=np.ones((6, 8))), ".npz"),
        (exr(tmp_path, [{"depth": values, "mask": np.ones((6, 8), np.float32)}]), ".exr"),
    ):
        with pytest.raises(SeveralArrays, match="holds 2 arrays; choose one: depth, mask") as e:
            read_depth(data, suffix, LIMITS)
        assert e.value.names == ["depth", "mask"]
        np.testing.assert_array_equal(read_depth(data, suffix, LIMITS, "depth"), values)
        with pytest.raises(InputError, match="nothing called 'nope'"):
            read_depth(data, suffix, LIMITS, "nope")


def test_read_photo_decodes_heic() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    pixels = picture(80, 60)
    photo = read_photo(encoded(pixels, "HEIF", quality=90), LIMITS)
    assert photo.pixels.shape == (60, 80, 3)
    assert np.abs(photo.pixels.astype(int) - pixels).mean() < 12
    with pytest.raises(InputError, match="megapixels"):
        read_photo(encoded(picture(200, 100), "HEIF"), LIMITS)


def test_read_photo_names_the_extra_that_heic_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    heic = b"\0\0\0\x18ftypheic" + bytes(40)
    with pytest.raises(InputError, match=r"scalefield\[heic\].*Most Compatible"):
        read_photo(heic, LIMITS)


def test_read_length_takes_units_of_the_text_or_the_page() -> None:
    assert read_length({"text": "8 ft 3"}) == 2.5146
    assert read_length({"text": "2.4 m", "unit": "ft"}) == 2.4
    assert read_length({"text": "8", "unit": "ft"}) == 2.4384


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], 'wanted a JSON object with "text"'),
        ({"unit": "m"}, 'wanted a JSON object with "text"'),
        ({"text": 2.4}, 'wanted a JSON object with "text"'),
        ({"text": "1" * 101}, "^a length such as 2.4 m is wanted, found 101 characters$"),
        (
            {"text": "1", "unit": "mile"},
            "^no unit 'mile'; there are km, m, dm, cm, mm, yd, ft, in$",
        ),
        ({"text": "1", "unit": ["m"]}, "^no unit"),
        ({"text": "\ud800"}, "^a length such as 2.4 m is wanted, found “[?]”$"),
    ],
)
def test_read_length_names_the_problem(body: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_length(body)


def test_read_length_gives_both_readings_in_metres() -> None:
    with pytest.raises(LengthError) as refusal:
        read_length({"text": "2,400 mm"})
    assert refusal.value.readings == {"2400 mm": 2.4, "2.400 mm": 0.0024}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le"])
def test_read_anchor_table_reads_what_the_command_line_reads(encoding: str) -> None:
    data = "u;v;depth_cm;sigma_cm\n10;20;150,5;\n639,4;479,4;8 ft 3;2".encode(encoding)
    anchors = read_anchor_table(data, (480, 640), Limits())
    assert anchors.u.tolist() == [10, 639.4]
    assert anchors.depth_m.tolist() == [1.505, 2.5146]
    np.testing.assert_array_equal(anchors.sigma_m, [np.nan, 0.02])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("u,v\n1,2", "which lacks depth_m"),
        ("u,v,depth_m\n", "^there is no line with an anchor$"),
        ("1,2,3\n" * 3, "^3 anchors, and this server takes at most 2$"),
        ("1,2,3\n700,5,2", "^1 of 2 anchors lie outside .*: line 2 at u=700, v=5$"),
        ("1,600,3", "u and v swapped, all would lie inside$"),
        ("1,2,3\n" + "4" * (LINE_CHARACTERS + 1), "^line 2 has 1001 characters"),
        ("\xff", "^not a text file in UTF-8 or UTF-16$"),
    ],
)
def test_read_anchor_table_names_the_problem(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_anchor_table(text.encode("latin-1"), (480, 640), Limits(anchors=2))
