"""A full disk and a folder without permissions: one sentence, and earlier files are unchanged."""

import os
import resource
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from scalefield.cli import main

COMMANDS = ("recover", "predict", "label", "evaluate", "train")
NOBODY = 65534


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def check_sentence(ended, words: str) -> None:
    assert ended.code == 2, ended.printed
    printed = [line for line in ended.printed.splitlines() if "cannot be" in line]
    assert len(printed) == 1, ended.printed
    assert "scalefield: " in printed[0]  # a progress bar may stand before it
    assert words in printed[0]
    assert "Traceback" not in ended.printed


def limit_files(size: int):
    """No file may grow beyond this size, as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, and the process lives
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.mark.parametrize("command", COMMANDS)
def test_full_disk_is_reported_in_one_sentence(command, world, in_child, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    ended = in_child(lambda: world.run(command, place / "out"), limit_files(100))
    check_sentence(ended, "cannot be written (File too large)")
    # No partial and no temporary file: at most small files that were complete before.
    for name, data in everything(place).items():
        assert not Path(name).name.startswith("."), name
        assert 0 < len(data) <= 100


@pytest.mark.parametrize("command", ["recover", "predict", "label"])
def test_full_disk_leaves_earlier_files_whole(command, world, in_child, tmp_path):
    place = tmp_path / "place"
    assert in_child(lambda: world.run(command, place / "out")).code == 0
    before = everything(place)
    lost = max(before, key=lambda name: len(before[name]) * name.endswith((".npz", ".safetensors")))
    if command != "recover":  # which writes all of its files anew
        (place / lost).unlink()
        (place / lost).with_suffix(".json").unlink(missing_ok=True)
    ended = in_child(lambda: world.run(command, place / "out"), limit_files(100))
    check_sentence(ended, "cannot be written")
    kept = everything(place)
    assert set(kept) >= set(before) - {lost, str(Path(lost).with_suffix(".json"))}
    assert all(data == before[name] for name, data in kept.items())


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs more rights than these")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("command", ["recover", "label"])
def test_full_disk_of_a_small_file_system_is_reported(command, world, in_child, small_disk):
    (small_disk / "mine").write_bytes(bytes(60_000))
    ended = in_child(lambda: world.run(command, small_disk / "out"))
    check_sentence(ended, "No space left on device")
    assert (small_disk / "mine").read_bytes() == bytes(60_000)
    assert not [name for name in everything(small_disk) if Path(name).name.startswith(".")]


def test_full_disk_leaves_no_partial_shard(world, in_child, tmp_path):
    """tarfile writes the tar itself, and its errors are reported in the same way."""
    rgb, shard = world.root / "home" / "rgb", tmp_path / "s.tar"
    with tarfile.open(shard, "w") as tar:
        for name in ("0.png", "0.anchors.csv"):
            tar.add(rgb / name, name)
    words = ["label", str(shard), "--method", "global", "--workers", "1"]
    place = tmp_path / "place"
    ended = in_child(lambda: main([*words, "--out", str(place)]), limit_files(2000))
    check_sentence(ended, "cannot be written (File too large)")
    assert set(everything(place)) == {"label.json"}


@pytest.mark.parametrize("command", COMMANDS)
def test_folder_without_write_permission_is_reported(command, world, in_child):
    place = world.root.parent / f"closed-{command}"
    place.mkdir()
    (place / "mine").write_bytes(b"mine")
    place.chmod(0o555)

    def become_nobody() -> None:
        if os.geteuid() == 0:
            os.setegid(NOBODY)
            os.seteuid(NOBODY)

    ended = in_child(lambda: world.run(command, place / "out"), become_nobody)
    check_sentence(ended, "cannot be written (Permission denied)")
    assert everything(place) == {"mine": b"mine"}
