"""The objects of the sample room and their positions."""

from __future__ import annotations

import numpy as np

from sample_materials import (
    BALL,
    BOOK,
    CARDBOARD,
    FABRIC,
    LEAF,
    LYING_BOOK,
    PAINTING,
    PLAIN,
    PLANKS,
    PLASTER,
    RUG,
    STRIPES,
    WOOD,
)
from tracer import Array, Material, Scene, Shape, turn

SEED = 7
WINDOW = (-2.35, (0.95, 2.15), (0.25, 1.95))
"""x, y range, z range of the opening in the left wall; outside the picture."""
LAMP_CENTRE, LAMP_RADIUS = np.array([0.60, 1.48, 4.20]), 0.13


class Furniture:
    """Collects shapes in a frame of their own: a spot on the floor and a heading."""

    def __init__(self, x: float = 0, y: float = 0, z: float = 0, yaw: float = 0) -> None:
        self.origin, self.frame, self.shapes = np.array([x, y, z]), turn(yaw), []

    def add(  # noqa: PLR0917
        self,
        kind: str,
        at: tuple,
        size: tuple,
        rgb: tuple,
        material: Material = PLAIN,
        rotation: Array | None = None,
        **more: float,
    ) -> None:
        """Add a shape whose full size is `size`, its middle at `at`."""
        axes = self.frame @ (np.eye(3) if rotation is None else rotation)
        centre = self.origin + self.frame @ np.array(at)
        shape = Shape(kind, centre, axes * (np.array(size) / 2), rgb, material, **more)
        self.shapes.append(shape)


OAK, WALNUT, WHITE = (0.46, 0.29, 0.15), (0.20, 0.105, 0.055), (0.74, 0.72, 0.68)
SPINES = [
    (0.42, 0.07, 0.06), (0.07, 0.14, 0.30), (0.10, 0.26, 0.17), (0.55, 0.40, 0.12),
    (0.60, 0.57, 0.50), (0.05, 0.05, 0.06), (0.34, 0.17, 0.09), (0.16, 0.33, 0.38),
    (0.50, 0.23, 0.10), (0.30, 0.28, 0.33),
]  # fmt: skip


def walls() -> list[Shape]:
    """Floor, ceiling, four walls, the window, skirting boards."""
    f = Furniture()
    f.add("box", (0, -0.05, 1.5), (4.8, 0.1, 7), (0.40, 0.235, 0.125), PLANKS, gloss=0.35)
    f.add("box", (0, 2.65, 1.5), (4.8, 0.1, 7), WHITE, PLASTER)
    f.add("box", (0, 1.3, 4.75), (4.8, 2.8, 0.1), (0.70, 0.665, 0.60), PLASTER)
    f.add("box", (0, 1.3, -1.55), (4.8, 2.8, 0.1), (0.62, 0.59, 0.54), PLASTER)
    f.add("box", (2.35, 1.3, 1.5), (0.1, 2.8, 7), (0.66, 0.63, 0.57), PLASTER)
    sage, x, (y0, y1), (z0, z1) = (0.36, 0.43, 0.37), -2.275, WINDOW[1], WINDOW[2]
    f.add("box", (x, y0 / 2, 1.5), (0.15, y0, 7), sage, PLASTER)
    f.add("box", (x, (y1 + 2.7) / 2, 1.5), (0.15, 2.7 - y1, 7), sage, PLASTER)
    f.add("box", (x, 1.5, (z0 - 1.6) / 2), (0.15, 1.3, z0 + 1.6), sage, PLASTER)
    f.add("box", (x, 1.5, (z1 + 5) / 2), (0.15, 1.3, 5 - z1), sage, PLASTER)
    f.add("box", (x, 1.55, (z0 + z1) / 2), (0.05, 1.2, 0.05), WHITE)
    f.add("box", (x, 1.60, (z0 + z1) / 2), (0.05, 0.04, 1.7), WHITE)
    f.add("box", (0, 0.05, 4.69), (4.5, 0.1, 0.02), WHITE, gloss=0.1)
    f.add("box", (-2.19, 0.05, 1.6), (0.02, 0.1, 6.2), WHITE, gloss=0.1)
    return f.shapes


def bookshelf(rng: np.random.Generator) -> list[list[Shape]]:
    """The shelf, its rows of books, and what stands between and above them."""
    f, rows = Furniture(-0.55, 0, 4.52), []
    width, height, depth = 1.15, 1.86, 0.30
    for x in (-width / 2, width / 2):
        f.add("box", (x, height / 2, 0), (0.03, height, depth), OAK, WOOD)
    f.add("box", (0, height / 2, 0.14), (width, height, 0.012), OAK, WOOD)
    levels = [0.06, 0.43, 0.79, 1.14, 1.49, 1.85]
    for y in levels:
        f.add("box", (0, y, 0), (width, 0.026, depth), OAK, WOOD)
    for level, y in enumerate(levels[:-1]):
        row = Furniture(-0.55, y + 0.013, 4.52)
        x, end = -width / 2 + 0.03, width / 2 - 0.03 - (0.30 if level in (1, 3, 4) else 0.05)
        while x < end:
            w, h = rng.uniform(0.018, 0.052), rng.uniform(0.19, 0.29)
            lean = rng.choice([0, 0, 0, 0, 6.0])
            rgb = tuple(np.array(SPINES[rng.integers(len(SPINES))]) * rng.uniform(0.75, 1.25))
            at = (x + w / 2 + 0.02 * (lean > 0), h / 2, -0.04 + rng.uniform(-0.02, 0.01))
            row.add("box", at, (w, h, 0.19), rgb, BOOK, turn(roll=-lean), bevel_m=0.006)
            x += w + 0.0015 + 0.03 * (lean > 0) + (0.07 if rng.random() < 0.05 else 0)
        rows.append(row.shapes)
    top = Furniture(-0.55, levels[-1] + 0.013, 4.50)
    top.add(
        "cylinder", (0.34, 0.13, 0), (0.15, 0.26, 0.15), (0.10, 0.20, 0.27), taper=0.25, gloss=0.5
    )
    top.add("box", (-0.25, 0.02, 0), (0.26, 0.04, 0.19), SPINES[0], LYING_BOOK, turn(yaw=8))
    top.add("box", (-0.24, 0.055, 0), (0.23, 0.03, 0.17), SPINES[4], LYING_BOOK, turn(yaw=-5))
    decoration = Furniture(-0.55, 0, 4.50)
    decoration.add("ball", (0.40, 0.53, -0.03), (0.17, 0.17, 0.17), (0.62, 0.59, 0.54), gloss=0.3)
    decoration.add(
        "cylinder", (0.42, 1.24, -0.03), (0.13, 0.18, 0.13), (0.48, 0.20, 0.10), taper=0.2
    )
    decoration.add("box", (0.40, 1.60, 0.02), (0.20, 0.20, 0.02), WALNUT, WOOD, turn(pitch=10))
    decoration.add(
        "box", (0.40, 1.60, 0.008), (0.16, 0.16, 0.004), (0.3, 0.3, 0.3), PAINTING, turn(pitch=10)
    )
    return [f.shapes, *rows, top.shapes, decoration.shapes]


def sofa() -> list[Shape]:
    """Two seats and two cushions."""
    f, grey = Furniture(1.55, 0, 4.05, yaw=-4), (0.145, 0.175, 0.215)
    soft = {"bevel_m": 0.05}
    f.add("box", (0, 0.23, 0.02), (1.50, 0.24, 0.86), grey, FABRIC, **soft)
    for x in (-0.36, 0.36):
        f.add("box", (x, 0.405, -0.06), (0.71, 0.16, 0.74), grey, FABRIC, turn(pitch=-1.5), **soft)
        f.add(
            "box", (x, 0.66, 0.28), (0.70, 0.46, 0.20), grey, FABRIC, turn(pitch=14), bevel_m=0.08
        )
    f.add("box", (0, 0.52, 0.40), (1.50, 0.58, 0.14), grey, FABRIC, **soft)
    for x in (-0.82, 0.82):
        f.add("box", (x, 0.36, 0.02), (0.17, 0.50, 0.88), grey, FABRIC, **soft)
    for x, z in ((-0.8, -0.35), (0.8, -0.35), (-0.8, 0.38), (0.8, 0.38)):
        f.add("cylinder", (x, 0.055, z), (0.04, 0.11, 0.04), WALNUT, WOOD)
    f.add("box", (-0.50, 0.64, 0.08), (0.42, 0.42, 0.13), (0.55, 0.24, 0.07), STRIPES,
          turn(yaw=16, pitch=20, roll=7), bevel_m=0.10)  # fmt: skip
    f.add("ball", (0.42, 0.66, 0.10), (0.46, 0.42, 0.20), (0.50, 0.47, 0.40), FABRIC, turn(-10, 18))
    return f.shapes


def table() -> list[Shape]:
    """A low table with books, a mug and fruit."""
    f = Furniture(0.48, 0, 2.78, yaw=9)
    f.add("box", (0, 0.425, 0), (0.98, 0.035, 0.56), OAK, WOOD, gloss=0.25, bevel_m=0.01)
    f.add("box", (0, 0.20, 0), (0.82, 0.02, 0.42), OAK, WOOD, gloss=0.2)
    for x in (-0.43, 0.43):
        for z in (-0.22, 0.22):
            f.add("cylinder", (x, 0.205, z), (0.042, 0.41, 0.042), OAK, WOOD, taper=0.2)
    f.add(
        "box",
        (-0.27, 0.458, 0.03),
        (0.25, 0.03, 0.18),
        (0.07, 0.14, 0.28),
        LYING_BOOK,
        turn(yaw=14),
    )
    f.add(
        "box",
        (-0.26, 0.486, 0.03),
        (0.22, 0.026, 0.16),
        (0.50, 0.22, 0.10),
        LYING_BOOK,
        turn(yaw=-11),
    )
    f.add("cylinder", (0.05, 0.492, -0.12), (0.085, 0.098, 0.085), (0.72, 0.70, 0.66), gloss=0.5)
    f.add("cylinder", (0.05, 0.5395, -0.12), (0.074, 0.004, 0.074), (0.045, 0.02, 0.01), gloss=0.8)
    f.add(
        "cylinder",
        (0.29, 0.463, 0.05),
        (0.21, 0.042, 0.21),
        (0.11, 0.22, 0.30),
        taper=0.3,
        gloss=0.5,
    )
    fruit = [
        (0.25, 0.02, (0.68, 0.27, 0.03)),
        (0.33, 0.03, (0.62, 0.20, 0.03)),
        (0.29, 0.10, (0.36, 0.42, 0.06)),
        (0.30, 0.045, (0.55, 0.06, 0.04)),
    ]
    for x, z, rgb in fruit:
        f.add("ball", (x, 0.515 + 0.035 * (z == 0.045), z), (0.075, 0.07, 0.075), rgb, gloss=0.25)
    f.add(
        "box", (0.12, 0.226, 0.02), (0.36, 0.03, 0.26), (0.60, 0.57, 0.50), LYING_BOOK, turn(yaw=5)
    )
    f.add(
        "box", (0.13, 0.252, 0.02), (0.32, 0.02, 0.24), (0.34, 0.06, 0.06), LYING_BOOK, turn(yaw=12)
    )
    return f.shapes


def chair() -> list[Shape]:
    """A wooden chair, seen from behind."""
    f = Furniture(-1.02, 0, 2.92, yaw=152)
    f.add("box", (0, 0.445, 0), (0.42, 0.035, 0.41), WALNUT, WOOD, gloss=0.25, bevel_m=0.012)
    for x, lean in ((-0.17, -3.0), (0.17, 3.0)):
        f.add("cylinder", (x, 0.215, -0.16), (0.036, 0.43, 0.036), WALNUT, WOOD, turn(roll=lean))
        f.add(
            "cylinder",
            (x, 0.46, 0.185),
            (0.036, 0.93, 0.036),
            WALNUT,
            WOOD,
            turn(pitch=6, roll=lean),
        )
    f.add("box", (0, 0.86, 0.225), (0.42, 0.11, 0.022), WALNUT, WOOD, turn(pitch=8), gloss=0.25)
    for x in (-0.11, 0, 0.11):
        f.add("cylinder", (x, 0.63, 0.195), (0.016, 0.42, 0.016), WALNUT, WOOD, turn(pitch=7))
    f.add("cylinder", (0, 0.17, -0.16), (0.018, 0.34, 0.018), WALNUT, WOOD, turn(roll=90))
    f.add("box", (0, 0.475, 0), (0.37, 0.04, 0.36), (0.42, 0.12, 0.08), FABRIC, bevel_m=0.03)
    return f.shapes


def plant(rng: np.random.Generator) -> list[Shape]:
    """A pot of broad leaves at golden angles."""
    f = Furniture(-1.80, 0, 4.28)
    f.add("cylinder", (0, 0.19, 0), (0.36, 0.38, 0.36), (0.56, 0.53, 0.48), PLASTER, taper=0.18)
    f.add("cylinder", (0, 0.381, 0), (0.38, 0.006, 0.38), (0.05, 0.035, 0.025))
    for i in range(34):
        yaw, rise = 137.5 * i, rng.uniform(18, 82)
        direction = turn(yaw=yaw) @ np.array(
            [np.cos(np.deg2rad(rise)), np.sin(np.deg2rad(rise)), 0]
        )
        reach = rng.uniform(0.38, 0.95) * (0.55 + 0.45 * np.sin(np.deg2rad(rise)))
        tip = np.array([0, 0.40, 0]) + direction * reach
        tip[0], tip[2] = max(tip[0], -0.26), min(tip[2], 0.28)
        stem = turn(yaw=yaw) @ turn(roll=rise - 90)
        f.add("cylinder", tuple((np.array([0, 0.38, 0]) + tip) / 2), (0.011, reach, 0.011),
              (0.12, 0.19, 0.06), PLAIN, stem)  # fmt: skip
        blade = (
            turn(yaw=yaw) @ turn(roll=rise - rng.uniform(45, 85)) @ turn(pitch=rng.uniform(-30, 30))
        )
        green = np.array([0.075, 0.20, 0.045]) * rng.uniform(0.7, 1.5)
        size = (rng.uniform(0.24, 0.36), 0.012, rng.uniform(0.11, 0.17))
        f.add(
            "ball",
            tuple(tip + blade @ np.array([0.1, 0, 0])),
            size,
            tuple(green),
            LEAF,
            blade,
            gloss=0.25,
        )
    return f.shapes


def desk() -> list[Shape]:
    """The corner of a desk close to the camera."""
    f = Furniture(1.02, 0, 1.42, yaw=-14)
    f.add("box", (0, 0.735, 0), (0.80, 0.03, 0.56), WALNUT, WOOD, gloss=0.3, bevel_m=0.008)
    for x, z in ((-0.36, -0.24), (0.36, -0.24), (-0.36, 0.24), (0.36, 0.24)):
        f.add("cylinder", (x, 0.36, z), (0.045, 0.72, 0.045), WALNUT, WOOD)
    f.add(
        "box",
        (-0.10, 0.757, 0.05),
        (0.31, 0.012, 0.22),
        (0.42, 0.42, 0.43),
        PLAIN,
        turn(yaw=-8),
        gloss=0.4,
    )
    f.add(
        "box", (-0.10, 0.764, 0.045), (0.26, 0.004, 0.10), (0.04, 0.04, 0.045), PLAIN, turn(yaw=-8)
    )
    f.add("cylinder", (-0.31, 0.80, 0.17), (0.08, 0.10, 0.08), (0.55, 0.33, 0.08), gloss=0.4)
    pencils = [
        (-0.32, 0.16, 9, (0.6, 0.12, 0.05)),
        (-0.30, 0.18, -8, (0.08, 0.2, 0.4)),
        (-0.31, 0.15, 3, (0.62, 0.5, 0.1)),
    ]
    for x, z, lean, rgb in pencils:
        f.add(
            "cylinder",
            (x, 0.85, z),
            (0.008, 0.17, 0.008),
            rgb,
            PLAIN,
            turn(roll=lean, pitch=lean / 2),
        )
    f.add(
        "box", (0.22, 0.765, 0.08), (0.20, 0.03, 0.27), (0.45, 0.09, 0.07), LYING_BOOK, turn(yaw=10)
    )
    f.add(
        "box",
        (0.22, 0.792, 0.08),
        (0.17, 0.024, 0.24),
        (0.60, 0.57, 0.50),
        LYING_BOOK,
        turn(yaw=-4),
    )
    return f.shapes


def things() -> list[list[Shape]]:
    """Rug, boxes, ball, lamp and pictures."""
    carpet = Furniture(0.40, 0, 2.95, yaw=3)
    carpet.add("box", (0, 0.006, 0), (2.3, 0.012, 1.6), (0.29, 0.105, 0.08), RUG)
    box = Furniture(-1.45, 0, 3.55, yaw=-24)
    box.add("box", (0, 0.16, 0), (0.46, 0.32, 0.36), (0.45, 0.30, 0.165), CARDBOARD)
    box.add(
        "box", (0.03, 0.39, 0.01), (0.30, 0.14, 0.24), (0.40, 0.265, 0.14), CARDBOARD, turn(yaw=15)
    )
    toy = Furniture(-0.28, 0.112, 2.42)
    toy.add(
        "ball", (0, 0, 0), (0.22, 0.22, 0.22), (0.50, 0.055, 0.045), BALL, turn(30, 20), gloss=0.4
    )
    lamp = Furniture(LAMP_CENTRE[0], 0, LAMP_CENTRE[2])
    lamp.add("cylinder", (0, 0.012, 0), (0.26, 0.024, 0.26), (0.06, 0.06, 0.06), gloss=0.5)
    lamp.add("cylinder", (0, 0.68, 0), (0.022, 1.34, 0.022), (0.30, 0.23, 0.12), gloss=0.6)
    lamp.add("ball", (0, LAMP_CENTRE[1], 0), (2 * LAMP_RADIUS,) * 3, (0.8, 0.78, 0.72))
    pictures = Furniture()
    for x, y, w, h, rgb in ((1.20, 1.58, 0.52, 0.66, 0.30), (1.86, 1.66, 0.46, 0.46, 0.52)):
        pictures.add("box", (x, y, 4.685), (w, h, 0.03), (0.05, 0.045, 0.04), WOOD)
        pictures.add(
            "box", (x, y, 4.668), (w - 0.05, h - 0.05, 0.004), (rgb, 0.4, 0.4), PAINTING, gloss=0.15
        )
    side = Furniture(-2.185, 1.62, 3.35, yaw=90)
    side.add("box", (0, 0, 0), (0.74, 0.54, 0.03), OAK, WOOD)
    side.add("box", (0, 0, 0.017), (0.68, 0.48, 0.004), (0.85, 0.4, 0.4), PAINTING, gloss=0.15)
    return [carpet.shapes, box.shapes, toy.shapes, lamp.shapes, pictures.shapes, side.shapes]


def room() -> Scene:
    """The scene, the same every time."""
    rng = np.random.default_rng(SEED)
    shelf = bookshelf(rng)
    return Scene([walls(), *shelf, sofa(), table(), chair(), plant(rng), desk(), *things()])
