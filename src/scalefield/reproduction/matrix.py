"""What the paper trains and evaluates: its generators, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalefield.basis.generator import Generator
from scalefield.benchmark.method_spec import MethodSpec
from scalefield.errors import InputError
from scalefield.io.weights import shipped

TRAINING_REGIME = {8: "low", 30: "medium", 50: "medium"}
"""K, and the regime in which it is trained for 25 epochs."""
EVALUATED_REGIMES = {8: ("low", "medium", "high"), 30: ("medium", "high"), 50: ("medium", "high")}
"""K, and the regimes of its rows; any other than its own is reached by five epochs more."""
PAPER_MDES = ("da3-base", "midas-hybrid")
"""The paper's estimators."""
ABLATION_REGIME = "medium"
"""Regime in which the paper compares F with F = 0."""
UNIVERSAL = "shipped"
"""Value of --generators for the generators that come with the package."""

BANDWIDTHS: dict[str, tuple[float, float]] = {
    "kitti": (25.0, 1242.0),
    "urbansyn": (50.0, 640.0),
    "sunrgbd": (50.0, 640.0),
}
"""LWLR's bandwidth in pixels as its authors publish it, at an image width in pixels: 25 px on
KITTI, 50 px elsewhere, scaled with the width."""


@dataclass(frozen=True)
class GeneratorJob:
    """One generator of the paper: how it is trained, and what it starts from."""

    k: int
    regime: str
    zero_features: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """Folder of the run, such as k8-low, k50-medium-f0 or k8-high-s2."""
        features = "-f0" if self.zero_features else ""
        seed = f"-s{self.seed}" if self.seed else ""
        return f"k{self.k}-{self.regime}{features}{seed}"

    @property
    def label(self) -> str:
        """Label of its row: the paper's, with F = 0 and the seed where they are not the paper's."""
        features = ", F = 0" if self.zero_features else ""
        seed = f", seed {self.seed}" if self.seed else ""
        return f"Basis K={self.k}{features}{seed}"

    @property
    def start(self) -> GeneratorJob | None:
        """The generator that is fine-tuned for this regime; None where training starts afresh."""
        home = TRAINING_REGIME[self.k]
        if self.regime == home:
            return None
        return GeneratorJob(self.k, home, self.zero_features, self.seed)


def paper_jobs(
    seeds: Iterable[int] = (0,), ks: Iterable[int] = (8, 30, 50), *, ablation: bool = True
) -> list[GeneratorJob]:
    """Every generator of the paper for one MDE, seed by seed; of a seed, those to start from before
    those that are fine-tuned. The F = 0 variants are left out without `ablation`."""
    jobs: list[GeneratorJob] = []
    order = {seed: place for place, seed in enumerate(seeds)}
    for seed in order:
        for k in ks:
            wanted = [GeneratorJob(k, regime, False, seed) for regime in EVALUATED_REGIMES[k]]
            if ablation:
                wanted.append(GeneratorJob(k, ABLATION_REGIME, True, seed))
            for job in wanted:
                jobs += [j for j in (job.start, job) if j is not None and j not in jobs]
    return sorted(jobs, key=lambda job: (order[job.seed], job.start is not None))


def aligner_rows(dataset: str, *, disparity: bool = True) -> list[MethodSpec]:
    """The five aligners as the paper's rows, then the same in disparity, and a strict Region.

    Region needs true labels, which KITTI does not have.
    """
    bandwidth_px, width_px = BANDWIDTHS.get(dataset, BANDWIDTHS["sunrgbd"])
    lwlr = {"reference_bandwidth_px": bandwidth_px, "reference_width_px": width_px}
    labelled = dataset != "kitti"
    options: dict[str, dict[str, Any]] = {
        "Global": {}, "Grid": {}, "LWLR": lwlr, "Piecewise": {},
        **({"Region": {}} if labelled else {}),
    }  # fmt: skip
    rows = [
        MethodSpec(label, label.lower(), {**given, "space": "depth"})
        for label, given in options.items()
    ]
    if labelled:
        rows.append(MethodSpec("Region, strict", "region", {"strict": True, "space": "depth"}))
    if disparity:
        rows += [
            MethodSpec(f"{label}, disparity", label.lower(), {**given, "space": "disparity"})
            for label, given in options.items()
        ]
    return rows


def basis_rows(generators: Mapping[GeneratorJob, Path]) -> list[MethodSpec]:
    """The paper's Basis rows, each regime by its own generator, and the F = 0 rows.

    The drop-anchor test is done with K = 8 as trained for few anchors. Of several seeds it has the
    smallest, which is also the one in the main tables. Rows are in the order of the seeds, with F
    before those without, by K.
    """
    drop_job = GeneratorJob(8, "low", seed=min((job.seed for job in generators), default=0))
    rows = []
    order = {seed: place for place, seed in enumerate(dict.fromkeys(j.seed for j in generators))}
    for job, folder in sorted(
        generators.items(), key=lambda item: (order[item[0].seed], item[0].zero_features, item[0].k)
    ):
        conditions = [job.regime] if job.regime in EVALUATED_REGIMES[job.k] else []
        if job.zero_features and job.regime != ABLATION_REGIME:
            continue
        if job == drop_job:
            conditions.append("drop")
        options = {"generator": str(folder), "estimate_shift": False}
        rows.append(MethodSpec(job.label, "basis", options, tuple(conditions)))
    return rows


def universal_rows() -> list[MethodSpec]:
    """Rows of the generators that come with the package, labelled as what they are."""
    return [
        MethodSpec(
            f"Basis K={k} (universal, F = 0)",
            "basis",
            {"generator": f"basis-depth-k{k}", "estimate_shift": False},
            ("low", "medium", "high", "drop") if k == 8 else ("medium", "high"),
        )
        for k in TRAINING_REGIME
        if f"basis-depth-k{k}" in shipped("basis-")
    ]


def find_generators(
    folder: Path, mde: str, jobs: Sequence[GeneratorJob], *, channels: int | None = None
) -> dict[GeneratorJob, Path]:
    """The ready generators FOLDER/MDE/NAME[/model] of these jobs; a missing one is refused.

    Each must have the K and the F of its job, and weights that fit its configuration. Generators
    with F must be for F of one number of channels, which is `channels` if that is given.
    """
    found: dict[GeneratorJob, Path] = {}
    for job in jobs:
        for path in (folder / mde / job.name, folder / mde / job.name / "model"):
            if (path / "config.json").is_file():
                found[job] = path
    missing = [job.name for job in jobs if job not in found]
    if missing:
        raise InputError(
            f"{folder / mde}: no generator (config.json and model.safetensors) in "
            f"{', '.join(missing)}; wanted are {', '.join(job.name for job in jobs)}"
        )
    for job, path in found.items():
        config = Generator.load(path).config
        if config.k != job.k or (config.used_channels == 0) != job.zero_features:
            raise InputError(
                f"{path}: wanted K = {job.k} {_with(not job.zero_features)}, found K = {config.k} "
                f"{_with(config.used_channels > 0)}"
            )
        channels = channels or config.used_channels
        if config.used_channels not in (0, channels):
            raise InputError(
                f"{path}: wanted a generator for F of {channels} channels, found one for "
                f"{config.used_channels}; it belongs to another MDE"
            )
    return found


def _with(features: bool) -> str:
    return "with F" if features else "without F"
