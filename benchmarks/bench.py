"""What each step costs beside the estimator it corrects, and what F weighs.

    python benchmarks/bench.py --out results/bench

All of one run's times are taken on the same inputs, one after another, and given as ratios to
DA3-BASE's forward pass (random weights: time does not depend on them). Absolute times mean little
on a processor, so they are not written down.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from scalefield.anchors import Anchors
from scalefield.files import write_atomic, write_json
from scalefield.mde.da3 import BASE, DA3, PREPROCESS
from scalefield.mde.estimator import Estimator
from scalefield.mde.lite import load_lite
from scalefield.methods import METHODS
from scalefield.methods.basis import Basis, basis_maps, load_generator
from scalefield.methods.field import Field
from scalefield.provenance import provenance

SHAPES = {"240×320": (240, 320), "480×640": (480, 640), "1080×1920": (1080, 1920)}
ANCHORS = (1, 12, 110, 520, 2000)
REFERENCE = "DA3-BASE forward"


def da3_base() -> Estimator:
    """DA3-BASE with random weights."""
    torch.manual_seed(0)
    network = DA3(BASE).eval().requires_grad_(False)
    return Estimator("da3-base", "random", "depth", PREPROCESS, network)


def picture(shape: tuple[int, int]) -> np.ndarray:
    """A smooth coloured image."""
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]] / max(shape)
    waves = [np.sin(9 * u + 3 * v), np.cos(7 * v - 2 * u), np.sin(5 * u * v)]
    return (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Times of several runs after one that does not count."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def steps(shape: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """Everything that is timed on an image of this shape."""
    image, lite, rng = picture(shape), load_lite(), np.random.default_rng(0)
    output = lite(image)

    def anchors(n: int) -> Anchors:
        u, v = rng.integers(0, shape[1], n), rng.integers(0, shape[0], n)
        return Anchors(u, v, 2 * output.mde_depth[v, u].double().numpy() * rng.uniform(0.9, 1.1, n))

    drawn = {n: anchors(n) for n in ANCHORS}
    da3 = da3_base()
    work: dict[str, Callable[[], object]] = {
        REFERENCE: lambda: da3(image),
        "lite forward": lambda: lite(image),
    }
    for k in (8, 30, 50):
        generator = load_generator(f"basis-lite-k{k}")
        maps, method = basis_maps(generator, output), Basis(k=k)

        def make(generator=generator) -> None:  # type: ignore[no-untyped-def]
            output.memo.clear()
            basis_maps(generator, output)

        work[f"generator, K = {k}"] = make
        work[f"basis: solve and apply, K = {k}, N = 110"] = lambda m=method, g=generator, e=maps: (
            m.fit(output, drawn[110], g, e)
        )
    field = Field()
    model, field_maps = field.prepare(output)
    for n in ANCHORS:
        work[f"field: solve and apply, N = {n}"] = lambda n=n: field.fit(
            output, drawn[n], model, field_maps
        )
    for name in METHODS:
        if name not in ("basis", "field", "region"):
            method = METHODS[name]()
            work[f"{name}, N = 110"] = lambda m=method: m(output, drawn[110])
    exact = METHODS["lwlr"](stride=1)
    work["lwlr at every pixel, N = 520"] = lambda: exact(output, drawn[520])
    published = METHODS["lwlr"]()
    work["lwlr every 32 pixels, N = 520"] = lambda: published(output, drawn[520])
    return work


def memory_of(name: str) -> dict[str, float]:
    """Peak memory that one forward pass adds at 480×640, and the size of F, in megabytes."""
    code = f"import bench; bench.print_memory({name!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    added, features = map(float, done.stdout.split())
    return {"peak_added_mb": added, "features_mb": features}


def print_memory(name: str) -> None:
    """In a process of its own, on Linux, where the peak can be set back to what is held."""
    mde = da3_base() if name == "da3-base" else load_lite()
    mde(picture((64, 64)))  # libraries load and pools open before the measurement
    image = picture((480, 640))
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    features = mde(image).features
    assert features is not None
    added = resident("VmHWM") - before
    print(added, features.numel() * features.element_size() / 2**20)


def resident(field: str) -> float:
    """A line of this process's status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(field))
    return int(kilobytes) / 1024


def main() -> None:
    """Measure, and write bench.json and README.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ratios: dict[str, dict[str, list[float]]] = {}
    for label, shape in SHAPES.items():
        work = steps(shape)
        # Turn by turn, so that a busy moment of the machine falls on all of them.
        taken = {name: seconds(run, args.repeats) for name, run in work.items()}
        unit = float(np.median(taken[REFERENCE]))
        for name, values in taken.items():
            low, middle, high = np.quantile(np.array(values) / unit, (0.25, 0.5, 0.75))
            ratios.setdefault(name, {})[label] = [round(float(x), 5) for x in (middle, low, high)]
        print(f"{label}: done", flush=True)
    memory = {name: memory_of(name) for name in ("lite", "da3-base")}
    config = {"repeats": args.repeats, "threads": args.threads, "reference": REFERENCE}
    record = {"config": config, "provenance": provenance(), "ratios": ratios, "memory": memory}
    write_json(args.out / "bench.json", record)
    write_atomic(args.out / "README.md", table(record).encode())


def table(record: dict) -> str:
    """The ratios as Markdown: median, and the quartiles in brackets."""
    lines = [
        "# What each step costs beside the estimator",
        "",
        f"In percent of {REFERENCE} on the same image, CPU, {record['config']['threads']} threads; "
        "median of "
        f"{record['config']['repeats']} runs, quartiles in brackets. `python benchmarks/bench.py`.",
        "",
        "| step | " + " | ".join(SHAPES) + " |",
        "|---|" + "---:|" * len(SHAPES),
    ]
    for name, cells in record["ratios"].items():
        shown = [
            f"{100 * m:.3g} ({100 * low:.3g}–{100 * high:.3g})" for m, low, high in cells.values()
        ]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    lines += ["", "| at 480×640 | peak memory added | F |", "|---|---:|---:|"]
    for name, sizes in record["memory"].items():
        lines.append(
            f"| {name} forward | {sizes['peak_added_mb']:.0f} MB | {sizes['features_mb']:.1f} MB |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
