"""Costs of training at the paper's scale, measured on a part and extrapolated.

    python recipes/measure_pipeline.py --kitti KITTI_RAW --sunrgbd SUNRGBD --places DATA \
        --out results/pipeline
    python recipes/measure_pipeline.py --places DATA --recovery --out results/pipeline
    python recipes/measure_pipeline.py --training --workers 16 --out results/pipeline

A few frames of KITTI Raw and SUN RGB-D in their own layouts and two made-up frames of UrbanSyn's
size are prepared with networks of the sizes of DA3-BASE and DPT-Hybrid, whose random weights cost
what trained ones cost. `--places` (a plain folder) shows what 8-bit features lose: the shipped
generators of `lite`, validated with F in 8 bits and in float16.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from scalefield.anchor_sampling import REGIMES
from scalefield.basis.generator import Generator
from scalefield.benchmark.run import Evaluation, Evaluator
from scalefield.datasets import Dataset, Folder, Frame, Kitti, SunRgbd, UrbanSyn
from scalefield.datasets.source import FrameSource
from scalefield.datasets.splits import thin
from scalefield.io import write_json
from scalefield.io.weights import WEIGHTS
from scalefield.mde import MDE, MDEOutput, load_mde
from scalefield.mde.da3 import BASE, DA3
from scalefield.mde.da3 import PREPROCESS as DA3_PREPROCESS
from scalefield.mde.estimator import Estimator
from scalefield.mde.transformers_mde import PREPROCESS as DPT_PREPROCESS
from scalefield.mde.transformers_mde import TransformersNetwork
from scalefield.reproduction.matrix import aligner_rows, universal_rows
from scalefield.runtime.provenance import provenance
from scalefield.training.bank import Batch
from scalefield.training.basis import build, training_step, validation
from scalefield.training.basis_batches import Batches, step_plan, stream
from scalefield.training.basis_config import BasisTraining, default_preset, paper_preset
from scalefield.training.data import TrainingFrame, frame_table, training_frame
from scalefield.training.loop import pick_device
from scalefield.training.preparation import (
    WRITER_THREADS,
    Preparation,
    frame_file,
    open_prepared,
    prepare_split,
)
from scalefield.training.prepared import PreparedFrames, pack_frame

FULL = {"kitti": (1009, 100, 289), "urbansyn": (6031, 754, 754), "sunrgbd": (8267, 1034, 1034)}
RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}


def dequantise(frame: TrainingFrame) -> TrainingFrame:
    """The frame with its features in float16."""
    if frame.features is None or frame.quantisation is None:
        return frame
    step, least = frame.quantisation[..., None, None]
    features = torch.addcmul(least, frame.features.float(), step).half()
    return dataclasses.replace(frame, features=features, quantisation=None)


def networks() -> dict[str, MDE]:
    """DA3-BASE and MiDaS DPT-Hybrid with random weights."""
    import transformers

    torch.manual_seed(0)
    da3 = DA3(BASE).requires_grad_(False).eval()
    config = transformers.DPTConfig(
        is_hybrid=True, neck_hidden_sizes=[256, 512, 768, 768], reassemble_factors=[1, 1, 1, 0.5]
    )
    dpt = transformers.DPTForDepthEstimation(config)
    with torch.no_grad():
        dpt.head.head[4].bias.fill_(2.0)
    midas = TransformersNetwork(dpt).requires_grad_(False).eval()
    return {
        "da3-base": Estimator("da3-base", "random", "depth", DA3_PREPROCESS, da3),
        "midas-hybrid": Estimator(
            "midas-hybrid", "random", "disparity", DPT_PREPROCESS["dpt"], midas
        ),
    }


def write_urbansyn(root: Path, frames: int = 2) -> UrbanSyn:
    """Frames of UrbanSyn's size and layout: smooth pictures and depth with boxes."""
    import OpenEXR

    rng = np.random.default_rng(0)
    for folder in ("rgb", "depth", "ss"):
        (root / folder).mkdir(parents=True)
    for i in range(frames):
        coarse = Image.fromarray(rng.integers(0, 256, (32, 64, 3), dtype=np.uint8))
        coarse.resize((2048, 1024), Image.Resampling.BICUBIC).save(root / f"rgb/rgb_{i:04d}.png")
        depth = np.linspace(5, 75, 2048, dtype=np.float32)[None].repeat(1024, 0) / 1e5
        depth[400:700, 300:900] /= 3
        depth += rng.normal(0, 1e-7, depth.shape).astype(np.float32)  # nothing to compress
        with OpenEXR.File({"compression": OpenEXR.ZIP_COMPRESSION}, {"V": depth}) as file:
            file.write(str(root / f"depth/depth_{i:04d}.exr"))
        labels = np.zeros((1024, 2048, 4), np.uint8)
        labels[:200, :, 0] = 10
        Image.fromarray(labels).save(root / f"ss/ss_{i:04d}.png")
    return UrbanSyn(root)


def measure_dataset(name: str, dataset: Dataset, mdes: dict[str, MDE]) -> dict[str, object]:
    """Bytes and seconds a frame, each on one core and without the MDE."""
    torch.set_num_threads(1)
    names = dataset.names("all")[:3]
    frames, read_s, table_s = list[Frame](), 0.0, 0.0
    for frame_name in [names[0], *names]:  # the first once to warm up
        began = time.process_time()
        frame = dataset.load(frame_name)
        _ = frame.mask
        middle = time.process_time()
        table = frame_table(frame, Preparation().regimes)
        if frame_name != names[0] or frames:
            read_s += middle - began
            table_s += time.process_time() - middle
        frames.append(frame)
    frames = frames[1:]
    record: dict[str, object] = {
        "frames": len(frames),
        "size": list(frames[0].image.shape[:2]),
        "read_core_s": round(read_s / len(frames), 3),
        "table_core_s": round(table_s / len(frames), 3),
    }
    for mde_name, mde in mdes.items():
        torch.set_num_threads(2)
        output = mde(frames[0].image)
        torch.set_num_threads(1)
        table = frame_table(frames[0], Preparation().regimes)
        training_frame(table, output)
        began = time.process_time()
        prepared = training_frame(table, output)
        packed = {kept: pack_frame(prepared, "", kept) for kept in ("uint8", "float16")}
        record[mde_name] = {
            "finish_core_s": round(time.process_time() - began, 3),
            "bytes": {kept: len(data) for kept, data in packed.items()},
            "F": list(prepared.features.shape) if prepared.features is not None else None,
        }
    return record


def arithmetic(measured: dict[str, dict], cores: int = 16) -> dict[str, object]:
    """The full datasets: disk of train and val, and preparation without the MDE's own time.

    Reading is divided among the cores; a few threads finish the frames at the same time.
    """
    totals: dict[str, object] = {}
    for mde in ("da3-base", "midas-hybrid"):
        disk, frames = {"uint8": 0.0, "float16": 0.0}, 0
        reading, finishing = 0.0, 0.0
        for name, counts in FULL.items():
            if name not in measured:
                continue
            n = counts[0] + counts[1]
            frames += n
            one = measured[name]
            for kept in disk:
                disk[kept] += n * one[mde]["bytes"][kept] / 1e9
            reading += n * (one["read_core_s"] + one["table_core_s"])
            finishing += n * one[mde]["finish_core_s"]
        totals[mde] = {
            "frames": frames,
            "disk_gb": {kept: round(size, 1) for kept, size in disk.items()},
            "prepare_core_h": round((reading + finishing) / 3600, 2),
            f"prepare_min_on_{cores}_cores": round(
                max(reading / cores, finishing / WRITER_THREADS) / 60, 1
            ),
        }
    return totals


def measure_stream(frames: PreparedFrames, workers: int, device: str) -> dict[str, object]:
    """Batches a second that workers deliver from memory-mapped files, and the memory they take."""
    config = dataclasses.replace(paper_preset(8, "low"), batch=24)
    many = PreparedFrames(frames.entries * (-(-480 // len(frames))))
    batches = Batches(many, config, step_plan(many, config)[: len(many) // config.batch])
    on = pick_device(device)
    ready = stream(batches, on, workers)
    next(ready)
    began, count = time.perf_counter(), 0
    for _ in ready:
        count += 1
    seconds = (time.perf_counter() - began) / count
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    return {
        "workers": workers,
        "batch_mb": round(batch_bytes(batches[0]) / 1e6, 1),
        "s_per_batch": round(seconds, 4),
        "s_per_batch_and_worker": round(seconds * max(1, workers), 4),
        "peak_gb_of_this_process": round(peak, 2),
        "peak_gb_of_a_worker": round(children, 2),
    }


def batch_bytes(batch: Batch) -> int:
    """Size of all tensors of a batch."""
    tables = [*vars(batch.pixels).values(), *vars(batch.anchors).values()]
    tensors = [x for x in (*vars(batch).values(), *tables) if isinstance(x, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def write_copies(folder: Path, channels: int, count: int = 24) -> PreparedFrames:
    """Prepared frames of the largest size there is, SUN RGB-D's Kinect 2, all of one content."""
    rng = torch.Generator().manual_seed(0)
    shape = (530, 730)
    image = np.zeros((*shape, 3), np.uint8)
    depth_m = np.linspace(1, 9, shape[0] * shape[1], dtype=np.float32).reshape(shape)
    frame = Frame("synthetic", "room", "room", image, depth_m, (0.1, 10.0))
    output = MDEOutput(
        torch.rand(shape, generator=rng) + 1,
        "depth",
        torch.randn(channels, 192, 256, generator=rng),
    )
    prepared = training_frame(frame_table(frame, Preparation().regimes), output)
    names = [f"copy{i:02d}" for i in range(count)]
    for name in names:
        file = frame_file(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pack_frame(dataclasses.replace(prepared, name=name), "", "uint8"))
    return open_prepared(folder, names)


def measure_training(folder: Path, workers: int, device: str) -> dict[str, object]:
    """The largest frames there are, streamed, and steps of training on them."""
    frames = write_copies(folder / "midas-hybrid", 256)
    config = paper_preset(8, "low")
    batches = Batches(frames, config, step_plan(frames, config)[:4])
    torch.set_num_threads(1)
    made = batches[0]
    began = time.process_time()
    for i in range(1, 4):
        batches[i]
    core_s = (time.process_time() - began) / 3
    record: dict[str, object] = {
        "a batch, MiDaS on SUN RGB-D": {
            "frames": config.batch,
            "megabytes": round(batch_bytes(made) / 1e6, 1),
            "core_s": round(core_s, 4),
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        }
    }
    on = pick_device(device)
    if on.type != "cuda":  # wall-clock figures are of use where steps are fast
        return record
    record["streaming"] = measure_stream(frames, workers, device)
    sets = {"da3-base": write_copies(folder / "da3-base", 128), "midas-hybrid": frames}
    record["training"] = {
        f"{name}, K = {k}": measure_steps(frames, paper_preset(k, "medium"), workers, on)
        for name, frames in sets.items()
        for k in (8, 50)
    }
    return record


def measure_steps(
    frames: PreparedFrames,
    config: BasisTraining,
    workers: int,
    on: torch.device,
    *,
    steps: int = 60,
    warm: int = 20,
) -> dict[str, float]:
    """Training as `train_basis` does it, frames streamed from disk: time of a step, what part of it
    is waiting for data, how long the GPU computes, and the memory that it needs."""
    many = PreparedFrames(frames.entries * (-(-config.batch * 2 * steps // len(frames))))
    generator = build(config, frames, None).to(on).train()
    optimiser = torch.optim.AdamW(generator.parameters(), lr=config.rate)
    ready = stream(Batches(many, config, step_plan(many, config)[: 2 * steps]), on, workers)
    torch.cuda.reset_peak_memory_stats(on)

    def run(first: int, last: int) -> tuple[float, float]:
        """Seconds of these steps, and those spent waiting for batches."""
        torch.cuda.synchronize(on)
        began, waited = time.perf_counter(), 0.0
        for step in range(first, last):
            asked = time.perf_counter()
            batch = next(ready)
            waited += time.perf_counter() - asked
            training_step(generator, optimiser, batch, config, step)
        torch.cuda.synchronize(on)
        return time.perf_counter() - began, waited

    run(0, warm)
    seconds, waited = run(warm, steps)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        profiled, _ = run(steps, steps + warm)
    count = steps - warm
    return {
        "ms_a_step": round(1000 * seconds / count, 2),
        "waiting_for_data": round(waited / seconds, 4),
        "gpu_ms_a_step": round(1000 * gpu_seconds(profiler) / warm, 2),
        "gpu_busy_while_profiled": round(gpu_seconds(profiler) / profiled, 4),
        "peak_gpu_gb": round(torch.cuda.max_memory_allocated(on) / 1e9, 2),
        "reserved_gpu_gb": round(torch.cuda.max_memory_reserved(on) / 1e9, 2),
    }


def gpu_seconds(profiler: torch.profiler.profile) -> float:
    """Seconds in which at least one kernel or copy ran on the GPU."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, reached = 0.0, -np.inf
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / 1e6


def measure_quantisation(places: Path, folder: Path, limit: int | None) -> dict[str, object]:
    """The shipped generators of `lite` on val, with F in float16 and in 8 bits."""
    mde, results = load_mde("lite"), {}
    dataset = Folder(places, RANGES_M)
    kept = {
        kind: prepare_split(
            dataset, "val", mde, folder / kind, Preparation(features=kind), workers=2, limit=limit
        )
        for kind in ("float16", "uint8")
    }
    errors = []
    for half, bits in zip(kept["float16"], kept["uint8"], strict=True):
        back = dequantise(bits).features
        assert half.features is not None
        assert back is not None
        difference = (back.float() - half.features.float()).square().mean((1, 2)).sqrt()
        errors.append((difference / half.features.float().std((1, 2)).clamp(min=1e-6)).mean())
    for name, regime in (("k8", "low"), ("k30", "medium"), ("k50", "medium")):
        generator = Generator.load(WEIGHTS / f"basis-research-lite-{name}")
        config = default_preset(generator.config.k, regime, ridge=generator.config.ridge)
        scores = {kind: validation(generator, frames, config) for kind, frames in kept.items()}
        results[f"{name}, {regime}"] = {
            kind: {m: round(values[m], 6) for m in ("absrel", "dense")}
            for kind, values in scores.items()
        }
    sizes = {
        kind: round(np.mean([Path(e.file).stat().st_size for e in frames.entries]) / 1e6, 3)
        for kind, frames in kept.items()
    }
    return {
        "frames": len(kept["uint8"]),
        "relative_rms_error_of_F": round(float(torch.stack(errors).mean()), 5),
        "megabytes_a_frame": sizes,
        "validation": results,
    }


def measure_recovery(places: Path, frames: int = 3) -> dict[str, object]:
    """Core-seconds of one row under one condition: the aligners and the universal generators."""
    rows = (*aligner_rows("places"), *universal_rows())
    evaluation = Evaluation(
        "places", "folder", "test", "lite", rows, tuple(REGIMES), True, 0, RANGES_M
    )
    dataset = Folder(places, RANGES_M)
    evaluator = Evaluator(FrameSource(dataset, "lite"), evaluation, Path())
    torch.set_num_threads(1)
    seconds, cells, megapixels = 0.0, 0, 0.0
    for i, name in enumerate(thin(dataset.names("test"), frames + 1)):
        frame = dataset.load(name)
        output = evaluator.source.mde(frame.image)
        began = time.process_time()
        record = evaluator.evaluate(frame, output, {})
        if i == 0:  # weights are read, kernels chosen
            continue
        seconds += time.process_time() - began
        done = sum("clamped" in cell for cell in record["cells"])
        cells, megapixels = cells + done, megapixels + done * output.prediction.numel() / 1e6
    return {
        "frames": frames,
        "cells_a_frame": round(cells / frames, 1),
        "core_s_a_cell": round(seconds / cells, 4),
        "core_s_a_cell_and_megapixel": round(seconds / megapixels, 4),
    }


def main() -> None:
    """Measure, and write results.json (or recovery.json, training.json)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kitti", type=Path)
    parser.add_argument("--sunrgbd", type=Path)
    parser.add_argument("--places", type=Path)
    parser.add_argument("--limit", type=int, help="frames of places")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--recovery", action="store_true", help="measure the evaluation alone")
    parser.add_argument("--training", action="store_true", help="measure the training alone")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    results: dict[str, object] = {"provenance": provenance()}
    if args.recovery:
        results["evaluation of a frame"] = measure_recovery(args.places)
        write_json(args.out / "recovery.json", results)
        print(args.out / "recovery.json")
        return
    if args.training:
        with tempfile.TemporaryDirectory() as temporary:
            results |= measure_training(Path(temporary), args.workers, args.device)
        write_json(args.out / "training.json", results)
        print(json.dumps(results, indent=1))
        return
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        readers: dict[str, Dataset] = {"urbansyn": write_urbansyn(home / "urbansyn")}
        readers |= {"kitti": Kitti(args.kitti)} if args.kitti else {}
        readers |= {"sunrgbd": SunRgbd(args.sunrgbd)} if args.sunrgbd else {}
        mdes = networks()
        measured = {name: measure_dataset(name, data, mdes) for name, data in readers.items()}
        results["a frame"] = measured
        results["train and val at full scale"] = arithmetic(measured)
        print(json.dumps(results["train and val at full scale"], indent=1), flush=True)
        if args.places:
            results["8-bit features"] = measure_quantisation(args.places, home / "q", args.limit)
    write_json(args.out / "results.json", results)
    print(args.out / "results.json")


if __name__ == "__main__":
    main()
