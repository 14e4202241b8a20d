"""Soak test: thousands of calls, after which no memory and no file handle may be lost.

    python -m benchmarks.soak --calls 3000 --out results/soak

Three ways to live: `recover` called again and again, the page's API inside one process, and the
same API in a server that is a process of its own. Memory and open files are read from /proc after
every so many calls; a line is fitted to what was read after the warm-up.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from benchmarks.record import new_record, parser, write_record
from PIL import Image

import scalefield as sf
from scalefield.methods import METHODS

WARM_UP = 0.3
"""Share of the calls after which caches are full and threads have started."""
READINGS = 40
MOST_GROWTH_MB = 10.0
"""By which the fitted line may rise over the rest of the calls."""
GIVE_BACK = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}
"""Has glibc give back what is freed at once, so that what is held is what is read. Without it the
same processes wander by some thirty megabytes, in which a small loss would hide."""
SESSIONS = 3
"""Photographs that the server keeps: few, so that they are all taken within the warm-up."""
SHAPES = ((120, 160), (90, 210), (33, 47))


@dataclass
class Watch:
    """Memory and open files of a process over its calls."""

    pid: int
    calls: list[int] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def read(self, calls: int) -> None:
        """Note how things stand."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        self.calls.append(calls)
        self.memory_mb.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1))
        self.files.append(len(os.listdir(f"/proc/{self.pid}/fd")))

    def verdict(self) -> dict[str, Any]:
        """Growth after the warm-up, with its standard error, and whether life went well."""
        warm = [i for i, n in enumerate(self.calls) if n >= WARM_UP * self.calls[-1]]
        x = np.array(self.calls, float)[warm]
        y = np.array(self.memory_mb)[warm]
        (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
        growth = float(slope * (x[-1] - x[0]))
        files = [self.files[i] for i in warm]
        return {
            "calls": self.calls[-1],
            "growth_mb": round(growth, 2),
            "growth_error_mb": round(float(np.sqrt(covariance[0, 0]) * (x[-1] - x[0])), 2),
            "memory_mb": [float(y[0]), float(y[-1])],
            "files": [files[0], files[-1]],
            "good": growth < MOST_GROWTH_MB and files[-1] <= files[0],
        }


def live(
    watch: Watch, calls: int, call: Callable[[int], None], readings: int = READINGS
) -> dict[str, Any]:
    """Make the calls, and look after the process."""
    every = max(1, calls // readings)
    for i in range(calls + 1):
        if i % every == 0:
            watch.read(i)
        call(i)
    return watch.verdict()


def fill_stores() -> None:
    """NumPy keeps seven freed buffers of each size below a kilobyte, 3.7 MB in all. Filled by
    chance, they would look like a small loss for thousands of calls."""
    for size in range(1, 1024):
        buffers = [np.empty(size, np.uint8) for _ in range(8)]
        del buffers


# ---- recover ---------------------------------------------------------------------------------


def recover_once(i: int) -> None:
    """One of the methods, in turn, on a map and anchors of its own."""
    names = tuple(METHODS)
    name, shape = names[i % len(names)], SHAPES[i // len(names) % len(SHAPES)]
    rng = np.random.default_rng(i)
    v, u = np.indices(shape)
    relative = 2 + np.sin(u / 17 + rng.uniform(0, 6)) + v / 60
    rows, columns = rng.integers(0, shape[0], 20), rng.integers(0, shape[1], 20)
    anchors = sf.Anchors(columns, rows, 3 * relative[rows, columns] ** 1.1)
    options = {"superpixels": 12} if name == "region" else {}
    recovery = sf.recover(None, anchors, mde_depth=relative, kind="depth", method=name, **options)
    assert np.isfinite(recovery.depth_m).all()


# ---- the page's API --------------------------------------------------------------------------


def photo(i: int) -> bytes:
    """A small photograph, each a little different."""
    coarse = np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


class Visitor:
    """What a page asks for: photographs, many edits of each, files, and some nonsense."""

    def __init__(self, client: httpx.Client, edits: int = 50) -> None:
        self.client, self.session, self.edits = client, "", edits
        self.methods = itertools.cycle(("field", "basis", "field", "median", "global", "grid"))

    def __call__(self, i: int) -> None:
        """The i-th request; after so many edits a new photograph comes."""
        rng = np.random.default_rng(i)
        if i % self.edits == 0:
            self.begin(i)
            return
        u, v = rng.integers(0, 160, 5), rng.integers(0, 120, 5)
        depths = rng.uniform(1, 9, 5)
        anchors = [
            {"u": int(a), "v": int(b), "depth_m": float(d)}
            for a, b, d in zip(u, v, depths, strict=True)
        ]
        body = {"anchors": anchors, "method": next(self.methods), "points": [{"u": 3, "v": 4}]}
        match i % 50:
            case 7 | 19:
                self.post("measure", body)
            case 11:
                self.post("suggest", body)
            case 23:
                self.post("files/depth.npz", body)
            case 31:
                self.post("files/cloud.ply", {**body, "fov_deg": 60})
            case 37:
                self.expect(400, self.client.post(f"{self.session}/recover", json={"anchors": 7}))
            case 41:
                self.expect(400, self.client.post("/api/sessions", content=b"no photograph"))
            case 43:
                self.expect(200, self.client.get(f"{self.session}/maps"))
            case _:
                self.post("recover", body)

    def begin(self, i: int) -> None:
        """Upload a photograph and wait for its relative depth."""
        if self.session and i % (4 * self.edits) == 0:
            self.expect(204, self.client.delete(self.session))
        made = self.client.post("/api/sessions?name=a.png", content=photo(i)).json()
        self.session = f"/api/sessions/{made['id']}"
        while (state := self.client.get(self.session).json()["state"]) != "ready":
            assert state != "failed"
            time.sleep(0.005)

    def post(self, route: str, body: dict) -> None:
        """A request that must be answered."""
        self.expect(200, self.client.post(f"{self.session}/{route}", json=body))

    def expect(self, status: int, answer: httpx.Response) -> None:
        """The answer must have this status."""
        assert answer.status_code == status, (answer.status_code, answer.text[:300])


@contextmanager
def page_here() -> Iterator[tuple[int, httpx.Client]]:
    """The ASGI application in this process."""
    from starlette.testclient import TestClient

    from scalefield.web.app import create_app
    from scalefield.web.uploads import Limits

    app = create_app(Limits(sessions=SESSIONS))
    with TestClient(app, base_url="http://127.0.0.1:8008") as client:
        yield os.getpid(), client


@contextmanager
def page_there() -> Iterator[tuple[int, httpx.Client]]:
    """A real server on a port of its own."""
    words = [sys.executable, "-m", "scalefield.cli", "web", "--port", "0", "--no-open"]
    words += ["--max-sessions", str(SESSIONS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            address = re.search(r"http://\S+", line)
            assert address, line
            with httpx.Client(base_url=address[0], timeout=60) as client:
                yield server.pid, client
        finally:
            server.terminate()


def main() -> int:
    """Exit code 1 if something was lost."""
    flags = parser(__doc__)
    flags.add_argument("--calls", type=int, default=3000, help="of each kind")
    given = flags.parse_args()
    if any(name not in os.environ for name in GIVE_BACK):
        words = [sys.executable, "-m", "benchmarks.soak", *sys.argv[1:]]
        os.execve(sys.executable, words, os.environ | GIVE_BACK)
    record = new_record({"calls": given.calls})
    torch.set_num_threads(1)
    fill_stores()
    lives = {"recover": live(Watch(os.getpid()), given.calls, recover_once)}
    print_summary("recover", lives["recover"])
    for name, page in (("API in process", page_here), ("server", page_there)):
        with page() as (pid, client):
            lives[name] = live(Watch(pid), given.calls, Visitor(client))
        print_summary(name, lives[name])
    write_record(given.out, record | {"lives": lives})
    return 0 if all(life["good"] for life in lives.values()) else 1


def print_summary(name: str, life: dict[str, Any]) -> None:
    """One line a life."""
    print(
        f"{name:16} {life['calls']} calls: memory {life['growth_mb']:+.1f} ± "
        f"{life['growth_error_mb']:.1f} MB after the warm-up, files {life['files'][0]} → "
        f"{life['files'][1]}: {'good' if life['good'] else 'LOST'}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
