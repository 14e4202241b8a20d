"""Pack rendered frames into numbered tar files of limited size, and unpack them elsewhere.

    python recipes/pack_frames.py pack --root SCENES --out PARTS --part-mb 34
    python recipes/pack_frames.py unpack --parts PARTS/*.tar --root SCENES

`pack` takes the frames that train.txt and val.txt list at that moment, and leaves out those that an
earlier call has packed into the same folder. It may therefore be repeated while frames are being
rendered. Every part holds the lists and meta.json files of the frames packed so far, so parts are
unpacked in their order.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from pathlib import Path


def frame_files(root: Path, name: str) -> list[Path]:
    """Image, depth and labels of a frame, relative to the root."""
    source, _, frame = name.rpartition("/")
    kinds = (("rgb", ".jpg"), ("depth", ".png"), ("label", ".png"))
    files = [Path(source) / kind / f"{frame}{suffix}" for kind, suffix in kinds]
    return [file for file in files if (root / file).exists()]


def in_tar(file: Path) -> int:
    """Bytes that a file takes in a tar file: a header, and its content in blocks."""
    return 512 + -(-file.stat().st_size // 512) * 512


def packed_names(out: Path) -> list[str]:
    """Names of the frames in the parts of a folder."""
    path = out / "packed.txt"
    return path.read_text().split() if path.exists() else []


def pack(args: argparse.Namespace) -> None:
    """Write the parts that are missing."""
    args.out.mkdir(parents=True, exist_ok=True)
    # The lists first: frames and meta.json only grow after that.
    splits = {
        split: (args.root / f"{split}.txt").read_text().split()
        for split in ("train", "val")
        if (args.root / f"{split}.txt").exists()
    }
    done = packed_names(args.out)
    names = [name for split in splits.values() for name in split if name not in set(done)]
    limit_bytes, index = args.part_mb * 1_000_000, len(list(args.out.glob("*.tar")))
    sources = {name.rpartition("/")[0] for split in splits.values() for name in split}
    meta = sum(in_tar(args.root / source / "meta.json") for source in sources)
    while names:
        size, count = meta + 200_000, 0
        for name in names:
            frame = sum(in_tar(args.root / file) for file in frame_files(args.root, name))
            if size + frame > limit_bytes:
                break
            size, count = size + frame, count + 1
        if count < len(names) or args.last or size > 0.9 * limit_bytes:
            write_part(args, index, names[:count], set(done) | set(names[:count]), splits)
            done += names[:count]
            (args.out / "packed.txt").write_text("\n".join(done) + "\n")
            names, index = names[count:], index + 1
        else:
            print(f"{len(names)} frames ({size / 1e6:.0f} MB) wait for a full part; see --last")
            return


def write_part(
    args: argparse.Namespace, index: int, names: list[str], known: set[str], splits: dict
) -> None:
    """One tar file: the frames, all lists so far and the meta.json of each source."""
    path = args.out / f"part{index:03d}.tar"
    with tarfile.open(path, "w") as tar:
        for split, listed in splits.items():
            text = "".join(f"{name}\n" for name in listed if name in known).encode()
            entry = tarfile.TarInfo(f"{split}.txt")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        for source in sorted({name.rpartition("/")[0] for name in known}):
            tar.add(args.root / source / "meta.json", f"{source}/meta.json")
        for name in names:
            for file in frame_files(args.root, name):
                tar.add(args.root / file, str(file))
    print(f"{path}: {len(names)} frames, {path.stat().st_size / 1e6:.1f} MB")


def unpack(args: argparse.Namespace) -> None:
    """Unpack parts in the order of their names."""
    args.root.mkdir(parents=True, exist_ok=True)
    for part in sorted(args.parts):
        with tarfile.open(part) as tar:
            tar.extractall(args.root, filter="data")
    listed = {
        split: len((args.root / f"{split}.txt").read_text().split())
        for split in ("train", "val")
        if (args.root / f"{split}.txt").exists()
    }
    print(f"{args.root}: {listed}")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--root", type=Path, required=True)
    packing.add_argument("--out", type=Path, required=True)
    packing.add_argument("--part-mb", type=float, default=34)
    packing.add_argument("--last", action="store_true", help="also write a part that is not full")
    packing.set_defaults(run=pack)
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("--parts", type=Path, nargs="+", required=True)
    unpacking.add_argument("--root", type=Path, required=True)
    unpacking.set_defaults(run=unpack)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
