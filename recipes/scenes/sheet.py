"""Contact sheets: image, depth and labels of frames side by side."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
from recipes.scenes.dataset import DATASET

COLUMNS = 6
CELL_PX = 320


def draw_sheet(out: Path, picture: Path, match: str = "", frames: int = 24) -> None:
    """Write a picture of frames evenly drawn from those whose names begin with `match`."""
    paths = sorted((out / DATASET).glob(f"*/rgb/{match}*.jpg"))
    if not paths:
        raise SystemExit(f"{out}: no frames {match}*")
    picked = [paths[i] for i in np.unique(np.linspace(0, len(paths) - 1, frames).astype(int))]
    cells = [_cell(path) for path in picked]
    height = max(len(cell) for cell in cells)
    cells = [np.pad(cell, ((0, height - len(cell)), (0, 0), (0, 0))) for cell in cells]
    while len(cells) % COLUMNS:
        cells.append(np.zeros_like(cells[0]))
    rows = [np.hstack(cells[i : i + COLUMNS]) for i in range(0, len(cells), COLUMNS)]
    cv2.imwrite(str(picture), np.vstack(rows))


def _cell(path: Path) -> np.ndarray:
    """Image above, depth and labels below it at half the width."""
    folder, name = path.parent.parent, path.stem
    scale = 1000.0
    if (folder / "meta.json").exists():
        scale = json.loads((folder / "meta.json").read_text())["depth_scale_per_metre"]
    image = cv2.imread(str(path))
    depth = cv2.imread(str(folder / "depth" / f"{name}.png"), cv2.IMREAD_UNCHANGED) / scale
    labels = cv2.imread(str(folder / "label" / f"{name}.png"), cv2.IMREAD_UNCHANGED)
    has_depth = depth > 0
    log = np.log(np.where(has_depth, depth, 1))
    low, high = np.percentile(log[has_depth], [1, 99]) if has_depth.any() else (0, 1)
    shade = (255 - 255 * np.clip((log - low) / (high - low + 1e-6), 0, 1)).astype(np.uint8)
    depth_image = cv2.applyColorMap(shade, cv2.COLORMAP_TURBO)
    depth_image[~has_depth] = 0
    label_image = cv2.applyColorMap((labels.astype(np.uint16) * 53 % 256).astype(np.uint8), 2)
    height = round(CELL_PX * image.shape[0] / image.shape[1])
    top = cv2.resize(image, (CELL_PX, height), interpolation=cv2.INTER_AREA)
    half = (CELL_PX // 2, height // 2)
    below = np.hstack([
        cv2.resize(picture, half, interpolation=cv2.INTER_NEAREST)
        for picture in (depth_image, label_image)
    ])  # fmt: skip
    cell = np.vstack([top, below])
    text = f"{name} {np.exp(low):.1f}-{np.exp(high):.1f} m"
    cv2.putText(cell, text, (4, 14), 0, 0.42, (0, 255, 255), 1)
    return cell
