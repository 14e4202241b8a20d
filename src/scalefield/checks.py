"""Checks of a relative map against its anchors: warnings where a declaration is probably wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int64

from scalefield.anchors import Anchors
from scalefield.errors import one_line, size_text
from scalefield.mde import MODELS, MDEOutput
from scalefield.report import ShiftInterval, Warning

Pixels: TypeAlias = tuple[Int64[np.ndarray, " n"], ...]
"""Row and column of the pixel of each anchor, as `Anchors.pixels` returns them."""

FAR_M = {"millimetres": 500.0, "centimetres": 100.0}
"""A median anchor depth above this is rare in photographs and usual in files of that unit."""
FAR_WHOLE_M = 30.0
"""The limit for centimetres if every depth is a whole number, as of a tape measure."""
FAR_FACTOR = {"millimetres": 300.0, "centimetres": 30.0}
"""The limits of depth_m / D_MDE, in place of `FAR_M`, if the estimator's unit is the metre."""
CONTRADICTION_LOG = 0.1
"""Least difference in log-depth of two anchors on one pixel that is called a contradiction."""
FEW_VALUES = 256
"""Different values of a map up to which its steps are mentioned."""
MAX_COUNTED = 1 << 18
"""Pixels among which different values are counted."""
FEET_FACTOR = (2.2, 5.0)
"""Limits of depth_m / D_MDE between which feet were probably given as metres; a foot is 1/3.28 m.
On 62 validation images the median of `lite` is wrong by factors of 0.59 to 1.55."""
COPY_SHARE, COPY_ANCHORS = 0.4, 5
"""Anchors, this many or more, in this share of the width and the height from the upper left corner
are probably those of a smaller copy."""
MIN_SIDE = 4
"""Width and height below which an image shows nothing."""
MAX_NEGATIVE_SHARE = 0.01
"""Share of negative disparities above which a warning is given; some models have a few."""


def input_warnings(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None = None
) -> list[Warning]:
    """Warnings where the map or the anchors are probably not what they were declared to be.

    `pixels` are the rows and columns of the anchors, and `shift` is that of an affine-invariant
    map. A check that fails is a warning itself: no check may end a recovery.
    """
    found: list[Warning] = []
    checks = (
        _nothing_shown, _other_positions, _other_unit, _negative_disparity, _contradictions,
        _other_kind, _few_steps,
    )  # fmt: skip
    for check in checks:
        try:
            found += check(mde_output, anchors, pixels, shift)
        except (ArithmeticError, ValueError, IndexError, RuntimeError) as e:
            name = check.__name__.strip("_").replace("_", " ")
            found.append(Warning("check_failed", f"the check for {name} failed ({one_line(e)})"))
    return found


def _nothing_shown(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning if the image or the map has a single value, or hardly any pixels."""
    values, image = mde_output.prediction[mde_output.valid], mde_output.image
    if min(mde_output.shape) < MIN_SIDE:
        yield Warning("tiny_image", f"the image has only {size_text(mde_output.shape)} pixels")
    elif image is not None and bool((image == image[0, 0]).all()):
        colour = "black" if not image.any() else "of one colour"
        yield Warning("blank_image", f"the image is {colour} everywhere and shows no scene")
    if len(values) > 1 and not mde_output.lost_share and bool((values == values[0]).all()):
        yield Warning(
            "constant_map",
            f"the {mde_output.kind} map is {float(values[0]):g} everywhere: the depth comes from "
            "the anchors alone",
        )


def _other_positions(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning if u and v are probably shares of the size, or pixels of a smaller copy."""
    height, width = mde_output.shape
    u, v = np.asarray(anchors.u), np.asarray(anchors.v)
    different = len(np.unique(np.stack([u, v]), axis=1).T)
    if different < 2 or min(u.min(), v.min()) < 0 or min(height, width) < 8 * MIN_SIDE:
        return
    if max(u.max(), v.max()) <= 1 and (np.r_[u, v] % 1 != 0).any():
        yield Warning(
            "relative_positions",
            f"all u and v are between 0 and 1, and pixels are wanted; multiply u by {width} and v "
            f"by {height}?",
        )
    elif different >= COPY_ANCHORS and max(u.max() / width, v.max() / height) < COPY_SHARE:
        yield Warning(
            "upper_left_positions",
            f"all anchors lie within the first {u.max():.0f} columns and {v.max():.0f} rows of "
            f"{size_text((height, width))} pixels; are u and v those of a smaller copy?",
        )


def _negative_disparity(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning if much of a disparity map with a known shift is not above zero."""
    if not mde_output.affine and mde_output.lost_share > MAX_NEGATIVE_SHARE:
        yield Warning(
            "negative_disparity",
            f"{100 * mde_output.lost_share:.0f} % of the disparity map is not above zero and "
            "counts as equally far; does it need a shift that makes infinity zero?",
        )


def _other_kind(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning if the depth that the map implies falls as the measured depth grows."""
    # Of a map with an unknown shift, negative disparities differ too.
    nearness = mde_output.affine and mde_output.kind == "disparity"
    relative = (-mde_output.disparity if nearness else mde_output.mde_depth)[pixels].cpu().numpy()
    if len(np.unique(relative)) < 4 or len(np.unique(anchors.depth_m)) < 4:
        return
    correlation = rank_correlation(relative, anchors.depth_m)
    if correlation < 0:
        other = "disparity" if mde_output.kind == "depth" else "depth"
        yield Warning(
            "kind_mismatch",
            f"the map was declared {mde_output.kind}, but over {len(relative)} anchors the depth "
            "it implies falls as measured depth grows (rank correlation "
            f"{correlation:+.2f}); is it {other}, or are u and v those of another image?",
        )


def _other_unit(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning if the depths of the anchors are probably in another unit than the metre."""
    if anchors.depth_m.size == 0 or anchors.unit != "m":
        return
    typical_m = float(np.median(anchors.depth_m))
    card = MODELS.get(mde_output.model)
    if card is not None and card.metric:
        mde_depth = mde_output.mde_depth[pixels].double().cpu().numpy()
        factor = float(np.median(anchors.depth_m / mde_depth))
        unit = next((unit for unit, limit in FAR_FACTOR.items() if factor > limit), None)
        if len(anchors) > 1 and FEET_FACTOR[0] < factor < FEET_FACTOR[1]:
            unit = "feet"
        found = f", {factor:.{int(factor < 10)}f} times as far as {mde_output.model} estimates"
    else:
        whole = bool((anchors.depth_m == np.round(anchors.depth_m)).all())
        limits_m = {**FAR_M, "centimetres": FAR_WHOLE_M} if whole else FAR_M
        unit = next((unit for unit, far_m in limits_m.items() if typical_m > far_m), None)
        found = ""
    if unit is not None:
        yield Warning(
            "far_anchors",
            f"half of the anchors are {typical_m:.{int(typical_m < 10)}f} m away or more{found}; "
            f"depth_m is in metres, are they {unit}?",
        )


def _contradictions(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning that names the two anchors of one pixel that differ most, if they contradict."""
    if anchors.depth_m.size == 0:
        return
    log_depth, sigma = np.log(anchors.depth_m), anchors.sigma_log(0.0)
    rows, columns = pixels
    order = np.lexsort((log_depth, columns, rows))
    other_pixel = (np.diff(rows[order]) != 0) | (np.diff(columns[order]) != 0)
    starts = np.flatnonzero(np.r_[True, other_pixel])
    ends = np.r_[starts[1:], len(order)] - 1
    low, high = order[starts], order[ends]
    difference = log_depth[high] - log_depth[low]
    limit = np.maximum(CONTRADICTION_LOG, 4 * np.hypot(sigma[low], sigma[high]))
    if not (difference > limit).any():
        return
    worst = int(np.argmax(difference - limit))
    pair = np.sort([low[worst], high[worst]])
    yield Warning(
        "contradicting_anchors",
        f"two anchors lie on one pixel and contradict each other: {anchors.describe(pair)}",
    )


def _few_steps(
    mde_output: MDEOutput, anchors: Anchors, pixels: Pixels, shift: ShiftInterval | None
) -> Iterator[Warning]:
    """A warning about the steps of a map with as few values as an 8-bit image."""
    if mde_output.model != "array" or shift is None:
        return
    values = mde_output.prediction[mde_output.valid]
    values = values[:: 1 + values.numel() // MAX_COUNTED].unique()
    if not 1 < len(values) <= FEW_VALUES:
        return
    low, second = (float(value) + shift.value for value in values[:2])
    # Of disparity the lowest value is the farthest, which may lie at infinity.
    size = f"of up to {100 * (second / low - 1):.0f} %" if low > 0 else "without a limit far away"
    yield Warning(
        "few_steps",
        f"the {mde_output.kind} map has only {len(values)} different values, as an 8-bit image: "
        f"depth comes in steps {size}; give the float map",
    )


def rank_correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Spearman's rank correlation, with ties at their mean rank.

    Written out because scipy.stats takes long to import.
    """

    def ranks(values: np.ndarray) -> np.ndarray:
        _, index, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[index]

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])
