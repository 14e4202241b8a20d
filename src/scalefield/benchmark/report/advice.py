"""A diagnosis as text: the parts of the error of an MDE, and their remedies."""

from __future__ import annotations

from typing import Any

import numpy as np

from scalefield.anchor_sampling import REGIMES
from scalefield.benchmark.diagnosis import DEPTH_PARTS, REGION_CELLS, REGION_PARTS
from scalefield.benchmark.diagnosis_summary import worst

RARE = 1e-3
"""Bins with a smaller share of the pixels are not mentioned."""


def overview(diagnosis: dict[str, Any]) -> str:
    """The parts as bars for a terminal, then the advice, and where it is worst."""
    config, data = diagnosis["config"], diagnosis["data"]
    head = f"{config['mde']} on {config['name']}, {data['diagnosed']} of {data['frames']} frames: "
    lines = [f"{head}the depth is off by {percent(diagnosis['total_rms_log'])} (root mean square)"]
    lines += [f"no result for {m['name']}: {m['error']}" for m in data["missing"]]
    lines += ["", f"{'part, in this order':24}{'share':>11}{'after scale':>13}  {'':20}  left"]
    for row in diagnosis["parts"]:
        bar = "█" * round(20 * row["share_without_scale"])
        left = percent(row["left_rms_log"]) if row["part"] != "rest" else ""
        shares = f"{_share(row['share']):>11}{_share(row['share_without_scale']):>13}"
        lines.append(f"{row['title']:24}{shares}  {bar:20}  {left}".rstrip())
    return "\n".join([*lines, "", *advice(diagnosis), *extremes(diagnosis)])


def advice(summary: dict[str, Any], *, few_images: int = 20) -> list[str]:
    """Sentences that explain the numbers to users with anchors, or with a choice of MDE.

    Of fewer than `few_images` images no cause is concluded: of n images without anything in common,
    1/n of an error is the same in all by chance.
    """
    scale = summary["of_scale"]
    enough = scale["images"] >= few_images
    of_all = summary["parts"][0]["share"]
    share = {row["part"]: row["share_without_scale"] for row in summary["parts"]}
    left = {row["part"]: percent(row["left_rms_log"]) for row in summary["parts"]}
    sentences = [
        f"{_share(of_all)} of the squared log error is one number per image: one anchor removes "
        f"it, down from {percent(summary['total_rms_log'])} to {left['scale']} (the scale scatters "
        f"by {percent(scale['std_log'])} from image to image)."
    ]
    if scale["images"] >= 2 * scale["scenes"] and of_all > 0.05:
        steady = 1 - scale["shares"]["frames"]
        so = ": carry it from frame to frame." if steady > 0.5 else ", so each needs its own."
        sentences.append(
            f"{_share(steady)} of that scatter is between scenes and not within them{so}"
        )
    common, depth = summary["of_depth"]["common"], sum(share[part] for part in DEPTH_PARTS)
    sentences.append(
        f"Of what a scale leaves, {_share(depth)} follows depth ({_share(share['power'])} a power "
        f"law, {_share(share['shift'])} a shift, {_share(share['curve'])} another curve): a few "
        f"anchors at different depths remove it, down to {left['curve']}. {_share(common)} of it "
        "is the same curve in every image"
        + (", which could be corrected once and for all." if common > 0.3 and enough else ".")
    )
    fixed = summary["of_position"]["common"]
    sentences.append(
        f"{_share(share['position'])} is a tilt or a bow over the image: a handful of anchors "
        f"spread over it remove it, down to {left['position']}. {_share(fixed)} of it is the same "
        "in every image"
        + (": look for a cause in the camera or its mounting." if fixed > 0.3 and enough else ".")
    )
    if not enough:
        count, chance = scale["images"], _share(1 / scale["images"])
        sentences.append(
            f"These are few images ({count}): about {chance} is the same in every image by chance, "
            f"and the shares of another {count} may differ. Diagnose {few_images} or more before "
            "you correct anything."
        )
    regions = sum(share[part] for part in REGION_PARTS)
    counts = ", ".join(f"{REGION_CELLS[r]} leave {left[f'region_{r}']}" for r in REGIMES)
    sentences.append(
        f"{_share(regions)} belongs to regions: anchors remove it as far as they are dense enough; "
        f"at best {counts}."
    )
    sentences.append(
        f"{_share(share['rest'])} is finer than {REGION_CELLS['high']} anchors can see: edges and "
        "noise, of the MDE or of the true depth."
    )
    return [sentence[0].upper() + sentence[1:] for sentence in sentences]


def percent(log: float) -> str:
    """A deviation of log-depth as a per cent of depth, or as a factor where that is large."""
    if log > np.log(2):
        return f"a factor of {np.exp(log):.1f}"
    return f"{100 * np.expm1(log):.0f}\N{NO-BREAK SPACE}%"


def _share(x: float) -> str:
    shown = f"{100 * x:.0f}" if x >= 0.0095 or x == 0 else "under 1"
    return f"{shown}\N{NO-BREAK SPACE}%"


def frequent(bins: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bins that hold more than a `RARE` share of the pixels."""
    return [row for row in bins if row["pixels"] > RARE]


def extremes(summary: dict[str, Any]) -> list[str]:
    """Sentences on the depths, the relief and the frame with the largest error, once each image has
    its scale."""
    far = max(frequent(summary["depth"]), key=lambda row: row["rms_log"])
    sentences = [f"Worst depths: {span(far, ' m')}, {percent(far['rms_log'])}"]
    if abs(far["bias_log"]) >= 0.02:
        direction = "far" if far["bias_log"] > 0 else "near"
        bias = f"{abs(100 * np.expm1(far['bias_log'])):.0f}\N{NO-BREAK SPACE}%"
        sentences[0] += f", on average {bias} too {direction}"
    relief = frequent(summary["relief"])
    if len(relief) > 1:
        edge, flat = (percent(relief[i]["rms_log"]) for i in (-1, 0))
        sentences.append(f"Beside edges of depth {edge}, on the flattest ground {flat}")
    frame = worst(summary)[0]
    sentences.append(f"Worst frame: {frame['name']}, {percent(frame['rms_log_without_scale'])}")
    return [f"{sentence}." for sentence in sentences]


def span(row: dict[str, Any], unit: str, factor: float = 1) -> str:
    """A bin in words."""
    low, high = (None if row[end] is None else f"{factor * row[end]:g}" for end in ("from", "to"))
    if low is None:
        return f"below {high}{unit}"
    return f"beyond {low}{unit}" if high is None else f"{low}–{high}{unit}"
