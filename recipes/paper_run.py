"""The paper's experiment on a folder of frames, within a time limit, on one machine with a GPU.

    python recipes/paper_run.py --data FRAMES --fastdepth fastdepth.onnx \
        --vit backbone.safetensors --out runs/paper --small runs/paper-small --seconds 560

FRAMES is a folder in the layout of `scalefield.datasets.Folder`. For each estimator: the paper's
preset, every K and regime, F and F = 0, three seeds; then the evaluation of all generators and the
aligners on the test split, with the drop-anchor test and the spectrum. The estimators, in order:

    fastdepth       FastDepth with its own features, 16 channels just before its depth head
    fastdepth-vit   the same depth, with the features of a frozen ViT-S (paper_estimators.py); its
                    F = 0 rows are those of fastdepth, because D is the same
    fastdepth-mean  FastDepth, K = 8 alone, with the mean of the gate loss over the grid's cells in
                    place of the paper's literal sum: what that choice does to the spectrum

Neither network has seen the frames, so that nothing has to be cross-fitted. `lite` and its teacher
were trained on frames of the train split; for them see recipes/paper_rehearsal.sh.

Several generators are trained at once on one GPU, seed by seed, while finished estimators are
evaluated on the CPU. At the end of --seconds everything is stopped; the same command goes on where
it stopped. Needs neither tyro nor matplotlib. What --small receives is enough for the report:

    results.tar.xz       results, metrics and clocks of all runs, load of the GPU, log
    generators-N.tar     the generators in float16, MDE/k8-low, …

The tables are drawn from it with `scalefield report results/*`.
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
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from scalefield.reproduction.stages import Reproduction
    from scalefield.training.prepared import PreparedFrames

HERE = Path(__file__).resolve().parent
RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
DATA_NAME = "places"
FIELD_ROW = "Field @low,medium,high: field"
LABELS = ("fastdepth", "fastdepth-vit", "fastdepth-mean")


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of frames")
    parser.add_argument("--fastdepth", type=Path, required=True, help="ONNX file, described")
    parser.add_argument("--vit", type=Path, help="encoder of the ViT-S; without it one estimator")
    parser.add_argument("--out", type=Path, required=True, help="folder of everything")
    parser.add_argument("--small", type=Path, help="folder for what is worth keeping")
    parser.add_argument("--seconds", type=float, help="stop after so long; run again to go on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, nargs=2, default=[25, 5], help="and of fine-tuning")
    parser.add_argument("--jobs", type=int, default=8, help="generators trained at once")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--limit", type=int, help="frames of each split, for a rehearsal")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", help="of this source tree, where there is no git")
    parser.add_argument("--stage", choices=("prepare", "evaluate", "work"), help=argparse.SUPPRESS)
    parser.add_argument("--estimator", choices=LABELS, help=argparse.SUPPRESS)
    return parser.parse_args()


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
        command(args, "work"), env=environment(args), process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    copier = Thread(target=copy_log, args=(child.stdout, args.out / "log.txt", began), daemon=True)
    copier.start()
    try:
        code = child.wait(args.seconds)
    except subprocess.TimeoutExpired:
        code = None
        print(f"stopped after {args.seconds:.0f} s; the same command goes on", flush=True)
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


def command(args: argparse.Namespace, stage: str, estimator: str | None = None) -> list[str]:
    """This program, for one stage."""
    words = [sys.executable, str(Path(__file__).resolve()), "--stage", stage]
    for name in ("data", "fastdepth", "vit", "out", "jobs", "workers", "limit", "device", "commit"):
        if getattr(args, name) is not None:
            words += [f"--{name}", str(getattr(args, name))]
    words += ["--seeds", *map(str, args.seeds), "--epochs", *map(str, args.epochs)]
    return words + (["--estimator", estimator] if estimator else [])


def environment(args: argparse.Namespace) -> dict[str, str]:
    """For the stages: where the package and the estimators are, one thread for each process."""
    paths = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "PAPER_FASTDEPTH": str(args.fastdepth.resolve()),
        "PAPER_VIT": str(args.vit.resolve()) if args.vit else "",
    }


# ---- the work, in a process of its own -------------------------------------------------------


def work(args: argparse.Namespace) -> None:
    """Every stage of every estimator: while one is trained, the next is prepared and the one before
    is evaluated."""
    labels = [label for label in LABELS if args.vit or label != "fastdepth-vit"]
    threads = {**os.environ, "OMP_NUM_THREADS": str(max(1, args.workers // 2))}
    prepared = args.out / "prepared"
    prepared.mkdir(exist_ok=True)
    if not (prepared / "fastdepth-mean").exists():  # the same frames
        (prepared / "fastdepth-mean").symlink_to("fastdepth")
    preparing = {
        label: subprocess.Popen(command(args, "prepare", label), env=threads)
        for label in labels
        if label != "fastdepth-mean"
    }
    evaluating = []
    for label in labels:
        finish(preparing[label if label in preparing else "fastdepth"])
        reproduction = build(args, label)
        train, val = on_cpu(reproduction).prepare(reproduction.estimators[0])  # opens the files
        jobs = reproduction.job_list
        print(f"{label}: {len(jobs)} generators, {steps(reproduction, train)} steps", flush=True)
        reproduction.train(reproduction.estimators[0], train, val)
        # Evaluation is many small computations: the CPU's work, one process for each core.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        nice = ["nice", "-n", "5"] if shutil.which("nice") else []
        evaluating.append(
            subprocess.Popen([*nice, *command(args, "evaluate", label)], env=environment)
        )
    for process in evaluating:
        finish(process)


def on_cpu(reproduction: Reproduction) -> Reproduction:
    """With FastDepth on the CPU, where onnxruntime can always run it."""
    return replace(reproduction, device="cpu")


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a stage; its failure ends this one."""
    if code := process.wait():
        sys.exit(code)


def prepare(args: argparse.Namespace) -> None:
    """The prepared frames of one estimator."""
    reproduction = on_cpu(build(args, args.estimator))
    reproduction.check()
    reproduction.claim()
    train, val = reproduction.prepare(reproduction.estimators[0])
    print(f"{args.estimator}: {len(train)} and {len(val)} frames are prepared", flush=True)


def evaluate(args: argparse.Namespace) -> None:
    """Every row of one estimator on the test split."""
    from scalefield.io import read_json, write_json

    reproduction = on_cpu(build(args, args.estimator))
    folder = reproduction.evaluate(reproduction.estimators[0], DATA_NAME)
    if args.commit:
        record = read_json(folder / "results.json")
        record["provenance"]["commit"] = args.commit
        write_json(folder / "results.json", record)
    print(f"{args.estimator}: evaluated", flush=True)


def build(args: argparse.Namespace, label: str) -> Reproduction:
    """The reproduction of one estimator."""
    from scalefield.basis.losses import LossWeights
    from scalefield.benchmark.method_spec import parse_methods
    from scalefield.datasets import Folder
    from scalefield.reproduction.matrix import basis_rows, find_generators
    from scalefield.reproduction.stages import Estimator, Reproduction

    own_depth = str(args.fastdepth)
    source = "paper_estimators:fastdepth_vit" if label == "fastdepth-vit" else own_depth
    mean = LossWeights(literal_gate_sum=False)
    own = Reproduction(
        out=args.out,
        datasets={DATA_NAME: Folder(args.data, RANGES_M)},
        estimators=(Estimator(label, source),),
        seeds=tuple(args.seeds),
        ks=(8,) if label == "fastdepth-mean" else (8, 30, 50),
        changes={"losses": mean} if label == "fastdepth-mean" else {},
        epochs=tuple(args.epochs),
        ablation=label == "fastdepth",
        aligners=label != "fastdepth-mean",
        disparity=False,
        limit=args.limit,
        device=args.device,
        workers=args.workers,
        jobs=args.jobs,
        frames_on_device=True,
        overwrite=True,
        tables=False,
        gallery=False,
        show_progress=False,
        extra_rows=parse_methods([FIELD_ROW]) if label == "fastdepth" else (),
    )
    if label != "fastdepth-vit" or args.stage != "evaluate":
        return own
    twins = [job for job in replace(own, ablation=True).job_list if job.zero_features]
    generators = find_generators(args.out / "generators", "fastdepth", twins)
    return replace(own, extra_rows=tuple(basis_rows(generators)))


def steps(reproduction: Reproduction, frames: PreparedFrames) -> int:
    """Training steps of all generators of an estimator."""
    from scalefield.training.data import epoch_batches

    configs = [reproduction.config(job) for job in reproduction.job_list]
    return sum(c.epochs * len(epoch_batches(frames, c.batch, c.seed, 0)) for c in configs)


# ---- what is worth keeping -------------------------------------------------------------------

KEPT = (
    "results/**/*.json", "results/**/*.txt", "results/**/*.csv", "splits/**/*.txt",
    "generators/*/*/run.json", "generators/*/*/metrics.jsonl", "generators/*/*/clock.json",
    "generators/*/*/finished.json", "prepared/*/left_out.json", "prepared/*/*/prepared.json",
    "log.txt", "gpu.csv", "training.json",
)  # fmt: skip


def pack(args: argparse.Namespace) -> None:
    """Write results.tar.xz, and the finished generators."""
    args.small.mkdir(parents=True, exist_ok=True)
    (args.out / "training.json").write_text(json.dumps(summary(args.out), indent=1) + "\n")
    files = sorted({file for pattern in KEPT for file in args.out.glob(pattern) if file.is_file()})
    with tarfile.open(args.small / "results.tar.xz", "w:xz", preset=3) as tar:
        for file in files:
            tar.add(file, file.relative_to(args.out))
    code = "from paper_run import pack_generators; import sys; pack_generators(*sys.argv[1:])"
    words = [sys.executable, "-c", code, str(args.out), str(args.small)]
    subprocess.run(words, env=environment(args), check=True)
    for file in sorted(args.small.rglob("*")):
        if file.is_file():
            print(f"{file.stat().st_size / 1e6:8.2f} MB  {file}")


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
            "val_absrel": best["val_absrel"],
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


def pack_generators(out: str, small: str, most_mb: float = 15.0) -> None:
    """Write finished generators, in float16, into archives of at most so many megabytes.

    Of an estimator that is evaluated, the generators of seed 0 are enough.
    """
    import torch

    from scalefield.basis.generator import Generator

    with tempfile.TemporaryDirectory() as temporary:
        archives, size = [list[Path]()], 0
        for record in sorted(Path(out).glob("generators/*/*/finished.json")):
            name = record.parent.relative_to(Path(out) / "generators")
            evaluated = Path(out) / "results" / f"{DATA_NAME}-{name.parts[0]}" / "results.json"
            if evaluated.is_file() and re.search(r"-s\d+$", name.name):
                continue
            half = Path(temporary) / name
            Generator.load(record.parent / "model").save(half, torch.float16)
            added = sum(file.stat().st_size + 1024 for file in half.iterdir())
            if size + added > most_mb * 1e6:
                archives.append([])
                size = 0
            archives[-1].append(half)
            size += added
        for i, members in enumerate(archives):
            with tarfile.open(Path(small) / f"generators-{i}.tar", "w") as tar:
                for half in members:
                    tar.add(half, half.relative_to(temporary))


if __name__ == "__main__":
    main()
