"""What `field` costs by the number of anchors: recover, LiveField, memory, busy machines.

    python -m benchmarks.lidar --out results/lidar                       # ratios on a processor
    python -m benchmarks.lidar --out results/lidar-cuda --device cuda    # milliseconds on a GPU

On a processor times are also given as ratios to the forward pass of DA3-BASE on the same image, and
two threads are compared with one beside two busy processes. Network, outlier search, depth and
standard deviation are all included. Writes results.json, and cost.png, the cost against anchors and
pixels.
"""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from benchmarks.record import new_record, parser, write_record
from benchmarks.timing import Times, spread, turn_by_turn
from benchmarks.worlds import World, da3_base, da3_input

from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.benchmark.report.figures import Figure, encode, pyplot
from scalefield.field.editor import FieldEditor
from scalefield.field.realtime import LiveField
from scalefield.io import write_atomic
from scalefield.methods import make_method
from scalefield.methods.field import Field

ANCHORS = (12, 104, 520, 2000, 10_000, 20_000)
SIZES = ((240, 320), (480, 640), (960, 1280), (1920, 2560))


def recover_cases(world: World, counts: tuple[int, ...], method: Field) -> dict[str, Any]:
    """A new image with each number of anchors: the network runs every time."""

    def case(anchors: Anchors) -> Any:
        def work() -> None:
            recover_from(world.output, anchors, method)

        return work

    return {str(n): case(world.anchors(n)) for n in counts}


def on_processor(repeats: int) -> dict[str, Any]:
    """Ratios to DA3-BASE by anchors; milliseconds by anchors, by pixels and of an edit; two threads
    against one beside busy processes; other methods against `field`."""
    shape, record = (480, 640), {}
    world, field = World.make(shape, "cpu"), Field()
    da3, image = da3_base("cpu"), da3_input(shape, "cpu")
    cases = {"DA3-BASE": lambda: da3(image), **recover_cases(world, ANCHORS, field)}
    times = turn_by_turn(cases, repeats)
    record["480×640, of DA3-BASE"] = {
        name: times.ratio(name, "DA3-BASE") for name in times.seconds if name != "DA3-BASE"
    }
    record["recover at 480×640, ms"] = milliseconds(times)
    record["recover with 520 anchors, ms"] = by_size("cpu", field, repeats)
    record["an edit at 480×640, ms"] = edits(world, repeats)
    # The share of the scheduler varies from call to call.
    contended = contention(world, field, 6 * repeats)
    record["two threads over one, beside two busy processes"] = contended
    record["of field at 12 megapixels, 104 anchors"] = aligners(
        World.make((3000, 4000), "cpu"), 104, ("knn", "region")
    )
    record["of field at 480×640, 10,000 anchors"] = aligners(world, 10_000, ("interpolate", "knn"))
    return record


def by_size(device: str, field: Field, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of recover with 520 anchors for images of several sizes."""
    worlds = {f"{h}×{w}": World.make((h, w), device) for h, w in SIZES}
    cases = {name: recover_cases(w, (520,), field)["520"] for name, w in worlds.items()}
    return milliseconds(turn_by_turn(cases, repeats, device))


def edits(world: World, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of one more or one fewer anchor: outlier search, solve, both maps."""
    field = Field()
    image = field.load().image_inputs(world.output)

    def case(n: int) -> Any:
        anchors, editor, step = world.anchors(n + 1), FieldEditor(), itertools.count()

        def work() -> None:
            index = np.arange(n + next(step) % 2)
            editor.render(field.condition(image, anchors[index], editor).fit)

        return work

    return milliseconds(turn_by_turn({str(n): case(n) for n in (300, 5000)}, repeats))


def aligners(world: World, n: int, names: tuple[str, ...]) -> dict[str, list[float]]:
    """Time of other methods over that of `field`, its network included."""
    anchors = world.anchors(n)
    methods = {name: make_method(name) for name in names}
    cases = {
        name: functools.partial(recover_from, world.output, anchors, method)
        for name, method in methods.items()
    }
    cases["field"] = recover_cases(world, (n,), Field())[str(n)]
    times = turn_by_turn(cases, 2)
    return {name: times.ratio(name, "field") for name in names if name in times.seconds}


def contention(world: World, field: Field, repeats: int) -> dict[str, list[float]]:
    """Time with two threads over time with one while two other processes keep the cores busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    threads = torch.get_num_threads()
    found = {}
    try:
        for name, work in recover_cases(world, (12, 520, 10_000), field).items():

            def with_threads(count: int, work: Any = work) -> Any:
                def run() -> None:
                    torch.set_num_threads(count)
                    work()

                return run

            times = turn_by_turn({"one": with_threads(1), "two": with_threads(2)}, repeats)
            found[name] = times.ratio("two", "one")
    finally:
        torch.set_num_threads(threads)
        for process in busy:
            process.kill()
    return found


def on_gpu(repeats: int) -> dict[str, Any]:
    """Milliseconds at 375×1242, and the memory that 20,000 anchors add at 1080×1920."""
    shape, record = (375, 1242), {}
    world = World.make(shape, "cuda")
    image = torch.from_numpy(world.image).cuda()
    times = turn_by_turn(recover_cases(world, ANCHORS, Field()), repeats, "cuda")
    record["recover, ms"] = milliseconds(times)
    for label, robust in (("LiveField, ms", True), ("LiveField, not robust, ms", False)):
        live = LiveField(shape, robust=robust, device="cuda")
        calls = {}
        for n in ANCHORS:
            anchors = world.anchors(n)
            pixels = torch.tensor(np.stack([anchors.u, anchors.v], axis=1)).float().cuda()
            depth_m = torch.tensor(anchors.depth_m).float().cuda()
            calls[str(n)] = lambda p=pixels, d=depth_m, live=live: live(
                world.output.mde_depth, p, d, image=image
            )
        record[label] = milliseconds(turn_by_turn(calls, repeats, "cuda"))
    record["recover with 520 anchors, ms"] = by_size("cuda", Field(), repeats)
    large = World.make((1080, 1920), "cuda")
    anchors, method = large.anchors(20_000), Field()
    solver = method.solver(large.output)  # without the network's own memory
    recover_from(large.output, anchors, method, solver=solver)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    recover_from(large.output, anchors, method, solver=solver)
    added = torch.cuda.max_memory_allocated() - before
    record["memory added at 1080×1920 with 20,000 anchors, MB"] = round(added / 1e6)
    return record


def milliseconds(times: Times) -> dict[str, list[float]]:
    """Median and quartiles of every case."""
    return {name: spread(1e3 * seconds) for name, seconds in times.seconds.items()}


def curves(record: dict[str, Any]) -> dict[str, dict[float, list[float]]]:
    """Median and quartiles in milliseconds by number of anchors and by number of pixels."""
    measured = record["measured"]
    by_anchors = measured.get("recover at 480×640, ms") or measured["recover, ms"]
    by_pixels = measured["recover with 520 anchors, ms"]
    return {
        "anchors": {float(n): times for n, times in by_anchors.items() if n.isdigit()},
        "pixels (520 anchors)": {
            float(math.prod(map(int, size.split("×")))): times for size, times in by_pixels.items()
        },
    }


def plot(record: dict[str, Any]) -> Figure:
    """Cost of `recover` against anchors and pixels: medians, with the quartiles as a band."""
    figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, (what, curve) in zip(axes, curves(record).items(), strict=True):
        axis.set(xscale="log", yscale="log", xlabel=what, ylabel="recover, ms")
        x = sorted(curve)
        median, low, high = ([curve[n][i] for n in x] for i in range(3))
        axis.plot(x, median, marker="o")
        axis.fill_between(x, low, high, alpha=0.2)
        axis.grid(visible=True, alpha=0.3)
    return figure


def main() -> None:
    """Read the flags, measure, write the record and the plot."""
    flags = parser(__doc__)
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--repeats", type=int, default=7)
    given = flags.parse_args()
    config = {"device": given.device, "repeats": given.repeats, "anchors": ANCHORS, "seed": "n"}
    record = new_record(config)
    record["measured"] = (on_gpu if given.device == "cuda" else on_processor)(given.repeats)
    write_record(given.out, record)
    write_atomic(given.out / "cost.png", encode(plot(record), "png"))


if __name__ == "__main__":
    main()
