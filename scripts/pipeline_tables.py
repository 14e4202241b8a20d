"""Writes the costs in docs/paper.md from results/pipeline: python scripts/pipeline_tables.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "paper.md"
BEGIN, END = "<!-- pipeline:begin -->\n", "<!-- pipeline:end -->\n"


def text(results: dict[str, Any], recovery: dict[str, Any], training: dict[str, Any]) -> str:
    """The table of disk and preparation, and the sentences under it."""
    frames, full = results["a frame"], results["train and val at full scale"]
    lines = [
        "| | DA3-BASE | MiDaS DPT-Hybrid |",
        "|---|---:|---:|",
    ]
    titles = {"kitti": "KITTI", "urbansyn": "UrbanSyn's size", "sunrgbd": "SUN RGB-D"}
    for name, title in titles.items():
        sizes = [frames[name][mde]["bytes"]["uint8"] / 1e6 for mde in ("da3-base", "midas-hybrid")]
        lines.append(f"| MB a frame, {title} | {sizes[0]:.2f} | {sizes[1]:.2f} |")

    def row(title: str, *keys: str, digits: int = 0) -> None:
        values = []
        for mde in ("da3-base", "midas-hybrid"):
            value = full[mde]
            for key in keys:
                value = value[key]
            values.append(f"{value:,.{digits}f}")
        lines.append(f"| {title} | {' | '.join(values)} |")

    row("frames to train and validate on", "frames")
    row("GB of prepared frames, F in 8 bits", "disk_gb", "uint8")
    row("GB, F in float16", "disk_gb", "float16")
    row("core-hours of preparation without the estimator", "prepare_core_h", digits=2)
    row("minutes on 16 cores, four threads finishing frames", "prepare_min_on_16_cores", digits=1)
    batch = training["a batch, MiDaS on SUN RGB-D"]
    bits = results["8-bit features"]
    scores = [
        f"{values['float16']['absrel']:.4f} and {values['uint8']['absrel']:.4f} ({name})"
        for name, values in bits["validation"].items()
    ]
    cell = recovery["evaluation of a frame"]
    lines += [
        "",
        f"A worker makes a batch of {batch['frames']} of the largest frames there are (MiDaS on "
        f"SUN RGB-D, {batch['megabytes']:.0f} MB) in {batch['core_s']:.2f} core-seconds, so a step "
        f"of 50 ms needs {batch['core_s'] / 0.05:.0f} workers. A process that makes them held "
        f"{batch['peak_gb']:.1f} GB at most. No frame stays on the GPU.",
        "",
        *steps_on_gpu(training),
        "",
        f"8 bits change F by {100 * bits['relative_rms_error_of_F']:.2f} % of a channel's standard "
        "deviation. AbsRel of the shipped generators of `lite` on "
        f"{bits['frames']} validation frames, with F in float16 and in 8 bits: "
        f"{'; '.join(scores)}.",
        "",
        f"Evaluation takes {cell['core_s_a_cell_and_megapixel']:.2f} core-seconds for a row under "
        "one condition and a million pixels, in the mean over the aligners and the universal "
        "generators.",
        "",
    ]
    return "\n".join(lines)


def steps_on_gpu(training: dict[str, Any]) -> list[str]:
    """The table of training steps on a GPU; a sentence where they were not measured."""
    if "training" not in training:
        return [
            "What a step itself takes on a GPU, and what share of the time is spent waiting "
            "(clock.json of every run), has to be measured on one."
        ]
    lines = [
        f"Steps of 24 frames of SUN RGB-D's largest size on {training['provenance']['device']}, "
        f"streamed from disk by {training['streaming']['workers']} workers:",
        "",
        "| estimator's size | ms a step | waiting for data | GPU busy | GB on the GPU |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, step in training["training"].items():
        lines.append(
            f"| {name} | {step['ms_a_step']:.1f} | {100 * step['waiting_for_data']:.0f} % "
            f"| {100 * step['gpu_busy_while_profiled']:.0f} % | {step['reserved_gpu_gb']:.1f} |"
        )
    return lines


def filled(page: str, folder: Path = ROOT / "results" / "pipeline") -> str:
    """The page with the text between the marks made from the results."""
    results, recovery, training = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("results", "recovery", "training")
    )
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + text(results, recovery, training) + END + tail


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
