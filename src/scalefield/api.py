"""The public functions: `recover` metric depth, and `suggest` the pixels to measure next."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor

from scalefield.anchors import Anchors, require_anchors
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError
from scalefield.field.placement import Suggestion, suggest_from
from scalefield.inputs import relative_depth
from scalefield.mde import MDE, Kind, MDEOutput
from scalefield.methods import MethodLike, as_method, make_method, method_name
from scalefield.recovery import FunctionMethod, Recovery, Solver
from scalefield.report import Rejection, Warning
from scalefield.validation import plain_options

FAR_M = 500.0
"""A median anchor depth above this is rare in photographs and usual in files in millimetres."""
MAX_NEGATIVE_SHARE = 0.01
"""Share of negative disparities above which a warning is given; some models have a few."""


def recover(
    image: str | Path | Image.Image | np.ndarray | Tensor | None,
    anchors: Anchors | None = None,
    *,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    method: str | MethodLike = METHOD_NAME,
    resize: bool = False,
    **options: Any,
) -> Recovery[Tensor] | Recovery[np.ndarray]:
    """Metric depth of an image from a few anchors.

    The relative depth comes from the estimator `mde`, or from your own map `mde_depth` with its
    `kind`: "depth" grows with distance, "disparity" falls with it. The kind of an `mde` is known,
    except for some model files. `resize` allows a map of another size than the image. Further
    `options` go to the method. Without anchors, `field` returns the depth that its model expects.

    Maps are torch tensors if `image` or `mde_depth` is one, and numpy arrays otherwise.

    >>> import numpy as np, scalefield as sf
    >>> relative = np.linspace(1, 2, 12).reshape(3, 4)
    >>> r = sf.recover(None, sf.Anchors([0], [0], [5.0]), mde_depth=relative, kind="depth",
    ...                method="median")
    >>> float(r.depth_m[2, 3])
    10.0
    """
    mde_output = relative_depth(image, mde, mde_depth, kind, resize=resize)
    given = Anchors([], [], []) if anchors is None else anchors
    require_anchors("anchors", given)
    result = recover_from(mde_output, given, make_method(method, **options))
    as_torch = isinstance(mde_depth, Tensor) or isinstance(image, Tensor)
    return result if as_torch else result.numpy()


def suggest(
    image: Any,
    anchors: Anchors | None = None,
    n: int = 3,
    *,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    resize: bool = False,
    reachable: Bool[np.ndarray, "h w"] | None = None,
    among: Anchors | None = None,
    model: str | Path = "field",
) -> list[Suggestion]:
    """The `n` pixels to measure next, best first, given the anchors that exist already.

    The selection is a greedy design: each pixel minimises Σ log(Var[ℓ] + σ₀²) over the image,
    with the pixels before it taken as measured; σ₀ is the deviation below which a pixel needs no
    measurement. (The sum of the variances itself would select the corners, where little is known
    and little is visible.) The variance depends on the positions of measurements only, not on
    their values. `reachable` marks the pixels that can be measured. With `among`, the best `n` of
    these anchors are selected instead. `mde`, `mde_depth`, `kind` and `resize` are those of
    `recover`.
    """
    output = relative_depth(image, mde, mde_depth, kind, resize=resize)
    return suggest_from(output, anchors, n, reachable=reachable, among=among, model=model)


def recover_from(
    mde_output: MDEOutput,
    anchors: Anchors,
    method: MethodLike,
    *,
    solver: Solver | None = None,
) -> Recovery[Tensor]:
    """`recover` for an existing MDEOutput: check the anchors, run the method, complete the report.

    Anchors on pixels without a relative depth are rejected before the method runs. For several
    sets of anchors on one image pass `solver=method.solver(mde_output)`, so that what depends on
    the image only is computed once.
    """
    method = as_method(method)
    if len(anchors) < method.least_anchors:
        raise InputError("no anchors: at least one pixel of known metric depth is needed")
    rows, columns = anchors.pixels(mde_output.shape)
    usable = mde_output.valid[rows, columns].cpu().numpy()
    if len(anchors) and not usable.any():
        raise InputError(
            f"none of the {len(anchors)} anchors lies on a pixel with a relative depth "
            "(the map there is not finite, or not above zero)"
        )
    kept = anchors if usable.all() else anchors[usable]
    recovery = method(mde_output, kept) if solver is None else solver(kept)
    if not isinstance(recovery, Recovery):
        found = type(recovery).__name__
        raise InputError(f"method {method_name(method)} must return a Recovery, found {found}")
    indices = np.flatnonzero(usable)
    report = dataclasses.replace(
        recovery.report,
        method=method_name(method),
        options=plain_options(method.function if isinstance(method, FunctionMethod) else method),
        anchors_given=len(anchors),
        rejected=(
            *no_relative_depth(np.flatnonzero(~usable)),
            # A method numbers the anchors it was given, the report those that the user gave.
            *(
                dataclasses.replace(r, anchor=int(indices[r.anchor]))
                for r in recovery.report.rejected
            ),
        ),
        warnings=(*_warnings(mde_output, kept), *recovery.report.warnings),
    )
    return dataclasses.replace(recovery, report=report)


def no_relative_depth(indices: np.ndarray) -> tuple[Rejection, ...]:
    """Rejections of the anchors at these indices, which lie on holes of the relative depth map."""
    reason = "no relative depth here"
    return tuple(Rejection(int(i), "no_relative_depth", reason) for i in indices)


def _warnings(mde_output: MDEOutput, anchors: Anchors) -> Iterator[Warning]:
    """Warnings where the map or the anchors are probably not what they were declared to be."""
    if len(anchors) and (typical_m := float(np.median(anchors.depth_m))) > FAR_M:
        yield Warning(
            "far_anchors",
            f"half of the anchors are {typical_m:.0f} m away or more; depth_m is in metres, are "
            "they millimetres?",
        )
    if mde_output.lost_share > MAX_NEGATIVE_SHARE:
        yield Warning(
            "negative_disparity",
            f"{100 * mde_output.lost_share:.0f} % of the disparity map is not above zero and "
            "counts as equally far; does it need a shift that makes infinity zero?",
        )
    rows, columns = anchors.pixels(mde_output.shape)
    mde_depth = mde_output.mde_depth[rows, columns].cpu().numpy()
    if len(np.unique(mde_depth)) < 4 or len(np.unique(anchors.depth_m)) < 4:
        return
    correlation = rank_correlation(mde_depth, anchors.depth_m)
    if correlation < 0:
        other = "disparity" if mde_output.kind == "depth" else "depth"
        yield Warning(
            "kind_mismatch",
            f"the map was declared {mde_output.kind}, but over {len(anchors)} anchors the depth it "
            f"implies falls as measured depth grows (rank correlation {correlation:+.2f}); is it "
            f"{other}?",
        )


def rank_correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Spearman's rank correlation, with ties at their mean rank.

    Written out because scipy.stats takes long to import.
    """

    def ranks(values: np.ndarray) -> np.ndarray:
        _, index, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[index]

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])
