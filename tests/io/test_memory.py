"""One limit on the memory of every reader: 512 MiB, or 16 times the file."""

import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import InputError
from scalefield.datasets.frame import read_label_image
from scalefield.datasets.mat import read_matrix
from scalefield.geometry.point_clouds import read_points
from scalefield.io import read_image, read_labels, read_map
from scalefield.io.disk import MEMORY_ALWAYS, check_memory
from scalefield.io.videos import read_frames

SMALL, LARGE = (40, 24), (14_000, 12_000)


def patched(data: bytes, *formats: str, swapped: bool = False) -> bytes:
    """The file with `LARGE` wherever it has `SMALL`, packed in one of these formats."""
    found = 0
    for order in formats:
        for turn in (1, -1):
            old, new = (struct.pack(order, *size[::turn]) for size in (SMALL, LARGE))
            found += data.count(old)
            data = data.replace(old, new)
    assert found
    return data


def saved(form: str, mode: str = "RGB", **options: object) -> bytes:
    """A small image file."""
    buffer = BytesIO()
    Image.new(mode, SMALL).save(buffer, form, **options)
    return buffer.getvalue()


def png() -> bytes:
    """A PNG whose header, with its checksum, declares the large size."""
    data = patched(saved("PNG"), ">II")
    return data[:29] + struct.pack(">I", zlib.crc32(data[12:29])) + data[33:]


def tiff(**options: object) -> bytes:
    """A TIFF that declares the large size in its tags 256 and 257."""
    data = saved("TIFF", **options)
    for tag, old, new in zip((256, 257), SMALL, LARGE, strict=True):
        entries = [
            (struct.pack("<HHI", tag, kind, 1), size) for kind, size in ((3, "<HH"), (4, "<I"))
        ]
        for start, size in entries:
            values = [struct.pack(size, *((n, 0) if size == "<HH" else (n,))) for n in (old, new)]
            data = data.replace(start + values[0], start + values[1])
    return data


def heic() -> bytes:
    """A HEIC that declares the large size."""
    pytest.importorskip("pillow_heif").register_heif_opener(thumbnails=False)
    image = BytesIO()
    Image.new("RGB", (64, 64)).save(image, "HEIF")
    return image.getvalue().replace(struct.pack(">II", 64, 64), struct.pack(">II", *LARGE))


def npz() -> bytes:
    """An NPZ of a flat map."""
    buffer = BytesIO()
    np.savez_compressed(buffer, depth=np.zeros(LARGE[::-1], np.float32))
    return buffer.getvalue()


def exr() -> bytes:
    """An EXR whose data window declares the large size."""
    openexr = pytest.importorskip("OpenEXR")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/small.exr"
        with openexr.File({}, {"Z": np.zeros(SMALL[::-1], np.float32)}) as file:
            file.write(path)
        data = Path(path).read_bytes()
    old, new = (struct.pack("<iiii", 0, 0, w - 1, h - 1) for w, h in (SMALL, LARGE))
    return data.replace(old, new)


def pcd() -> bytes:
    """A compressed PCD that promises 10⁸ points."""
    n = 10**8
    head = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\n"
    head += f"WIDTH {n}\nHEIGHT 1\nPOINTS {n}\nDATA binary_compressed\n"
    return head.encode() + struct.pack("<II", 8, 12 * n) + bytes(8)


def video() -> bytes:
    """One black frame of 35 megapixels."""
    av = pytest.importorskip("av")
    buffer = BytesIO()
    with av.open(buffer, "w", format="avi") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 8192, 4320, "yuvj420p"
        frame = av.VideoFrame(8192, 4320, "yuvj420p")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return buffer.getvalue()


BOMBS = {
    "PNG": (png, read_image),
    "JPEG": (lambda: patched(saved("JPEG"), ">HH"), read_image),
    "progressive JPEG": (lambda: patched(saved("JPEG", progressive=True), ">HH"), read_image),
    "JPEG 2000": (lambda: patched(saved("JPEG2000"), ">II"), read_image),
    "TIFF": (tiff, read_image),
    "TIFF, deflate": (lambda: tiff(compression="tiff_deflate"), read_image),
    "TIFF, group 4": (lambda: tiff(mode="1", compression="group4"), read_image),
    "GIF": (lambda: patched(saved("GIF"), "<HH"), read_image),
    "WebP": (lambda: patched(saved("WEBP"), "<HH"), read_image),
    "BMP": (lambda: patched(saved("BMP"), "<ii"), read_image),
    "PPM": (lambda: saved("PPM").replace(b"%d %d" % SMALL, b"%d %d" % LARGE), read_image),
    "HEIC": (heic, read_image),
    "labels": (png, read_labels),
    "labels of a dataset": (png, read_label_image),
    "map.png": (png, read_map),
    "map.npz": (npz, read_map),
    "map.exr": (exr, read_map),
    "points.pcd": (pcd, read_points),
    "video.avi": (video, lambda path: next(read_frames(path))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_readers_refuse_a_small_file_that_declares_a_huge_image(tmp_path, name):
    make, read = BOMBS[name]
    path = tmp_path / (name if "." in name else "image")
    path.write_bytes(make())
    assert path.stat().st_size < 2**20 or name == "video.avi"
    with pytest.raises(InputError, match=r"need \d+ MB of memory, and a file of this size may"):
        read(path)


def test_read_map_refuses_a_pfm_and_an_npy_that_are_too_short(tmp_path):
    """Files that are not compressed hold what they declare: these take at most twice their size."""
    (tmp_path / "a.pfm").write_bytes(b"Pf\n14000 12000\n-1.0\n" + bytes(80))
    with pytest.raises(InputError, match="has 672000000 bytes of pixels, found 80"):
        read_map(tmp_path / "a.pfm")


def test_read_matrix_refuses_one_that_unpacks_to_too_much():
    packed = zlib.compress(bytes(MEMORY_ALWAYS // 4 + 1))
    data = bytes(126) + b"IM" + struct.pack("<II", 15, len(packed)) + packed
    with pytest.raises(ValueError, match="a matrix of more than 134217728 bytes"):
        read_matrix(data, "seglabel")


def test_check_memory_grows_with_the_file():
    check_memory("pixels", 2**30, 2**26)
    with pytest.raises(ValueError, match="in 67108863 bytes need 1074 MB"):
        check_memory("pixels", 2**30, 2**26 - 1)


FLAT = {
    "baseline.jpg": ("RGB", {}, 8),
    "progressive.jpg": ("RGB", {"progressive": True}, 10),
    "rotated.jpg": ("RGB", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0"}, 8),
    "grey.jp2": ("L", {"quality_mode": "rates", "quality_layers": [1000]}, 9),
    "colour.jp2": ("RGB", {"quality_mode": "rates", "quality_layers": [1000]}, 24),
    "alpha.webp": ("RGBA", {}, 16),
    "deflate.tif": ("RGBA", {"compression": "tiff_deflate"}, 12),
    "one_strip.tif": ("RGB", {"compression": "tiff_deflate", "tiffinfo": {278: 10**5}}, 12),
    "palette.gif": ("P", {}, 5),
    "depth.png": ("I;16", {}, 18),
}
"""The mode, the options of `Image.save` and the bytes for each pixel that the limit counts."""

PEAK = """
import sys
from pathlib import Path
from scalefield.io import read_image, read_map
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
read = read_map if sys.argv[1].endswith(".png") else read_image
read(Path(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("name", FLAT)
def test_readers_keep_the_limit_with_the_largest_image_that_they_accept(tmp_path, name):
    mode, options, each = FLAT[name]
    side = int((MEMORY_ALWAYS / each) ** 0.5) - 1
    path = tmp_path / name
    Image.new(mode, (side, side)).save(path, **options)
    if mode == "I;16":  # a PNG without its units, whose zeros are unknown, is a map all the same
        assert read_map(path).shape == (side, side)
    peak = int(subprocess.check_output([sys.executable, "-c", PEAK, path], text=True))
    assert peak <= MEMORY_ALWAYS + 2**25  # and a strip that is converted
