"""Materials of the sample room: procedural colours and bumps."""

from __future__ import annotations

import numpy as np

from tracer import Array, Material, fractal, value_noise


def mix(a: object, b: object, t: Array) -> Array:
    """Blend two colours by `t`."""
    return np.asarray(a) * (1 - t[:, None]) + np.asarray(b) * t[:, None]


def step(low: float, high: float, x: Array) -> Array:
    """0 below `low`, 1 above `high`, smooth between."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def plaster_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Painted wall: faint stains and a fine roller texture."""
    stain = fractal(p * 1.3, 3) - 0.5
    return rgb * (1 + 0.10 * stain + 0.05 * (fractal(p * 60, 2) - 0.5))[:, None]


def wood_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """`p` counts metres along the piece's longest side first: the way the grain runs."""
    stretched = p * np.array([3.0, 30.0, 30.0])
    rings = np.sin(24 * fractal(stretched * 0.35, 3) + 9 * fractal(p * 2, 2))
    grain = fractal(stretched * 3.1, 3) - 0.5
    return rgb * (1 + 0.13 * rings + 0.45 * grain)[:, None]


def planks_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Floor boards of varying tone, grain along z, dark gaps."""
    width, length = 0.135, 1.35
    row = np.floor(p[:, 0] / width)
    along = p[:, 2] / length + 0.37 * row + value_noise(np.stack([row, row, row], 1) * 1.7)
    board = np.stack([row, np.floor(along), 0 * row], 1)
    tone = value_noise(board * 3.7 + 0.5)
    grain_at = np.stack([p[:, 0] * 34, row * 5.1 + tone * 9, p[:, 2] * 2.4], 1)
    rings = np.sin(16 * fractal(grain_at * 0.5, 3))
    grain = fractal(grain_at * 2.3, 4) - 0.5
    x_edge = np.abs(p[:, 0] / width - row - 0.5) * 2
    z_edge = np.abs(along - np.floor(along) - 0.5) * 2
    gap = np.maximum(step(0.965, 0.99, x_edge), step(0.996, 0.999, z_edge))
    shade = (0.78 + 0.44 * tone + 0.10 * rings + 0.38 * grain) * (1 - 0.75 * gap)
    return mix(rgb, rgb * [1.0, 0.86, 0.72], tone) * shade[:, None]


def rug_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Diamonds inside a border, with pile."""
    x, z = uv[:, 0], uv[:, 2]
    lattice = np.abs((x * 4.5) % 1 - 0.5) + np.abs((z * 3.5) % 1 - 0.5)
    diamond = step(0.30, 0.33, lattice) * (1 - step(0.44, 0.47, lattice))
    core = 1 - step(0.16, 0.19, lattice)
    edge = np.maximum(np.abs(x), np.abs(z) * 0.995)
    border = step(0.86, 0.865, edge) * (1 - step(0.94, 0.945, edge))
    colour = mix(rgb, [0.44, 0.38, 0.30], np.maximum(diamond, border))
    colour = mix(colour, [0.07, 0.09, 0.17], np.where(edge < 0.86, core, 0))
    pile = fractal(p * np.array([160, 1, 220]), 3) - 0.5
    return colour * (1 + 0.9 * pile + 0.35 * (fractal(p * 6, 2) - 0.5))[:, None]


def fabric_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Woven melange."""
    weave = value_noise(p * np.array([420, 420, 420])) - 0.5
    melange = fractal(p * 70, 3) - 0.5
    return rgb * (1 + 0.35 * weave + 0.40 * melange + 0.2 * (fractal(p * 4, 2) - 0.5))[:, None]


def stripes_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Fabric with light stripes."""
    line = step(0.42, 0.5, np.abs((uv[:, 0] * 3.5) % 1 - 0.5) * 1.6)
    return fabric_albedo(p, uv, mix(rgb, [0.62, 0.57, 0.48], line))


def book_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """A standing book: spine with band and title, pages on top."""
    band = step(0.55, 0.57, uv[:, 1]) * (1 - step(0.72, 0.74, uv[:, 1]))
    letters = step(0.52, 0.6, value_noise(np.stack([uv[:, 1] * 14, rgb[:, 0] * 50, uv[:, 1]], 1)))
    title = letters * (np.abs(uv[:, 0]) < 0.4) * (np.abs(uv[:, 1] + 0.1) < 0.4)
    cover = mix(rgb, [0.62, 0.52, 0.30], 0.8 * np.maximum(band, title))
    pages = np.array([0.66, 0.61, 0.49]) * (0.8 + 0.4 * value_noise(p * 900))[:, None]
    worn = cover * (0.9 + 0.3 * (fractal(p * 40, 2) - 0.5))[:, None]
    return np.where((np.abs(uv[:, 1]) > 0.985)[:, None], pages, worn)


def lying_book_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """A book on its side: cover above and below, pages between."""
    pages = np.array([0.66, 0.61, 0.49]) * (0.75 + 0.5 * value_noise(p * [40, 1500, 40]))[:, None]
    inside = (np.abs(uv[:, 1]) < 0.82) & (uv[:, 0] > -0.97)
    panel = (np.abs(uv[:, 0]) < 0.6) & (np.abs(uv[:, 2] - 0.3) < 0.25)
    cover = (
        mix(rgb, [0.62, 0.55, 0.40], 0.7 * panel) * (0.95 + 0.2 * (fractal(p * 40) - 0.5))[:, None]
    )
    return np.where(inside[:, None], pages, cover)


def cardboard_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Corrugated board with tape over the seam."""
    corrugation = 1 + 0.05 * np.sin(uv[:, 0] * 160) + 0.25 * (fractal(p * 25, 3) - 0.5)
    top = np.abs(uv[:, 1]) > 0.99
    tape = (np.abs(uv[:, 2]) < 0.14) & (top | (np.abs(uv[:, 1]) > 0.6))
    seam = top & (np.abs(uv[:, 2]) < 0.012)
    colour = np.where(tape[:, None], [0.50, 0.36, 0.20], rgb * corrugation[:, None])
    return np.where(seam[:, None], colour * 0.35, colour)


def painting_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Hills behind hills under an evening sky; the colour's red picks the picture."""
    x, y, painting = uv[:, 0], uv[:, 1], 40 * rgb[:, 0]
    colour = mix([0.70, 0.42, 0.25], [0.20, 0.30, 0.45], step(-0.3, 0.9, y))
    sun = (x - 0.3) ** 2 + (y - 0.25) ** 2
    colour = mix(colour, [0.85, 0.62, 0.35], 1 - step(0.02, 0.03, sun))
    for i, tint in enumerate([(0.32, 0.33, 0.42), (0.17, 0.25, 0.30), (0.07, 0.13, 0.13)]):
        at = np.stack([x * (1.2 + i), painting + 7.0 * i, 0 * x], 1)
        ridge = 0.25 - 0.38 * i + 0.9 * (fractal(at, 5) - 0.5)
        colour = mix(colour, tint, step(-0.01, 0.01, ridge - y))
    mat = np.maximum(np.abs(x) / 0.80, np.abs(y) / 0.84) > 1
    return np.where(mat[:, None], [0.72, 0.70, 0.65], colour)


def leaf_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """A light rib and veins."""
    rib = np.exp(-((uv[:, 2] / 0.08) ** 2))
    veins = np.sin(30 * (uv[:, 0] + np.abs(uv[:, 2])))
    shade = 1 + 0.10 * veins + 0.5 * (fractal(p * 18, 2) - 0.5)
    return mix(rgb * shade[:, None], rgb * 1.9, 0.7 * rib)


def ball_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """Patches of two colours."""
    lobes = np.sin(5 * uv[:, 0]) * np.sin(5 * uv[:, 1] + 1) * np.sin(5 * uv[:, 2] + 2)
    return mix(rgb, [0.80, 0.78, 0.72], step(-0.02, 0.02, lobes))


def plain_albedo(p: Array, uv: Array, rgb: Array) -> Array:
    """One colour, hardly mottled."""
    return rgb * (1 + 0.08 * (fractal(p * 12, 3) - 0.5))[:, None]


PLAIN, BOOK, LYING_BOOK = (Material(f) for f in (plain_albedo, book_albedo, lying_book_albedo))
PLANKS, PAINTING, LEAF = (Material(f) for f in (planks_albedo, painting_albedo, leaf_albedo))
CARDBOARD, BALL = Material(cardboard_albedo), Material(ball_albedo)
PLASTER = Material(plaster_albedo, bump=0.05, bump_per_m=55)
FABRIC = Material(fabric_albedo, bump=0.25, bump_per_m=210)
STRIPES = Material(stripes_albedo, bump=0.25, bump_per_m=210)
RUG = Material(rug_albedo, bump=0.45, bump_per_m=190)
WOOD = Material(wood_albedo, grain=True)
