"""A small vectorised ray tracer: unit shapes under affine maps, in groups behind bounding boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
NEAR = np.float32(1e-4)
"""Hits closer than this are the surface the ray starts on."""


def value_noise(p: Array) -> Array:
    """Smooth noise in [0, 1] at the points `p` (n, 3): random lattice values, blended."""
    cell = np.floor(p).astype(np.int64)
    f = (p - cell).astype(np.float32)
    f = f * f * (3 - 2 * f)
    total = np.zeros(len(p), np.float32)
    for corner in np.ndindex(2, 2, 2):
        q = (cell + corner).astype(np.uint32)
        h = q[:, 0] * np.uint32(73856093) ^ q[:, 1] * np.uint32(19349663)
        h ^= q[:, 2] * np.uint32(83492791)
        h = (h ^ (h >> 15)) * np.uint32(2246822519)
        h = (h ^ (h >> 13)) * np.uint32(3266489917)
        weight = np.prod(np.where(corner, f, 1 - f), axis=1)
        total += weight * ((h >> 8).astype(np.float32) / np.float32(2**24))
    return total


def fractal(p: Array, octaves: int = 4) -> Array:
    """Octaves of noise with mean 0.5; each is half as strong and twice as fine as the last."""
    parts = [0.5**i * (value_noise(p * 2.0**i + 17.3 * i) - 0.5) for i in range(octaves)]
    return 0.5 + sum(parts[1:], parts[0])


@dataclass(frozen=True, eq=False)
class Material:
    """What a surface is made of.

    `albedo(p, uv, rgb)` gives colours at world points `p`, or at the position within the piece
    with its longest side first where the material has a grain; `uv` runs from −1 to 1 over the
    shape. Bumps tilt the normal by noise of `bump_per_m` cells a metre.
    """

    albedo: Callable[[Array, Array, Array], Array]
    bump: float = 0.0
    bump_per_m: float = 0.0
    grain: bool = False


@dataclass(frozen=True, eq=False)
class Shape:
    """A unit box, ball or cylinder (axis y, radius 1 + taper·y) placed by x → axes·x + centre."""

    kind: str
    centre: Array
    axes: Array
    rgb: tuple[float, float, float]
    material: Material
    gloss: float = 0.0
    bevel_m: float = 0.004
    taper: float = 0.0


@dataclass
class Group:
    """Shapes that lie close together, behind one bounding box that most rays miss."""

    shapes: list[Shape]
    first: int = 0
    low: Array = field(init=False)
    high: Array = field(init=False)

    def __post_init__(self) -> None:
        reach = [np.abs(s.axes).sum(1) * (1 + abs(s.taper)) for s in self.shapes]
        self.low = np.min([s.centre - r for s, r in zip(self.shapes, reach, strict=True)], 0)
        self.high = np.max([s.centre + r for s, r in zip(self.shapes, reach, strict=True)], 0)
        inverse = np.stack([np.linalg.inv(s.axes) for s in self.shapes])
        self.linear = inverse.reshape(-1, 3).astype(np.float32)
        shift = np.einsum("mij,mj->mi", inverse, [s.centre for s in self.shapes])
        self.shift = shift.reshape(-1, 1).astype(np.float32)
        self.kinds = np.array([s.kind for s in self.shapes])
        self.taper = np.array([s.taper for s in self.shapes], np.float32)[:, None]

    def nearest(self, origin: Array, direction: Array) -> tuple[Array, Array]:
        """Distance to the first surface (inf: none) and which shape it belongs to."""
        o = (self.linear @ origin.T - self.shift).reshape(-1, 3, len(origin))
        d = (self.linear @ direction.T).reshape(-1, 3, len(origin))
        t = np.empty((len(self.shapes), len(origin)), np.float32)
        for kind, hit in HITS.items():
            members = np.flatnonzero(self.kinds == kind)
            if len(members):
                t[members] = hit(o[members], d[members], self.taper[members])
        index = t.argmin(0)
        return t[index, np.arange(len(origin))], index


def hit_box(o: Array, d: Array, taper: Array) -> Array:
    """Distance to the cube [−1, 1]³, by slabs."""
    slope = 1 / np.where(np.abs(d) < 1e-9, np.float32(1e-9), d)
    middle, half = -o * slope, np.abs(slope)
    enter, leave = (middle - half).max(1), (middle + half).min(1)
    return np.where((enter < leave) & (enter > NEAR), enter, np.inf)


def hit_ball(o: Array, d: Array, taper: Array) -> Array:
    """Distance to the unit sphere."""
    a, b, c = (d * d).sum(1), (o * d).sum(1), (o * o).sum(1) - 1
    root = b * b - a * c
    t = (-b - np.sqrt(np.maximum(root, 0))) / a
    return np.where((root > 0) & (t > NEAR), t, np.inf)


def hit_cylinder(o: Array, d: Array, taper: Array) -> Array:
    """Distance to the cylinder |y| ≤ 1 of radius 1 + taper·y, caps included."""
    radius = 1 + taper * o[:, 1]
    a = d[:, 0] ** 2 + d[:, 2] ** 2 - (taper * d[:, 1]) ** 2
    b = o[:, 0] * d[:, 0] + o[:, 2] * d[:, 2] - radius * taper * d[:, 1]
    c = o[:, 0] ** 2 + o[:, 2] ** 2 - radius**2
    root = b * b - a * c
    t = (-b - np.sqrt(np.maximum(root, 0))) / np.where(np.abs(a) < 1e-12, 1e-12, a)
    side = (root > 0) & (t > NEAR) & (np.abs(o[:, 1] + t * d[:, 1]) <= 1)
    best = np.where(side, t, np.inf)
    dy = np.where(np.abs(d[:, 1]) < 1e-9, np.float32(1e-9), d[:, 1])
    for cap in (-1.0, 1.0):
        t = (cap - o[:, 1]) / dy
        inside = (o[:, 0] + t * d[:, 0]) ** 2 + (o[:, 2] + t * d[:, 2]) ** 2
        ok = (t > NEAR) & (inside <= (1 + cap * taper) ** 2)
        best = np.where(ok & (t < best), t, best)
    return best


HITS = {"box": hit_box, "ball": hit_ball, "cylinder": hit_cylinder}


@dataclass
class Hits:
    """What rays met: distance, point, the normal with and without fine bumps, albedo, gloss."""

    t: Array
    point: Array
    face: Array
    normal: Array
    albedo: Array
    gloss: Array
    shape: Array


class Scene:
    """All groups, and the two questions a path asks: what is there, and is the way free."""

    def __init__(self, groups: list[list[Shape]]) -> None:
        self.groups = [Group(shapes) for shapes in groups]
        self.shapes = [s for g in self.groups for s in g.shapes]
        for before, group in zip(self.groups, self.groups[1:], strict=False):
            group.first = before.first + len(before.shapes)
        self.axes = np.stack([s.axes for s in self.shapes])
        self.inverse = np.linalg.inv(self.axes)
        self.size = np.linalg.norm(self.axes, axis=1)
        self.longest = np.argsort(-self.size, axis=1)
        self.centre = np.stack([s.centre for s in self.shapes])
        self.rgb = np.array([s.rgb for s in self.shapes])
        self.gloss = np.array([s.gloss for s in self.shapes])
        self.bevel = np.array([s.bevel_m for s in self.shapes])
        self.taper = np.array([s.taper for s in self.shapes])
        self.kind = np.array([list(HITS).index(s.kind) for s in self.shapes])
        self.materials = list({s.material: None for s in self.shapes})
        self.material = np.array([self.materials.index(s.material) for s in self.shapes])

    def trace(self, origin: Array, direction: Array) -> tuple[Array, Array]:
        """Distance along each ray (inf: none) and the shape it meets."""
        origin, direction = origin.astype(np.float32), direction.astype(np.float32)
        best = np.full(len(origin), np.inf, np.float32)
        shape = np.full(len(origin), -1)
        slope = 1 / np.where(np.abs(direction) < 1e-9, np.float32(1e-9), direction)
        for group in self.groups:
            a, b = (group.low - origin) * slope, (group.high - origin) * slope
            enter, leave = np.minimum(a, b).max(1), np.maximum(a, b).min(1)
            rays = np.flatnonzero((enter <= leave) & (leave > 0) & (enter < best))
            if len(rays):
                t, index = group.nearest(origin[rays], direction[rays])
                closer = t < best[rays]
                best[rays[closer]] = t[closer]
                shape[rays[closer]] = group.first + index[closer]
        return best, shape

    def free(self, origin: Array, direction: Array, length: Array | float) -> Array:
        """Whether nothing stands in the way for `length` metres."""
        return self.trace(origin, direction)[0] >= length

    def look(self, origin: Array, direction: Array, textured: bool = True) -> Hits:
        """Surface properties where each ray ends; rays that leave the room have t = inf."""
        t, shape = self.trace(origin, direction)
        s = np.maximum(shape, 0)
        point = origin + np.where(np.isfinite(t), t, 0)[:, None] * direction
        uv = np.einsum("nij,nj->ni", self.inverse[s], point - self.centre[s])
        normal = self._normal(s, uv)
        normal = np.where(((normal * direction).sum(1) > 0)[:, None], -normal, normal)
        face, albedo = normal.copy(), self.rgb[s]
        for m, material in enumerate(self.materials if textured else []):
            of = np.flatnonzero((self.material[s] == m) & (shape >= 0))
            at = point[of]
            if material.bump:
                cells = at * material.bump_per_m
                tilt = np.stack([value_noise(cells + 31.7 * k) - 0.5 for k in range(3)], 1)
                normal[of] = unit(normal[of] + material.bump * tilt)
            if material.grain:
                at = np.take_along_axis(uv[of] * self.size[s[of]], self.longest[s[of]], 1)
                at += self.centre[s[of]]
            albedo[of] = material.albedo(at, uv[of], self.rgb[s[of]])
        gloss = np.where(shape >= 0, self.gloss[s], 0)
        return Hits(t, point, face, normal, np.clip(albedo, 0.01, 0.9), gloss, shape)

    def _normal(self, s: Array, uv: Array) -> Array:
        """Outward normal; near a box's edge it turns towards the neighbouring face."""
        margin = np.clip(self.bevel[s][:, None] / self.size[s], 1e-4, 0.9)
        box = np.sign(uv) * np.clip((np.abs(uv) - 1 + margin) / margin, 0, 1)
        side = uv * [1, 0, 1] - np.outer(self.taper[s], [0, 1, 0])
        cap = np.sign(uv) * [0, 1, 0]
        cylinder = np.where((np.abs(uv[:, 1]) > 0.9995)[:, None], cap, side)
        local = np.choose(self.kind[s][:, None], [box, uv, cylinder])
        return unit(np.einsum("nij,ni->nj", self.inverse[s], local))


def unit(v: Array) -> Array:
    """`v` at length one."""
    return v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-12)


def turn(yaw: float = 0.0, pitch: float = 0.0, roll: float = 0.0) -> Array:
    """Rotation by degrees about y, then x, then z."""
    (cy, sy), (cp, sp), (cr, sr) = (
        (np.cos(a), np.sin(a)) for a in np.deg2rad([yaw, pitch, roll])
    )  # fmt: skip
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
    return about_y @ about_x @ about_z
