"""What lengths, heights, planes and other measurements are worth beside depths.

    python -m benchmarks.measurements --frames FRAMES --rooms ROOMS --out results/measurements

FRAMES is a folder of frames in the layout of docs/benchmark.md, of which those of val and test with
intrinsics are taken; ROOMS one of rendered rooms whose meta.json also has `cam_to_world`. Values
are exact depth with an error of 1 %. Writes results.json.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from benchmarks.record import RANGES_M, new_record, parser, write_record

from scalefield import samples
from scalefield.anchors import Anchors
from scalefield.datasets.folder import Folder
from scalefield.datasets.frame import Frame
from scalefield.field.condition import FieldPosterior
from scalefield.geometry.camera import Camera, unproject
from scalefield.geometry.survey import Survey, split_depths
from scalefield.io import read_json
from scalefield.mde import load_mde
from scalefield.mde.output import MDEOutput
from scalefield.measurements import (
    CameraHeight,
    Depth,
    EqualDepth,
    Footprint,
    Height,
    Interval,
    Length,
    Measurement,
    Order,
    Pixel,
    Plane,
    Slant,
    Tilt,
)
from scalefield.measurements import (
    Path as PathLength,
)
from scalefield.methods.field import Field
from scalefield.seeding import seeded_rng

COUNTS = (1, 3, 6, 12)
NOISE = 0.01
LENGTHS_M = (0.2, 2.0)
LEAST_PX = 40
Z90 = 1.645


@dataclass(frozen=True, eq=False)
class Scene:
    """A frame with its relative depth, and measurements drawn from its true depth."""

    name: str
    group: str
    output: MDEOutput
    depth_m: np.ndarray
    camera: Camera
    down: np.ndarray | None = None
    """Unit vector towards the ground in the camera's frame, where it is known."""
    camera_height_m: float | None = None

    @classmethod
    def of(cls, frame: Frame, mde: Any, **known: Any) -> Scene:
        """The scene of a frame with intrinsics."""
        depth_m = np.where(frame.mask, frame.depth_m, np.nan).astype(float)
        camera = Camera(*frame.intrinsics)
        return cls(frame.name, frame.group, mde(frame.image), depth_m, camera, **known)

    @cached_property
    def points(self) -> np.ndarray:
        """The true points of the pixels."""
        return unproject(self.depth_m, self.camera)

    @cached_property
    def image(self) -> Any:
        """The kernel's inputs."""
        return METHOD.load().image_inputs(self.output)

    def pixel(self, rng: np.random.Generator, within: np.ndarray | None = None) -> Pixel:
        """A random pixel with true depth."""
        v, u = np.nonzero(np.isfinite(self.depth_m) if within is None else within)
        i = rng.integers(len(v))
        return int(u[i]), int(v[i])

    def length(self, rng: np.random.Generator) -> Length:
        """A random length between two pixels."""
        for _ in range(1000):
            a, b = self.pixel(rng), self.pixel(rng)
            true = self.value(Length(a, b))
            if math.dist(a, b) > LEAST_PX and LENGTHS_M[0] < true < LENGTHS_M[1]:
                return Length(a, b)
        raise ValueError(f"{self.name}: no length of {LENGTHS_M} m")

    def value(self, question: Measurement) -> float:
        """Its true value."""
        survey = Survey.of([question], self.depth_m.shape, self.camera)
        log_depth = torch.from_numpy(np.log(self.depth_m[survey.pixels]))[None]
        return float(survey.values(log_depth, self.psi[None])[0])

    @property
    def psi(self) -> torch.Tensor:
        """ψ of the known direction down."""
        psi = torch.zeros(3, dtype=torch.float64)
        if self.down is not None:
            x, y, z = self.down
            psi[1] = math.degrees(math.atan2(z, math.hypot(x, y))) / 15
            psi[2] = math.degrees(math.atan2(x, y)) / 3
        return psi

    @property
    def tilt(self) -> Tilt:
        """The known tilt."""
        return Tilt(float(15 * self.psi[1]), float(3 * self.psi[2]))

    def measured(self, question: Any, rng: np.random.Generator) -> Any:
        """The question with its true value, wrong by `NOISE`."""
        value = self.value(question) * math.exp(NOISE * question.degree * rng.standard_normal())
        return dataclasses.replace(question, value_m=value)

    def given(self, measured: list[Measurement], camera: Camera | None = None) -> FieldPosterior:
        """The field given measurements."""
        camera = camera or self.camera
        anchors, others = split_depths(measured, self.depth_m.shape, camera)
        survey = Survey.of(others, self.depth_m.shape, camera) if others else None
        return METHOD.condition(self.image, anchors, survey=survey)

    def score(self, posterior: FieldPosterior) -> tuple[float, float]:
        """AbsRel and the coverage of 90 % intervals."""
        field = posterior.render()
        depth_m = (self.output.mde_depth * field.mean.exp()).numpy()
        known = np.isfinite(self.depth_m)
        error = depth_m[known] / self.depth_m[known]
        inside = np.abs(np.log(error)) < Z90 * field.std.numpy()[known]
        return float(np.abs(error - 1).mean()), float(inside.mean())


METHOD = Field()


def frames(root: Path, every: int) -> Iterator[Scene]:
    """Every n-th frame of val and test with intrinsics, without streets."""
    data, mde = Folder(root, RANGES_M), load_mde("lite")
    names = [n for split in ("val", "test") for n in data.names(split) if "kitti/" not in n]
    for name in names[::every]:
        frame = data.load(name)
        if frame.intrinsics is not None:
            yield Scene.of(frame, mde)


def rooms(root: Path, every: int) -> Iterator[Scene]:
    """Every n-th rendered room of val, with the camera's pose."""
    data, mde = Folder(root, RANGES_M), load_mde("lite")
    for name in data.names("val")[::every]:
        source, _, key = name.rpartition("/")
        listed = read_json(root / source / "meta.json")["frames"]
        pose = np.array(next(f for f in listed if f["name"] == key)["cam_to_world"])
        down = -pose[2, :3] * np.array([1, -1, -1])  # of the renderer's camera, y up and z back
        yield Scene.of(data.load(name), mde, down=down, camera_height_m=float(pose[2, 3]))


def depths_and_lengths(scenes: list[Scene], seeds: int) -> dict[str, Any]:
    """AbsRel and coverage with k depths, slant distances and lengths at one end of each."""
    rows: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for scene in scenes:
        for seed in range(seeds):
            rng = seeded_rng(seed, scene.name)
            lengths = [scene.measured(scene.length(rng), rng) for _ in range(max(COUNTS))]
            sets: dict[str, list[Measurement]] = {"lengths": list(lengths)}
            for name, kind in (("depths", Depth), ("slants", Slant)):
                state = np.random.default_rng(seed)
                sets[name] = [scene.measured(kind(*m.start), state) for m in lengths]
            for k in COUNTS:
                for name, measured in sets.items():
                    found = scene.score(scene.given(measured[:k]))
                    rows.setdefault(name, {}).setdefault(k, []).append(found)
    return {
        name: {str(k): summary([r[0] for r in x], [r[0] for r in rows["depths"][k]])
               | {"coverage_90": float(np.mean([r[1] for r in x]))} for k, x in by_count.items()}
        for name, by_count in rows.items()
    }  # fmt: skip


def summary(errors: list[float], reference: list[float]) -> dict[str, float]:
    """Mean and median AbsRel, the ratio of means to a reference, and the paired log-ratio with its
    standard error."""
    log_ratio = np.log(errors) - np.log(reference)
    return {
        "mean": float(np.mean(errors)),
        "median": float(np.median(errors)),
        "ratio of means": float(np.mean(errors) / np.mean(reference)),
        "paired log-ratio": float(log_ratio.mean()),
        "standard error": float(log_ratio.std() / math.sqrt(len(log_ratio))),
        "cases": len(errors),
    }


def floor_pixels(scene: Scene, rng: np.random.Generator, count: int = 6) -> list[Pixel]:
    """Random pixels of the floor, well apart; none if the room shows too little of it."""
    height = scene.camera_height_m - scene.points @ scene.down
    floor = np.abs(height) < 0.02
    if floor.mean() < 0.05:
        return []
    for _ in range(100):
        chosen = [scene.pixel(rng, floor) for _ in range(count)]
        apart = min(math.dist(a, b) for i, a in enumerate(chosen) for b in chosen[:i])
        if apart > LEAST_PX / 2 and np.linalg.svd(np.c_[chosen, np.ones(count)])[1][2] > 0.3:
            return chosen
    return []


def camera_above_floor(scenes: list[Scene]) -> dict[str, Any]:
    """The floor with the camera's height and nothing else, against one depth: with the camera's
    tilt unknown and known."""
    found: dict[str, list[tuple[float, float]]] = {}
    for scene in scenes:
        rng = seeded_rng(0, scene.name)
        if not (pixels := floor_pixels(scene, rng)):
            continue
        height = CameraHeight(pixels, scene.camera_height_m)
        sets = {
            "one depth": [scene.measured(Depth(*scene.pixel(rng)), rng)],
            "one depth on the floor": [scene.measured(Depth(*pixels[0]), rng)],
            "camera height": [height, Plane(pixels)],
            "camera height, tilt known": [height, Plane(pixels, "level"), scene.tilt],
        }
        for name, measured in sets.items():
            found.setdefault(name, []).append(scene.score(scene.given(list(measured))))
    reference = [error for error, _ in found["one depth"]]
    return {
        name: summary([r[0] for r in x], reference)
        | {"coverage_90": float(np.mean([r[1] for r in x]))}
        for name, x in found.items()
    }


def of_kind(  # noqa: PLR0911
    kind: str, scene: Scene, rng: np.random.Generator
) -> list[Measurement]:
    """A random measurement of a kind, with what it needs."""
    any_pixel = lambda: scene.pixel(rng)  # noqa: E731
    match kind:
        case "length":
            return [scene.measured(scene.length(rng), rng)]
        case "slant" | "depth":
            return [scene.measured({"slant": Slant, "depth": Depth}[kind](*any_pixel()), rng)]
        case "path":
            return [scene.measured(PathLength([any_pixel() for _ in range(3)]), rng)]
        case "order":
            a, b = sorted((any_pixel(), any_pixel()), key=lambda p: scene.depth_m[p[1], p[0]])
            return [Order(a, b)]
        case "interval":
            u, v = any_pixel()
            low = scene.depth_m[v, u] * rng.uniform(0.75, 0.95)
            return [Interval(u, v, float(low), float(1.3 * low))]
        case "equal":
            u, v = any_pixel()
            same = np.abs(np.log(scene.depth_m / scene.depth_m[v, u])) < 0.01
            return [EqualDepth([(u, v), *(scene.pixel(rng, same) for _ in range(2))])]
        case "nearest" | "mean":
            height, width = scene.depth_m.shape
            u, v = int(rng.integers(width * 3 // 4)), int(rng.integers(height * 3 // 4))
            box = Footprint((u, v), (u + width // 5, v + height // 5), statistic=kind)
            return [scene.measured(box, rng)]
    floor = floor_pixels(scene, rng)
    if kind == "camera_height":
        return [CameraHeight(floor, scene.camera_height_m), Plane(floor)]
    if kind == "level":
        return [Plane(floor, "level"), scene.tilt]
    tall = scene.camera_height_m - scene.points @ scene.down > 0.4
    top = scene.pixel(rng, tall)
    return [scene.measured(Height(top, floor[:1]), rng), scene.tilt]


REAL_KINDS = ("depth", "slant", "length", "path", "order", "interval", "equal", "nearest", "mean")
FLOOR_KINDS = ("camera_height", "level", "height")


def kinds(scenes: list[Scene], names: tuple[str, ...]) -> dict[str, Any]:
    """Three measurements of one kind added to three depths: AbsRel against the depths alone, and
    coverage of 90 % intervals."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for scene in scenes:
        if names == FLOOR_KINDS and not floor_pixels(scene, seeded_rng(0, scene.name)):
            continue
        for name in names:
            rng = seeded_rng(1, scene.name)
            depths = [scene.measured(Depth(*scene.pixel(rng)), rng) for _ in range(3)]
            alone = scene.score(scene.given(list(depths)))[0]
            try:
                added = [m for _ in range(3) for m in of_kind(name, scene, rng)]
                error, coverage = scene.score(scene.given([*depths, *added]))
            except ValueError:  # a pixel twice, or no floor
                continue
            found.setdefault(name, []).append((error, coverage, alone))
    return {
        name: summary([r[0] for r in x], [r[2] for r in x])
        | {"coverage_90": float(np.mean([r[1] for r in x]))}
        for name, x in found.items()
    }


def outliers(scenes: list[Scene], seeds: int) -> dict[str, Any]:
    """Share of measurements wrong by a factor of 10 among 5 to 12 of mixed kinds that are named,
    and of the correct ones that are."""
    named, false, right = [], 0, 0
    mixed = ("length", "slant", "path", "depth")
    for scene in scenes:
        for seed in range(seeds):
            rng = seeded_rng(seed, scene.name)
            count = int(rng.integers(5, 13))
            listed = [of_kind(mixed[rng.integers(4)], scene, rng)[0] for _ in range(count)]
            wrong = int(rng.integers(count))
            factor = 10.0 ** rng.choice([-1, 1])
            value = vars(listed[wrong])["value_m"] * factor
            listed[wrong] = dataclasses.replace(listed[wrong], value_m=value)
            try:
                posterior = scene.given(list(listed))
            except ValueError:
                continue
            flagged = contradicted(posterior, listed, scene)
            named.append(wrong in flagged)
            false += len(flagged - {wrong})
            right += count - 1
    return {"named": float(np.mean(named)), "false": false / right, "cases": len(named)}


def contradicted(posterior: FieldPosterior, listed: list[Measurement], scene: Scene) -> set[int]:
    """Index of the measurements that the report names."""
    simple = [i for i, m in enumerate(listed) if isinstance(m, (Depth, Slant))]
    others = [i for i in range(len(listed)) if i not in simple]
    anchors, _ = split_depths(listed, scene.depth_m.shape, scene.camera)
    flagged = {simple[int(i)] for i in posterior.in_conflict if i < len(anchors)}
    return flagged | {others[i] for i, r in enumerate(posterior.survey_report()) if r.code}


def convergence(scenes: list[Scene], cases: int) -> dict[str, Any]:
    """Share of surveys of 1 to 12 random measurements of mixed kinds whose mode is found."""
    found = []
    mixed = ("length", "slant", "path", "order", "interval", "equal", "nearest", "mean")
    for case in range(cases):
        scene, rng = scenes[case % len(scenes)], np.random.default_rng(case)
        listed = [m for k in rng.choice(mixed, rng.integers(1, 13)) for m in of_kind(k, scene, rng)]
        found.append(scene.given([*listed, scene.measured(scene.length(rng), rng)]).converged)
    return {"converged": float(np.mean(found)), "cases": cases}


def intervals_of_lengths(scenes: list[Scene], count: int) -> dict[str, Any]:
    """Coverage and median width (high over low) of the 90 % intervals of random lengths of 30 to
    200 px."""
    found: dict[str, Any] = {}
    for scene in scenes:
        rng = seeded_rng(0, scene.name)
        anchors = [Depth(*scene.pixel(rng)) for _ in range(6)]
        anchors = [dataclasses.replace(a, value_m=scene.value(a)) for a in anchors]
        recovery = scene.given(list(anchors)).recovery(scene.output, Anchors([], [], []))
        listed, true = [], []
        while len(listed) < count:
            a, b = scene.pixel(rng), scene.pixel(rng)
            if 30 <= math.dist(a, b) <= 200:
                listed.append(Length(a, b))
                true.append(scene.value(listed[-1]))
        read = recovery.measure(listed, camera=scene.camera)
        inside = [r.low <= t <= r.high for r, t in zip(read, true, strict=True)]
        width = float(np.median([r.high / r.low for r in read]))
        found[scene.name] = {"coverage_90": float(np.mean(inside)), "median width": width}
    return found


def cost(scene: Scene, repeats: int) -> dict[str, Any]:
    """Processor seconds of `field` given 50 depths, and 50 measurements of mixed kinds."""
    rng = seeded_rng(0, scene.name)
    mixed = ("length", "slant", "path", "depth", "order", "interval")
    sets = {
        "50 depths": [of_kind("depth", scene, rng)[0] for _ in range(50)],
        "50 mixed": [of_kind(mixed[i % len(mixed)], scene, rng)[0] for i in range(50)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in sets}
    for _ in range(repeats):
        for name, listed in sets.items():
            start = process_time()
            image = METHOD.load().image_inputs(scene.output)
            dataclasses.replace(scene, output=scene.output)
            anchors, others = split_depths(listed, scene.depth_m.shape, scene.camera)
            survey = Survey.of(others, scene.depth_m.shape, scene.camera) if others else None
            METHOD.condition(image, anchors, survey=survey).render()
            seconds[name].append(process_time() - start)
    mixed_s, depths_s = (np.median(seconds[name]) for name in ("50 mixed", "50 depths"))
    return {"ratio": float(mixed_s / depths_s), "seconds": seconds}


def sample_scene() -> Scene:
    """The bundled room, whose camera has a field of view of 60°."""
    room = samples.load()
    output = load_mde("lite")(room.image)
    camera = Camera.from_fov(60.0, room.depth_m.shape)
    return Scene("sample room", "sample", output, room.depth_m, camera)


def main() -> None:
    """Measure all sections, or those that are named."""
    flags = parser(__doc__)
    flags.add_argument("--frames", type=Path, required=True)
    flags.add_argument("--rooms", type=Path, required=True)
    flags.add_argument("--every", type=int, default=6)
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--cases", type=int, default=2000)
    flags.add_argument("--only", nargs="*", default=[])
    given = flags.parse_args()
    torch.set_num_threads(1)
    record = new_record({"every": given.every, "seeds": given.seeds, "cases": given.cases})
    real = list(frames(given.frames, given.every))
    rendered = list(rooms(given.rooms, 2))
    sections: dict[str, Callable[[], Any]] = {
        "lengths of the recovery": lambda: intervals_of_lengths([sample_scene(), *real[::8]], 300),
        "cost": lambda: cost(sample_scene(), 5),
        "wrong by a factor of 10": lambda: outliers([*real[::2], *rendered[::2]], given.seeds),
        "real frames": lambda: depths_and_lengths(real, given.seeds),
        "rendered rooms": lambda: depths_and_lengths(rendered, 1),
        "camera height": lambda: camera_above_floor(rendered),
        "convergence": lambda: convergence([*real, *rendered], given.cases),
        "kinds": lambda: kinds(real, REAL_KINDS),
        "kinds on a floor": lambda: kinds(rendered, FLOOR_KINDS),
    }
    for name, measure in sections.items():
        if not given.only or name in given.only:
            record[name] = measure()
            print(name, record[name], flush=True)
            write_record(given.out, record)


if __name__ == "__main__":
    main()
