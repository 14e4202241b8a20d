"""Draw docs/rooms.png: ten of the rooms that `lite` trains beside, and their depth.

python scripts/draw_rooms.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from scalefield.export.preview import depth_scale
from scalefield.training.synthetic_rooms import Rooms

SIZE = (150, 200)


def main() -> None:
    """Two rows of photographs, each above its depth."""
    rooms = Rooms(10, size=SIZE)
    frames = [rooms.load(name) for name in rooms.names("train")]
    rows = []
    for row in (frames[:5], frames[5:]):
        rows.append(np.concatenate([frame.image for frame in row], axis=1))
        depths = [depth_scale(frame.depth_m).colours(frame.depth_m) for frame in row]
        rows.append(np.concatenate(depths, axis=1))
    Image.fromarray(np.concatenate(rows)).save(Path(__file__).parent.parent / "docs" / "rooms.png")


if __name__ == "__main__":
    main()
