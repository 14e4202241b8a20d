"""A small dataset on disk, and every command that writes, run in a child process."""

import contextlib
import mmap
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from scalefield import Anchors
from scalefield.cli import main
from worlds import write_place

SHAPE = (32, 64)
FRAMES = 4


def write_world(root: Path) -> None:
    """Frames in the folder layout, with anchors beside the images."""
    v, u = np.indices(SHAPE)
    frames = {}
    for i in range(FRAMES):
        depth_m = 2 + u / 32 + np.sin(v / 9 + i)
        shade = np.clip(depth_m * 50 + 10 * np.sin(u * (i + 1)), 0, 255)
        image = np.stack([shade, shade[::-1], 255 - shade], axis=-1).astype(np.uint8)
        frames[str(i)] = image, depth_m
    about = [{"name": name, "scene": f"scene{name}"} for name in frames]
    write_place(root / "home", frames, depth_range_m=[0.1, 20], frames=about)
    for i, (_, depth_m) in enumerate(frames.values()):
        rows, columns = np.random.default_rng(i).integers(0, SHAPE[0], (2, 24))
        Anchors(columns, rows, depth_m[rows, columns]).write(root / f"home/rgb/{i}.anchors.csv")
    for split, indices in {"train": (0, 1), "val": (2,), "test": (0, 1, 2, 3)}.items():
        (root / f"{split}.txt").write_text("".join(f"home/{i}\n" for i in indices))


@dataclass(frozen=True)
class World:
    """A dataset, and the commands that read it."""

    root: Path

    def words(self, command: str, out: Path) -> list[str]:
        """The command line that writes into `out`."""
        rgb = self.root / "home" / "rgb"
        return {
            "recover": [
                "recover", str(rgb / "0.png"), "--anchors", str(rgb / "0.anchors.csv"),
                "--method", "global", "--out", str(out),
            ],
            "predict": ["predict", str(rgb), "--mde", "lite", "--cache", str(out)],
            "label": [
                "label", str(rgb), "--method", "global", "--workers", "1", "--out", str(out),
            ],
            "evaluate": [
                "evaluate", "--root", str(self.root), "--mde", "lite", "--methods", "median",
                "global", "--regimes", "low", "--no-drop", "--no-gallery", "--workers", "1",
                "--out", str(out),
            ],
            "train": [
                "train", "--root", str(self.root), "--mde", "lite", "--k", "8", "--epochs", "2",
                "--in-sample", "--device", "cpu", "--out", str(out),
            ],
        }[command]  # fmt: skip

    def run(self, command: str, out: Path) -> int:
        """The exit code of the command."""
        return main(self.words(command, out))


COMMANDS = ("recover", "predict", "label", "evaluate", "train")


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """The dataset, readable by everyone, so that a child without permissions can read it too."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        write_world(Path(folder, "data"))
        world = World(Path(folder, "data"))
        for command in COMMANDS:  # imports and weights, once for all children
            assert world.run(command, Path(folder, command)) == 0
        yield world


@dataclass(frozen=True)
class Ended:
    """Exit code of a child, and its stderr."""

    code: int
    printed: str


@pytest.fixture(scope="session")
def in_child() -> Callable[..., Ended]:
    """Run `work` in a fork of this process, after `first` was called in it."""

    def run(work: Callable[[], int | None], first: Callable[[], object] = lambda: None) -> Ended:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 70
            with contextlib.suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(writing, 2)
                os.close(writing)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                try:
                    first()
                    code = work() or 0
                except BaseException:
                    traceback.print_exc()
            os._exit(code)
        os.close(writing)
        with os.fdopen(reading, "rb") as errors:
            printed = errors.read().decode(errors="replace")
        _, status = os.waitpid(child, 0)
        return Ended(os.waitstatus_to_exitcode(status), printed)

    return run


CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR


class Killer:
    """Kills the process right before its n-th change of the disk below a folder; counts them."""

    def __init__(self, below: Path, number: int | None = None) -> None:
        self.below, self.number = str(below), number
        self.shared = mmap.mmap(-1, 8)  # which parent and child both see

    @property
    def changes(self) -> int:
        """Number of changes."""
        return int.from_bytes(self.shared[:8], "little")

    def __call__(self) -> None:
        """Watch this process from now on."""
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple) -> None:
        """Audit hook: Python calls it before operations of the system."""
        changes = event in CHANGES or (event == "open" and arguments[2] & WRITING)
        if changes and str(arguments[0]).startswith(self.below):
            if self.changes == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            self.shared[:8] = (self.changes + 1).to_bytes(8, "little")


@pytest.fixture(scope="session")
def killer() -> type[Killer]:
    """For the second argument of `in_child`."""
    return Killer
