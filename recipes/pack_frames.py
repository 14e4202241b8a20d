"""Packs rendered frames into numbered tar files of limited size, and unpacks them elsewhere.

    python recipes/pack_frames.py pack --root SCENES … --out PARTS --part-mb 33
    python recipes/pack_frames.py unpack --parts PARTS/*.tar --root DIR

`pack` takes the frames that train.txt and val.txt of each root list. A root is unpacked to
DIR/NAME, where NAME is that of its folder. Depth and labels are compressed without loss to about
half the size of their PNG files: the differences that a plane leaves (LZMA, high bytes first).
`unpack` writes PNG files again. Images are packed as they are. The first part holds the lists and
meta.json files.
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import UInt16
from PIL import Image

SUFFIX = ".plane.xz"
"""Of a compressed map, in place of .png."""


def compressed(values: UInt16[np.ndarray, "h w"]) -> bytes:
    """The map as its size and the LZMA stream of v[i, j] − v[i−1, j] − v[i, j−1] + v[i−1, j−1].

    The difference is zero on a plane. It is taken modulo 2¹⁶ and coded with its sign in the lowest
    bit; all high bytes come before all low bytes.
    """
    padded = np.pad(values.astype(np.int64), ((1, 0), (1, 0)))
    residual = np.diff(np.diff(padded, axis=0), axis=1)
    residual = (residual + 2**15) % 2**16 - 2**15
    code = ((residual << 1) ^ (residual >> 63)).astype(np.uint16)
    data = (code >> 8).astype(np.uint8).tobytes() + (code & 255).astype(np.uint8).tobytes()
    return np.array(values.shape, "<u2").tobytes() + lzma.compress(data, preset=6)


def decompressed(data: bytes) -> UInt16[np.ndarray, "h w"]:
    """The map that `compressed` was given."""
    height, width = np.frombuffer(data[:4], "<u2").astype(int)
    high, low = np.frombuffer(lzma.decompress(data[4:]), np.uint8).reshape(2, height, width)
    code = high.astype(np.int64) << 8 | low
    residual = (code >> 1) ^ -(code & 1)
    return (residual.cumsum(axis=0).cumsum(axis=1) % 2**16).astype(np.uint16)


def member(file: Path) -> tuple[str, bytes]:
    """The suffix and content under which a file of a frame is packed."""
    if file.suffix != ".png":
        return file.suffix, file.read_bytes()
    with Image.open(file) as image:
        return SUFFIX, compressed(np.asarray(image).astype(np.uint16))


def frame_files(root: Path, name: str) -> list[Path]:
    """Image, depth and labels of a frame."""
    source, _, frame = name.rpartition("/")
    kinds = (("rgb", ".jpg"), ("depth", ".png"), ("label", ".png"))
    files = [root / source / kind / f"{frame}{suffix}" for kind, suffix in kinds]
    return [file for file in files if file.exists()]


def lists_and_meta(root: Path, splits: list[str]) -> tuple[list[Path], list[str]]:
    """Files that describe a root, and the names of its frames."""
    lists = [file for split in splits if (file := root / f"{split}.txt").exists()]
    names = [name for file in lists for name in file.read_text().split()]
    sources = sorted({name.rpartition("/")[0] for name in names})
    return [*lists, *(root / source / "meta.json" for source in sources)], names


def members(args: argparse.Namespace) -> Iterator[tuple[str, bytes]]:
    """Path and content of everything to be packed: descriptions of all roots, then frames."""
    described = {root: lists_and_meta(root, args.splits) for root in args.root}
    for root, (files, _) in described.items():
        for file in files:
            yield f"{root.name}/{file.relative_to(root)}.xz", lzma.compress(file.read_bytes())
    with ProcessPoolExecutor(args.processes) as pool:
        for root, (_, names) in described.items():
            files = [file for name in names for file in frame_files(root, name)]
            packed = pool.map(member, files, chunksize=8)
            for file, (suffix, data) in zip(files, packed, strict=True):
                yield f"{root.name}/{file.relative_to(root).with_suffix(suffix)}", data


def pack(args: argparse.Namespace) -> None:
    """Write the parts; those of an earlier call are replaced."""
    args.out.mkdir(parents=True, exist_ok=True)
    for old in args.out.glob("part*.tar"):
        old.unlink()
    part_index, count, tar = 0, 0, None
    for path, data in members(args):
        blocks = 512 * (1 + -(-len(data) // 512))
        # A tar file ends with two empty blocks, in records of 20 blocks.
        if tar is None or tar.offset + blocks + 10240 > args.part_mb * 1_000_000:
            if tar is not None:
                tar.close()
            tar = tarfile.open(args.out / f"part{part_index:03d}.tar", "w")  # noqa: SIM115
            part_index += 1
        entry = tarfile.TarInfo(path)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
        count += 1
    if tar is not None:
        tar.close()
    for part in sorted(args.out.glob("part*.tar")):
        print(f"{part}: {part.stat().st_size / 1e6:.1f} MB")
    print(f"{count} files")


def write_member(root: Path, path: str, data: bytes) -> None:
    """Write one member of a part as the file that it was made of."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise SystemExit(f"{path}: wanted a path inside the folder")
    file = root / path
    if path.endswith(SUFFIX):
        file = root / f"{path.removesuffix(SUFFIX)}.png"
        values, buffer = decompressed(data), io.BytesIO()
        values = values.astype(np.uint8) if "/label/" in path else values
        Image.fromarray(values).save(buffer, "png", compress_level=1)
        data = buffer.getvalue()
    elif path.endswith(".xz"):
        file, data = root / path.removesuffix(".xz"), lzma.decompress(data)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def unpack_part(part: Path, root: Path) -> int:
    """Unpack a part; the number of its members."""
    with tarfile.open(part) as tar:
        entries = [entry for entry in tar.getmembers() if entry.isfile()]
        for entry in entries:
            content = tar.extractfile(entry)
            assert content is not None
            write_member(root, entry.name, content.read())
    return len(entries)


def unpack(args: argparse.Namespace) -> None:
    """Unpack parts, in any order, several at a time."""
    with ProcessPoolExecutor(args.processes) as pool:
        counts = list(pool.map(unpack_part, args.parts, [args.root] * len(args.parts)))
    print(f"{args.root}: {sum(counts)} files")
    for file in sorted(args.root.glob("*/*.txt")):
        print(f"{file}: {len(file.read_text().split())} frames")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--root", type=Path, nargs="+", required=True)
    packing.add_argument("--out", type=Path, required=True)
    packing.add_argument("--part-mb", type=float, default=33)
    packing.add_argument("--splits", nargs="+", default=["train", "val"])
    packing.set_defaults(run=pack)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("--parts", type=Path, nargs="+", required=True)
    unpacking.add_argument("--root", type=Path, required=True)
    unpacking.set_defaults(run=unpack)
    for command in (packing, unpacking):
        command.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
