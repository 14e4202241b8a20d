"""The paper's experiment on a folder of frames, within a time limit, on one machine with a GPU.

    python recipes/paper_run.py --data FRAMES --fastdepth fastdepth.onnx \
        --vit backbone.safetensors --out runs/paper --small runs/paper-small --seconds 560

FRAMES is a folder in the layout of `scalefield.datasets.Folder`. A unit of the work, LABEL:SEED, is
one estimator and one seed of the training: the paper's preset with every K and regime, and the
evaluation of these generators on the test split, with the drop-anchor test and the spectrum. Units
are worked on in the order of --units. The estimators:

    fastdepth       FastDepth with its own features, 16 channels just before its depth head
    fastdepth-vit   the same depth, with the features of a frozen ViT-S (paper_estimators.py); its
                    F = 0 rows and aligners are those of fastdepth, because D is the same
    vit-s           a ViT-S with its own depth head and features, trained on other frames
    lite            the shipped `lite`, which has seen the frames of the train split
    fastdepth-mean  FastDepth, K = 8 alone, with the mean of the gate loss over the grid's cells in
                    place of the paper's literal sum: what that choice does to the spectrum

FastDepth and both ViTs have not seen the frames, so that nothing has to be cross-fitted; for `lite`
with cross-fitting see recipes/paper_rehearsal.sh. Seed 0 of an estimator has the aligners as well.

Several generators are trained at once on one GPU, while the next estimator is prepared and finished
units are evaluated on the CPU. At the end of --seconds everything is stopped; the same command goes
on where it stopped. Needs neither tyro nor matplotlib. What --small receives is enough for the
report, and is renewed while the work goes on:

    results.tar.xz       results, metrics and clocks of all runs, load of the GPU, log
    generators-N.tar     generators in float16 of units that are not evaluated, MDE/k8-low, …

recipes/paper_merge.py makes one folder of results of the seeds of an estimator.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from scalefield.datasets import Dataset, Frame
    from scalefield.reproduction.matrix import GeneratorJob
    from scalefield.reproduction.stages import Reproduction
    from scalefield.training.prepared import PreparedFrames

HERE = Path(__file__).resolve().parent
RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
DATA_NAME = "places"
FIELD_ROW = "Field @low,medium,high: field"
LABELS = ("fastdepth", "fastdepth-vit", "vit-s", "lite", "fastdepth-mean")
SAME_FRAMES = {"fastdepth-mean": "fastdepth"}
"""Estimators whose prepared frames are those of another."""
UNITS = (
    *(f"{label}:{seed}" for label in ("fastdepth", "fastdepth-vit") for seed in (0, 1, 2)),
    "fastdepth-mean:0",
)


@dataclass(frozen=True)
class Unit:
    """One estimator and one seed of the training."""

    label: str
    seed: int

    @classmethod
    def parse(cls, text: str) -> Unit:
        """Read LABEL:SEED."""
        label, _, seed = text.rpartition(":")
        if label not in LABELS or not seed.isdecimal():
            wanted = f"LABEL:SEED with a label of {', '.join(LABELS)}"
            raise argparse.ArgumentTypeError(f"{wanted} is wanted, found {text!r}")
        return cls(label, int(seed))

    def __str__(self) -> str:
        """LABEL:SEED."""
        return f"{self.label}:{self.seed}"


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of frames")
    parser.add_argument("--fastdepth", type=Path, help="ONNX file, described")
    parser.add_argument("--vit", type=Path, help="encoder of the frozen ViT-S")
    parser.add_argument("--vit-s", type=Path, help="folder of the model vit-s")
    parser.add_argument("--out", type=Path, required=True, help="folder of everything")
    parser.add_argument("--small", type=Path, help="folder for what is worth keeping")
    parser.add_argument("--seconds", type=float, help="stop after so long; run again to go on")
    parser.add_argument(
        "--units", type=Unit.parse, nargs="+", default=[Unit.parse(u) for u in UNITS],
        help="LABEL:SEED …, most valuable first",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, nargs=2, default=[25, 5], help="and of fine-tuning")
    parser.add_argument("--jobs", type=int, default=8, help="generators trained at once")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--limit", type=int, help="frames of each split, for a rehearsal")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", help="of this source tree, where there is no git")
    parser.add_argument("--stage", choices=("prepare", "evaluate", "work"), help=argparse.SUPPRESS)
    parser.add_argument("--shard", type=int, nargs=2, default=[0, 1], help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    files = {
        "fastdepth": ("fastdepth",),
        "fastdepth-vit": ("fastdepth", "vit"),
        "vit-s": ("vit_s",),
    }
    for unit in args.units:
        for name in files.get(SAME_FRAMES.get(unit.label, unit.label), []):
            if getattr(args, name) is None or not getattr(args, name).exists():
                parser.error(f"{unit} needs --{name.replace('_', '-')}, a file or folder")
    return args


def main() -> None:
    """Start the work in a process group of its own, stop it in time, and pack what there is."""
    args = arguments()
    if args.stage:
        {"work": work, "prepare": prepare, "evaluate": evaluate}[args.stage](args)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the work is stopped too
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    gpu = subprocess.Popen(
        [*["nvidia-smi", "--query-gpu=timestamp,utilization.gpu,memory.used"],
         *["--format=csv,noheader,nounits", "-l", "1"]],
        stdout=(args.out / "gpu.csv").open("a"),
    ) if shutil.which("nvidia-smi") else None  # fmt: skip
    child = subprocess.Popen(
        command(args, "work", args.units), env=environment(args), process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    copier = Thread(target=copy_log, args=(child.stdout, args.out / "log.txt", began), daemon=True)
    copier.start()
    code: int | None = None
    try:
        while code is None:
            left = float("inf") if args.seconds is None else args.seconds - time.monotonic() + began
            if left <= 0:
                print(f"stopped after {args.seconds:.0f} s; the same command goes on", flush=True)
                break
            try:
                code = child.wait(min(left, 90))
            except subprocess.TimeoutExpired:
                if args.small and left > 90:  # a machine may be taken away at any time
                    pack_results(args)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                time.sleep(2)
            except ProcessLookupError:
                break
        if gpu is not None:
            gpu.terminate()
        copier.join(2)
        if args.small:
            pack(args)
    sys.exit(0 if code is None else code)


def copy_log(lines: IO[str], file: Path, began: float) -> None:
    """Each line of the work with the seconds since the start, to the terminal and to a file."""
    with file.open("a") as log:
        for line in lines:
            text = f"{time.monotonic() - began:6.1f} {line.rstrip()}"
            print(text, flush=True)
            print(text, file=log, flush=True)


def command(
    args: argparse.Namespace, stage: str, units: list[Unit], shard: tuple[int, int] = (0, 1)
) -> list[str]:
    """This program, for one stage."""
    words = [sys.executable, str(Path(__file__).resolve()), "--stage", stage]
    for name in ("data", "fastdepth", "vit", "vit_s", "out", "jobs", "workers", "limit", "device",
                 "commit"):  # fmt: skip
        if getattr(args, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    words += ["--units", *map(str, units), "--epochs", *map(str, args.epochs)]
    return [*words, "--shard", *map(str, shard)]


def environment(args: argparse.Namespace) -> dict[str, str]:
    """For the stages: where the package and the estimators are, one thread for each process."""
    paths = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "PAPER_FASTDEPTH": str(args.fastdepth.resolve()) if args.fastdepth else "",
        "PAPER_VIT": str(args.vit.resolve()) if args.vit else "",
    }


# ---- the work, in a process of its own -------------------------------------------------------


def work(args: argparse.Namespace) -> None:
    """All units: while generators are trained, the next estimator is prepared and finished units
    are evaluated, each by processes of its own."""
    from scalefield.reproduction.stages import TrainingTask
    from scalefield.runtime.workers import worker_pool

    prepared = args.out / "prepared"
    prepared.mkdir(exist_ok=True)
    for label, other in SAME_FRAMES.items():
        if not (prepared / label).exists():
            (prepared / label).symlink_to(other)
    builds = {unit: build(args, unit) for unit in args.units}
    pending = [
        (unit, job)
        for unit, reproduction in builds.items()
        for job in reproduction.job_list
        if not reproduction.finished(reproduction.estimators[0], job)
    ]
    preparing = Preparing(args, [unit for unit, _ in pending])
    evaluating = Evaluating(args)
    running: dict[Future[None], tuple[Unit, GeneratorJob]] = {}
    with worker_pool(args.jobs) as pool:
        while True:
            open_units = {unit for unit, _ in (*pending, *running.values())}
            evaluating.go_on([unit for unit in builds if unit not in open_units])
            preparing.go_on()
            for unit, job in list(pending):
                frames, reproduction = preparing.frames(unit), builds[unit]
                startable = reproduction.can_start(reproduction.estimators[0], job)
                if len(running) == args.jobs or frames is None or not startable:
                    continue
                task = reproduction.training_task(reproduction.estimators[0], job, *frames)
                running[pool.submit(TrainingTask.run, task)] = unit, job
                pending.remove((unit, job))
            if not pending and not running and evaluating.ended(builds):
                return
            done = wait(running, 0.5, FIRST_COMPLETED).done if running else time.sleep(0.5)
            for future in done or ():
                unit, job = running.pop(future)
                future.result()
                print(f"{unit.label}: {job.name} is trained", flush=True)


class Preparing:
    """Prepares the frames of one estimator after another, each in several processes."""

    def __init__(self, args: argparse.Namespace, units: list[Unit]) -> None:
        self.args = args
        named = {SAME_FRAMES.get(unit.label, unit.label): unit for unit in reversed(units)}
        self.waiting = list(dict(reversed(named.items())).items())
        self.processes: list[subprocess.Popen[bytes]] = []
        self.made: dict[str, tuple[PreparedFrames, PreparedFrames]] = {}

    def go_on(self) -> None:
        """Open the frames of the estimator whose processes have ended, and begin the next."""
        if not self.waiting or any(process.poll() is None for process in self.processes):
            return
        label, unit = self.waiting[0]
        if self.processes:
            for process in self.processes:
                finish(process)
            self.processes = []
            self.made[label] = self.open(unit)
            self.waiting.pop(0)
            self.go_on()
            return
        count = shards(self.args, unit)
        nice = ["nice", "-n", "3"] if self.made and shutil.which("nice") else []
        self.processes = [
            subprocess.Popen([*nice, *command(self.args, "prepare", [unit], (i, count))])
            for i in range(count)
        ]

    def open(self, unit: Unit) -> tuple[PreparedFrames, PreparedFrames]:
        """All prepared frames of an estimator."""
        reproduction = on_cpu(build(self.args, unit))
        reproduction.claim()
        train, val = reproduction.prepare(reproduction.estimators[0])
        print(
            f"{unit.label}: {len(train)} and {len(val)} frames are prepared, "
            f"{steps(reproduction, train)} steps a seed",
            flush=True,
        )
        return train, val

    def frames(self, unit: Unit) -> tuple[PreparedFrames, PreparedFrames] | None:
        """The frames to train on and to validate on; None while they are being prepared."""
        return self.made.get(SAME_FRAMES.get(unit.label, unit.label))


class Evaluating:
    """Evaluates one unit after another. It is many small computations: the CPU's work."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.process: subprocess.Popen[bytes] | None = None
        self.begun: list[Unit] = []

    def go_on(self, trained: list[Unit]) -> None:
        """Begin the first unit that is trained and not evaluated, if no other is under way."""
        if self.process is not None:
            if self.process.poll() is None:
                return
            finish(self.process)
            self.process = None
        unit = next((unit for unit in trained if unit not in self.begun), None)
        if unit is None:
            return
        self.begun.append(unit)
        if results(self.args.out, unit).is_file():
            return
        nice = ["nice", "-n", "5"] if shutil.which("nice") else []
        self.process = subprocess.Popen(
            [*nice, *command(self.args, "evaluate", [unit])],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )

    def ended(self, units: dict[Unit, Reproduction]) -> bool:
        """Whether all units are evaluated."""
        return self.process is None and len(self.begun) == len(units)


def on_cpu(reproduction: Reproduction) -> Reproduction:
    """With FastDepth on the CPU, where onnxruntime can always run it."""
    return replace(reproduction, device="cpu")


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a stage; its failure ends this one."""
    if code := process.wait():
        sys.exit(code)


@dataclass(frozen=True)
class Shard:
    """Every n-th frame of each split of a dataset."""

    dataset: Dataset
    index: int
    count: int
    limit: int | None = None
    """Frames of each split before it is divided."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.dataset.name

    @property
    def ranges_m(self) -> Mapping[str, tuple[float, float]]:
        """The dataset's depth ranges."""
        return getattr(self.dataset, "ranges_m", {})

    def names(self, split: str) -> list[str]:
        """The frames of a split."""
        from scalefield.training.preparation import split_names

        return split_names(self.dataset, split, self.limit)[self.index :: self.count]

    def load(self, name: str) -> Frame:
        """One frame."""
        return self.dataset.load(name)


def shards(args: argparse.Namespace, unit: Unit) -> int:
    """Processes among which preparation is divided; none of them without a frame."""
    from scalefield.training.preparation import split_names

    dataset = build(args, unit).datasets[DATA_NAME]
    counts = [len(split_names(dataset, split, args.limit)) for split in ("train", "val")]
    return max(1, min(args.workers, *counts))


def prepare(args: argparse.Namespace) -> None:
    """A part of the prepared frames of one estimator."""
    reproduction = build(args, args.units[0])
    part = Shard(reproduction.datasets[DATA_NAME], *args.shard, args.limit)
    # The frames of a shard are few: the process reads them itself.
    device = "cpu" if args.units[0].label.startswith("fastdepth") else args.device
    alone = replace(reproduction, datasets={DATA_NAME: part}, limit=None, workers=0, device=device)
    alone.prepare(alone.estimators[0])


def evaluate(args: argparse.Namespace) -> None:
    """Every row of one unit on the test split."""
    from scalefield.io import read_json, write_json

    unit = args.units[0]
    reproduction = on_cpu(build(args, unit))
    ready = replace(
        reproduction,
        out=results(args.out, unit).parents[2],
        generators=str(args.out / "generators"),
    )
    folder = ready.evaluate(ready.estimators[0], DATA_NAME)
    if args.commit:
        record = read_json(folder / "results.json")
        record["provenance"]["commit"] = args.commit
        write_json(folder / "results.json", record)
    print(f"{unit}: evaluated", flush=True)


def results(out: Path, unit: Unit) -> Path:
    """Where the results of a unit are."""
    return out / f"seed{unit.seed}" / "results" / f"{DATA_NAME}-{unit.label}" / "results.json"


def build(args: argparse.Namespace, unit: Unit) -> Reproduction:
    """The reproduction of one unit."""
    from scalefield.basis.losses import LossWeights
    from scalefield.benchmark.method_spec import parse_methods
    from scalefield.datasets import Folder
    from scalefield.reproduction.stages import EstimatorSpec, Reproduction

    label, mean = unit.label, unit.label == "fastdepth-mean"
    sources = {
        "fastdepth-vit": "paper_estimators:fastdepth_vit",
        "vit-s": str(args.vit_s),
        "lite": "lite",
    }
    own_depth = label != "fastdepth-vit" and not mean
    first = own_depth and unit.seed == 0
    return Reproduction(
        out=args.out,
        datasets={DATA_NAME: Folder(args.data, RANGES_M)},
        estimators=(EstimatorSpec(label, sources.get(label, str(args.fastdepth))),),
        seeds=(unit.seed,),
        k=(8,) if mean else (8, 30, 50),
        changes={"losses": LossWeights(literal_gate_sum=False)} if mean else {},
        epochs=tuple(args.epochs),
        ablation=own_depth,
        aligners=first,
        disparity=False,
        in_sample=label == "lite",
        limit=args.limit,
        device=args.device,
        workers=args.workers,
        jobs=args.jobs,
        frames_on_device=True,
        overwrite=True,
        tables=False,
        gallery=False,
        pictures=False,
        show_progress=False,
        extra_rows=parse_methods([FIELD_ROW]) if first else (),
    )


def steps(reproduction: Reproduction, frames: PreparedFrames) -> int:
    """Training steps of all generators of a unit."""
    from scalefield.training.data import epoch_batches

    configs = [reproduction.config(job) for job in reproduction.job_list]
    return sum(c.epochs * len(epoch_batches(frames, c.batch, c.seed, 0)) for c in configs)


# ---- what is worth keeping -------------------------------------------------------------------

KEPT = (
    "seed*/results/*/frames/**/*.json", "seed*/results/*/*.json", "seed*/results/*/*.txt",
    "generators/*/*/run.json", "generators/*/*/metrics.jsonl", "generators/*/*/clock.json",
    "generators/*/*/finished.json", "prepared/*/left_out.json", "prepared/*/*/prepared.json",
    "log.txt", "gpu.csv", "training.json",
)  # fmt: skip


def pack(args: argparse.Namespace) -> None:
    """Write results.tar.xz, and the finished generators."""
    pack_results(args)
    code = "from paper_run import pack_generators; import sys; pack_generators(*sys.argv[1:])"
    words = [sys.executable, "-c", code, str(args.out), str(args.small)]
    subprocess.run(words, env=environment(args), check=True)
    for file in sorted(args.small.rglob("*")):
        if file.is_file():
            print(f"{file.stat().st_size / 1e6:8.2f} MB  {file}")


def pack_results(args: argparse.Namespace) -> None:
    """Write results.tar.xz, with what there is by now."""
    args.small.mkdir(parents=True, exist_ok=True)
    (args.out / "training.json").write_text(json.dumps(summary(args.out), indent=1) + "\n")
    files = sorted({file for pattern in KEPT for file in args.out.glob(pattern) if file.is_file()})
    unfinished = args.small / "results.tar.xz.part"
    with tarfile.open(unfinished, "w:xz", preset=1) as tar:
        for file in files:
            tar.add(file, file.relative_to(args.out))
    unfinished.replace(args.small / "results.tar.xz")


CHOSEN = ("train_absrel", "val_absrel", "val_dense", "val_gate", "val_g0")
"""Metrics of the chosen step that the summary has."""


def summary(out: Path) -> dict[str, object]:
    """Of each generator its chosen validation and what its training took; the load of the GPU."""
    runs: dict[str, object] = {}
    for file in sorted(out.glob("generators/*/*/metrics.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        best = min(lines, key=lambda line: line["val_loss"])
        runs["/".join(file.parts[-3:-1])] = {
            "finished": (file.parent / "finished.json").is_file(),
            "steps": lines[-1]["step"],
            "chosen_step": best["step"],
            **{name: best[name] for name in CHOSEN if name in best},
            **json.loads((file.parent / "clock.json").read_text()),
        }
    found: dict[str, object] = {"generators": runs}
    samples = [
        tuple(map(float, line.split(",")[1:]))
        for line in ((out / "gpu.csv").read_text() if (out / "gpu.csv").is_file() else "").split(
            "\n"
        )
        if line.count(",") == 2 and "N/A" not in line
    ]
    if samples:
        busy = [utilisation for utilisation, _ in samples]
        found["gpu, once a second, all processes"] = {
            "seconds": len(samples),
            "mean_utilisation_percent": round(sum(busy) / len(busy), 1),
            "median_utilisation_percent": statistics.median(busy),
            "most_memory_gb": round(max(memory for _, memory in samples) * 2**20 / 1e9, 1),
        }
    return found


def pack_generators(out: str, small: str, most_mb: float = 15.0, most_archives: int = 3) -> None:
    """Write trained generators, in float16, into a few archives of at most so many megabytes.

    Those of units that are evaluated are left out.
    """
    import torch

    from scalefield.basis.generator import Generator

    with tempfile.TemporaryDirectory() as temporary:
        archives, size = [list[Path]()], 0
        for record in sorted(Path(out).glob("generators/*/*/finished.json")):
            name = record.parent.relative_to(Path(out) / "generators")
            seed = re.search(r"-s(\d+)$", name.name)
            unit = Unit(name.parts[0], int(seed[1]) if seed else 0)
            if results(Path(out), unit).is_file():
                continue
            half = Path(temporary) / name
            Generator.load(record.parent / "model").save(half, torch.float16)
            added = sum(file.stat().st_size + 1024 for file in half.iterdir())
            if size + added > most_mb * 1e6:
                if len(archives) == most_archives:
                    break
                archives.append([])
                size = 0
            archives[-1].append(half)
            size += added
        for former in Path(small).glob("generators-*.tar"):
            former.unlink()
        for i, members in enumerate(filter(None, archives)):
            with tarfile.open(Path(small) / f"generators-{i}.tar", "w") as tar:
                for half in members:
                    tar.add(half, half.relative_to(temporary))


if __name__ == "__main__":
    main()
