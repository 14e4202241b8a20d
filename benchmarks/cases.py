"""Timed cases by name: steps of the method, aligners, other implementations."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.rivals import DepthTools, FormulaAtFullResolution, PublishedLWLR, SklearnRansac
from benchmarks.timing import Work
from benchmarks.worlds import Batch, Shape, World, da3_base, da3_input

from scalefield.anchors import Anchors
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.grids import upsample
from scalefield.basis.pretrained import load_generator
from scalefield.basis.realtime import Live
from scalefield.basis.ridge import anchor_weights, solve, targets
from scalefield.mde.cache import MDECache
from scalefield.mde.lite import FEATURE_CHANNELS, load_lite
from scalefield.mde.output import MDEOutput
from scalefield.methods import METHODS
from scalefield.methods.basis import Basis, anchor_embeddings, basis_maps
from scalefield.methods.field import Field

REFERENCE = "DA3-BASE forward"
KS = (8, 30, 50)
N = 110
NS = (1, 10, 100, 1000, 10_000)
SWEEP = (375, 1242)
SQUARE = (504, 504)
BATCHES = (1, 4, 16, 64)
BATCHED = "live, with F, K = 8"

PUBLISHED = "lwlr every 32 pixels"
BESIDE = (  # our method, and the one it is compared with
    ("global", "depth-tools, global fit"),
    ("global, RANSAC", "scikit-learn, RANSAC"),
    ("basis: solve and apply, K = 50", "the formula at full resolution, K = 50"),
    ("lwlr at every pixel", PUBLISHED),
    ("lwlr at every pixel", "the published LWLR, bare"),
)

ALIGNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "global": ("global", {}),
    "global, RANSAC": ("global", {"fit": "ransac"}),
    "piecewise": ("piecewise", {}),
    "lwlr every 32 pixels": ("lwlr", {}),
    "lwlr at every pixel": ("lwlr", {"stride": 1}),
    "grid": ("grid", {}),
    "region": ("region", {}),
    "knn": ("knn", {}),
    "median": ("median", {}),
    "interpolate": ("interpolate", {}),
    "log_kernel": ("log_kernel", {}),
}


def by_size(shape: Shape, device: str, cache: Path) -> dict[str, Work]:
    """Everything on one image with 110 anchors."""
    world = World.make(shape, device)
    return {
        **reference(shape, device),
        "lite forward": lambda: load_lite(device=device)(world.image),
        "MDE cache: an output read": cache_reading(world, device, cache),
        **generator_steps(world),
        **live_steps(world),
        **solve_steps(world, N),
        **field_steps(world, N),
        **aligners(world, N),
        **rivals(world, N),
    }


def by_anchors(shape: Shape, device: str, n: int) -> dict[str, Work]:
    """What depends on the number of anchors."""
    world = World.make(shape, device)
    return {
        **solve_steps(world, n),
        **field_steps(world, n),
        **aligners(world, n),
        **rivals(world, n),
    }


def by_batch(device: str, size: int) -> Work:
    """Generator with the features of `lite`, solve and apply for several images at once, K = 8."""
    batch = random_batch(device, size, FEATURE_CHANNELS, stride=4)
    assert batch.inputs.features is not None
    features = tuple(batch.inputs.features.shape[1:])
    sizes = {"anchors": N, "batch": size, "features": features}
    live = Live(batch.generator, SQUARE, **sizes, device=device)
    return partial(live, *batch.inputs)


def lidar(device: str) -> dict[str, Work]:
    """What a sweep of a LiDAR costs `field`."""
    world = World.make(SWEEP, device)
    anchors = world.anchors(NS[-1])
    methods = {"field": Field(), "field, not robust": Field(robust=False)}
    work = {
        f"{name}, {NS[-1]:,} anchors": new(world.output, partial(method, anchors=anchors))
        for name, method in methods.items()
    }
    return {**reference(SWEEP, device), **work}


def reference(shape: Shape, device: str) -> dict[str, Work]:
    """The forward pass of DA3-BASE, from its input to its depth."""
    pixels = da3_input(shape, device)
    return {REFERENCE: lambda: da3_base(device)(pixels)}


def cache_reading(world: World, device: str, folder: Path) -> Work:
    """An output that is on disk, checksum and all; the disk's own cache is warm."""
    cache = MDECache(Path(tempfile.mkdtemp(dir=folder)), load_lite(device=device))
    cache.store(world.image, world.output)
    return lambda: cache.load(world.image)


def generator_steps(world: World) -> dict[str, Work]:
    """Cues and basis maps; and with them the solve and depth, as for a new image."""
    work: dict[str, Work] = {}
    anchors = world.anchors(N)
    for k in KS:
        generator = load_generator(f"basis-depth-k{k}", world.output.prediction.device)
        work[f"generator, K = {k}"] = new(world.output, partial(basis_maps, generator))
        work[f"generator, solve and apply, K = {k}"] = new(
            world.output, partial(Basis(k=k), anchors=anchors)
        )
    return work


def live_steps(world: World) -> dict[str, Work]:
    """Depth alone, from tensors on the device: on CUDA a captured graph."""
    mde_depth, anchors = world.output.mde_depth, world.anchors(N)
    pixels, depth_m = (
        torch.tensor(values, dtype=torch.float32, device=mde_depth.device)[None]
        for values in (np.stack([anchors.u, anchors.v], axis=1), anchors.depth_m)
    )
    work: dict[str, Work] = {}
    types = {"": torch.float32} | ({", float16": torch.float16} if mde_depth.is_cuda else {})
    for (name, dtype), k in itertools.product(types.items(), KS):
        live = Live(f"basis-depth-k{k}", world.output.shape, device=mde_depth.device, dtype=dtype)
        work[f"live{name}, K = {k}"] = partial(live, mde_depth[None], pixels, depth_m)
    return work


def solve_steps(world: World, n: int) -> dict[str, Work]:
    """The ridge regression alone, the dense field alone, and both with the report."""
    work: dict[str, Work] = {}
    output, anchors = world.output, world.anchors(n)
    for k in KS:
        generator = load_generator(f"basis-depth-k{k}", output.prediction.device)
        maps = basis_maps(generator, output)
        M = anchor_embeddings(maps, output, anchors)[None]
        y, omega = (
            torch.from_numpy(values).to(M.device)[None]
            for values in (targets(output, anchors), anchor_weights(anchors))
        )
        solution = solve(M, y, omega)

        def apply(solution: Any = solution, maps: Any = maps) -> torch.Tensor:
            log_scale = upsample(solution.log_scale(maps.basis_maps)[:, None], output.shape)
            return output.mde_depth * log_scale[0, 0].exp()

        work[f"ridge solve, K = {k}"] = lambda M=M, y=y, omega=omega: solve(M, y, omega)
        work[f"dense field, K = {k}"] = apply
        fit = partial(Basis(k=k).fit, output, generator, maps, anchors)
        work[f"basis: solve and apply, K = {k}"] = fit
    return work


def field_steps(world: World, n: int) -> dict[str, Work]:
    """The default method: for a new image, for an added anchor with and without the outlier
    search, and its parts."""
    output, anchors = world.output, world.anchors(n)
    robust, not_robust = Field(), Field(robust=False)
    return {
        "field: a new image": new(output, partial(robust, anchors=anchors)),
        "field: an added anchor": prepared(lambda: adding(robust, world, n)),
        "field: an added anchor, not robust": prepared(lambda: adding(not_robust, world, n)),
        "field: its dense part, anchors known": prepared(lambda: dense_part(world, n)),
    }


def adding(method: Field, world: World, n: int) -> Work:
    """The same anchors every time, but for the last: that is at a pixel where none was before."""
    anchors, (height, width) = world.anchors(n), world.output.shape
    places, solver = itertools.count(), method.solver(world.output)

    def work() -> object:
        v, u = divmod(next(places) % (height * width), width)
        u, v = (np.append(known[:-1], new) for known, new in ((anchors.u, u), (anchors.v, v)))
        return solver(Anchors(u, v, anchors.depth_m))

    return work


def dense_part(world: World, n: int) -> Work:
    """Mean, standard deviation and support at every pixel, of a field that is fitted already."""
    method = Field()
    return method.condition(method.load().image_inputs(world.output), world.anchors(n)).render


def aligners(world: World, n: int) -> dict[str, Work]:
    """The classic methods; on labels that are given, since superpixels are others' work."""
    anchors = world.anchors(n)
    work: dict[str, Work] = {}
    height, width = world.output.shape
    v, u = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    given = {"region": {"labels": 4 * (4 * v // height) + 4 * u // width}}
    for label, (name, options) in ALIGNERS.items():
        method = METHODS[name](**(options | given.get(name, {})))
        work[label] = partial(method, world.output, anchors)
    return work


def rivals(world: World, n: int) -> dict[str, Work]:
    """Others' work on the same inputs; two points are the least that a line needs."""
    output, anchors = world.output, world.anchors(max(n, 2))
    generator = load_generator("basis-depth-k50", output.prediction.device)
    maps = basis_maps(generator, output).basis_maps
    makers: dict[str, Callable[[], Work]] = {
        "depth-tools, global fit": lambda: DepthTools(output, anchors),
        "scikit-learn, RANSAC": lambda: SklearnRansac(output, anchors),
        "the formula at full resolution, K = 50": lambda: FormulaAtFullResolution(
            output, anchors, maps
        ),
        "the published LWLR, bare": lambda: PublishedLWLR(output, anchors),
    }
    return {name: prepared(maker) for name, maker in makers.items()}


def prepared(maker: Callable[[], Work]) -> Work:
    """Work whose preparation happens in the first call, which is not timed."""
    made: list[Work] = []

    def work() -> object:
        if not made:
            made.append(maker())
        return made[0]()

    return work


def new(output: MDEOutput, work: Callable[[MDEOutput], object]) -> Work:
    """Work on a fresh copy of an output, without cached maps."""
    return lambda: work(dataclasses.replace(output))


def random_batch(device: str, size: int, channels: int, stride: float) -> Batch:
    """Images of 504×504 with N anchors, and a generator with K = 8 of random weights for F."""
    torch.manual_seed(0)
    config = GeneratorConfig(k=8, feature_channels=channels)
    generator = Generator(config).eval().requires_grad_(False)
    return Batch.make(generator, SQUARE, size=size, n=N, device=device, stride=stride)
