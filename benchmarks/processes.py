"""Measurements in a process of its own: start time of a command, and peak memory."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput

MEMORY_SHAPE = (1080, 1920)
MEMORY_ANCHORS = 520

STARTS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import scalefield": ["-c", "import scalefield"],
    "scalefield --help": ["-m", "scalefield.cli", "--help"],
    "scalefield recover --help": ["-m", "scalefield.cli", "recover", "--help"],
    "scalefield methods": ["-m", "scalefield.cli", "methods"],
}


def start(arguments: list[str]) -> None:
    """Run Python to its end."""
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def memory_peaks(device: str) -> dict[str, float]:
    """Megabytes that each method adds at its peak, beyond the estimate that it is given."""
    words = [sys.executable, "-m", "benchmarks.processes", device]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def print_peaks(device: str) -> None:
    """The body of that process."""
    from benchmarks.cases import ALIGNERS, REFERENCE
    from benchmarks.worlds import World, da3_base, da3_input

    from scalefield.methods import METHODS
    from scalefield.methods.basis import Basis
    from scalefield.methods.field import Field

    torch.set_num_threads(2)
    methods = {f"basis, K = {k}": Basis(k=k) for k in (8, 30, 50)}
    methods |= {"field": Field()}
    methods |= {label: METHODS[name](**options) for label, (name, options) in ALIGNERS.items()}
    small = World.make((96, 128), device)
    world = World.make(MEMORY_SHAPE, device)
    anchors, few = world.anchors(MEMORY_ANCHORS), small.anchors(40)
    peaks = {}
    for name, method in methods.items():
        try:
            method(small.output, few)  # libraries load and pools open before the measurement
            peaks[name] = peak_of(method, world.output, anchors, device)
        except Exception as e:
            peaks[name] = f"{type(e).__name__}: {e}".splitlines()[0]
    network, pixels = da3_base(device), da3_input(MEMORY_SHAPE, device)
    network(da3_input((96, 128), device))
    peaks[REFERENCE] = added(lambda: network(pixels), device)
    print(json.dumps(peaks))


def peak_of(method: object, output: MDEOutput, anchors: Anchors, device: str) -> float:
    """Peak memory of one call on a fresh copy of an output."""
    fresh = dataclasses.replace(output)
    return added(lambda: method(fresh, anchors), device)  # type: ignore[operator]


def added(work: object, device: str) -> float:
    """Megabytes between what is held and the peak; results count, as the caller holds them."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()  # type: ignore[operator]
        return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    # Linux: what was freed goes back, and the peak is set back to what is held.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    work()  # type: ignore[operator]
    return round(resident("VmHWM") - before, 1)


def resident(field: str) -> float:
    """A line of this process's status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(field))
    return int(kilobytes) / 1024


if __name__ == "__main__":
    print_peaks(sys.argv[1])
