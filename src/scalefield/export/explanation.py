"""One picture of an explanation: the field, its parts by share, gates, and the spectrum."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from scalefield.errors import counted
from scalefield.export.preview import (
    CERTAIN_TO_UNCERTAIN,
    INK,
    NEAR_TO_FAR,
    SMALL_TO_LARGE,
    SOFT_INK,
    Panel,
    Scale,
    Sheet,
    depth_scale,
)

if TYPE_CHECKING:
    from scalefield.explanation import Explanation

SHOWN = 8
"""Largest number of parts with a panel of their own."""
COLUMNS = 4
PANEL = (320 * 240, 320, 100)
"""Area of a panel in pixels, and the least width and height of its place."""
LEAST_REACH = 0.02
"""Log-scale at which the colours end at the earliest."""


def draw_explanation(explanation: Explanation) -> Image.Image:
    """The photograph with the anchors by influence, D_MDE, ℓ and depth; then the parts that explain
    most, as factors on one scale, their gates, and the spectrum."""
    recovery = explanation.recovery
    log_scale = recovery.log_scale.astype(np.float64)
    depth_m = recovery.depth_m.astype(np.float64)
    sheet, metres = Sheet(depth_m.shape, *PANEL), depth_scale(depth_m, " m")
    mde_depth = depth_m / np.exp(log_scale)
    mde_depth = mde_depth / np.nanmedian(mde_depth)
    middle = float(np.nanmedian(log_scale))
    relative = depth_scale(mde_depth)
    varying = {n: p - np.nanmean(p) for n, p in explanation.parts.items()}
    whole, single = _factors([log_scale - middle]), _factors(list(varying.values()))

    grey = relative.colours(mde_depth).mean(-1, keepdims=True) / 2 + 115
    photograph = np.repeat(grey.astype(np.uint8), 3, axis=2)
    photograph = photograph if recovery.image is None else recovery.image
    panels = [
        Panel(_anchors(sheet, sheet.resized(photograph), explanation), "influence of the anchors"),
        sheet.panel(relative.colours(mde_depth), "relative depth", relative),
        sheet.panel(
            whole.colours(np.exp(log_scale - middle)),
            f"scale, around its median {math.exp(middle):.3g}x", whole,
        ),
        sheet.panel(metres.colours(depth_m), f"depth · {recovery.report.method}", metres),
    ]  # fmt: skip
    spectrum, gating = explanation.spectrum, explanation.gating
    shown = explanation.ranked[: SHOWN if gating else SHOWN - 1]
    for name in shown:
        weight = f", weight {explanation.weights[name]:.2f}" if name in explanation.weights else ""
        title = f"{name}{weight} · {100 * explanation.shares[name]:.0f} %"
        panels.append(sheet.panel(single.colours(np.exp(varying[name])), title, single))
    gates = {name: gating[name].astype(np.float64) for name in shown if name in gating}
    for name, gate in list(gates.items())[:2]:
        scale = Scale(CERTAIN_TO_UNCERTAIN, 0.0, max(float(g.max()) for g in gates.values()))
        panels.append(sheet.panel(scale.colours(gate), f"gate of {name}", scale))
    others = [name for name in explanation.parts if name not in shown]
    share = 100 * sum(explanation.shares[name] for name in others)
    notes = [f"{share:.0f} % in {counted(len(others), 'other part')}"]
    if spectrum is not None:
        panels.append(Panel(_spectrum(sheet, spectrum.eigenvalues, spectrum.energy), "spectrum"))
        notes.append(
            f"spectrum: eigenvalues (dark), {spectrum.eta1:.2f} in the first; energy of the "
            f"targets (grey), {spectrum.alpha1_share or 0.0:.2f} in the first; the first "
            f"eigenvector along E0: {spectrum.similarity:.2f}"
        )
    rows = [panels[i : i + COLUMNS] for i in range(0, len(panels), COLUMNS)]
    return sheet.draw(rows, notes if len(rows[-1]) < COLUMNS else [])


def _factors(maps: list[np.ndarray]) -> Scale:
    """A scale of factors around one that holds nearly all values of the maps."""
    reach = max(LEAST_REACH, *(float(np.nanpercentile(np.abs(p), 99.5)) for p in maps))
    return Scale(SMALL_TO_LARGE, math.exp(-reach), math.exp(reach), True, "{:g}x".format)


def jpeg(picture: Image.Image) -> bytes:
    """A picture as a small file."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82, optimize=True)
    return buffer.getvalue()


def _anchors(sheet: Sheet, picture: Image.Image, explanation: Explanation) -> Image.Image:
    """The anchors as discs whose area is their influence."""
    draw, most = ImageDraw.Draw(picture), max(float(explanation.influence.max()), 1e-12)
    largest = sheet.text * min(1.0, math.sqrt(20 / len(explanation.anchors)))
    for u, v, share in zip(
        explanation.anchors.u, explanation.anchors.v, explanation.influence / most, strict=True
    ):
        x, y = (u + 0.5) * sheet.zoom_u, (v + 0.5) * sheet.zoom_v
        radius = 1.5 + largest * math.sqrt(share)
        box = (x - radius, y - radius, x + radius, y + radius)
        draw.ellipse(box, tuple(NEAR_TO_FAR[40].tolist()), INK)
    return picture


def _spectrum(
    sheet: Sheet, eigenvalues: tuple[float, ...], energy: tuple[float, ...] | None
) -> Image.Image:
    """Bars of the eigenvalues and of the targets' energy along each, as shares of their sums."""
    picture = Image.new("RGB", (sheet.width, sheet.height), (255, 255, 255))
    draw, step = ImageDraw.Draw(picture), sheet.width / len(eigenvalues)
    for values, colour, left in ((eigenvalues, INK, 0.1), (energy or (), SOFT_INK, 0.5)):
        for i, value in enumerate(values):
            x, height = (i + left) * step, sheet.height * value / max(sum(values), 1e-300)
            draw.rectangle((x, sheet.height - height, x + 0.4 * step, sheet.height), colour)
    return picture
