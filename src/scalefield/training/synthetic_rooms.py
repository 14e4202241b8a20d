"""Synthetic rooms: random furniture, colours, lights and cameras, rendered with their depth.

A few hundred photographed frames come from a few dozen places. From any number of rendered rooms a
network learns what these frames do not show: that walls meet floors and objects rest on others,
whatever their colours are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from numpy.typing import ArrayLike
from torch import Tensor

from scalefield.datasets import Frame
from scalefield.seeding import seeded_rng

BOX, CYLINDER, BALL = range(3)
WAVES = 6
"""Sine waves that a texture is made of."""
NEAR = 1e-3


@dataclass(frozen=True)
class Rooms:
    """A dataset of rooms: "train" has them all, and none is for validation or test.

    Rooms of one seed count as one scene, because they are drawn from one distribution.
    """

    count: int
    seed: int = 0
    size: tuple[int, int] = (360, 480)
    device: str = "cpu"
    name: str = "rooms"

    def names(self, split: str) -> list[str]:
        """Rooms by number."""
        return [f"rooms/{i:05d}" for i in range(self.count)] if split in ("train", "all") else []

    def load(self, name: str) -> Frame:
        """The rendered room of that name, which seeds all random numbers."""
        room = furnish(seeded_rng(self.seed, name))
        image, depth_m = render(room, self.size, torch.device(self.device))
        return Frame(name, "rooms", f"rooms-{self.seed}", image, depth_m, (0.1, 10.0))


class Things(NamedTuple):
    """Unit boxes, upright cylinders and balls, stretched, turned around the vertical and moved."""

    centre: Float[Tensor, "n 3"]
    """Position in metres: x to the right, y up, z ahead."""
    half: Float[Tensor, "n 3"]
    turn: Float[Tensor, " n"]
    shape: Int64[Tensor, " n"]


class Paint(NamedTuple):
    """Colours of surfaces: two, mixed by waves that are smooth or stepped."""

    colours: Float[Tensor, "n 2 3"]
    waves: Float[Tensor, "n w 3"]
    """Wave vectors of the pattern in radians a metre."""
    phases: Float[Tensor, "n w"]
    step: Float[Tensor, " n"]
    """Sharpness of the edges between the two colours."""


@dataclass(frozen=True, eq=False)
class Room:
    """A scene. The first object is the room itself, seen from inside."""

    things: Things
    paint: Paint
    """Colours of all objects, and six for the walls, the floor and the ceiling."""
    camera_position: Float[Tensor, " 3"]
    camera_axes: Float[Tensor, "3 3"]
    """Rows: right, down and ahead of the camera."""
    focal: float
    """Focal length in image widths."""
    lights: Float[Tensor, "l 3"]
    powers: Float[Tensor, "l 3"]
    ambient: float


def furnish(rng: np.random.Generator) -> Room:
    """A room with pieces along the walls and in the middle, and small things on top of them."""
    size = rng.uniform((2.5, 2.2, 2.5), (7, 3.4, 9))
    pieces = [Piece((0.0, size[1] / 2, 0.0), size / 2, 0.0, BOX)]
    for _ in range(rng.integers(4, 13)):
        pieces += standing(rng, size)
    pieces += [hanging(rng, size) for _ in range(rng.integers(0, 6))]
    at, half, turns, shapes = zip(*pieces, strict=True)
    things = Things(tensor(at), tensor(half), tensor(turns), torch.tensor(shapes))
    position, axes = camera(rng, size)
    free = ~holds(things, position, 0.25)
    free[0] = True
    things = Things(*(values[free] for values in things))
    warmth = 1 + 0.25 * rng.uniform(-1, 1, (2, 1)) * np.array([1, 0, -1])
    return Room(
        things,
        paint(rng, len(things.turn) + 6),
        position,
        axes,
        focal=float(rng.uniform(0.6, 1.15)),
        lights=tensor(rng.uniform((-0.4, 0.6, -0.4), (0.4, 0.97, 0.4), (2, 3)) * size),
        powers=tensor(rng.uniform(0.3, 1.5, (2, 1)) * warmth),
        ambient=float(rng.uniform(0.15, 0.6)),
    )


class Piece(NamedTuple):
    """One of `Things`."""

    at: ArrayLike
    half: ArrayLike
    turn: float
    shape: int


def standing(rng: np.random.Generator, size: np.ndarray) -> list[Piece]:
    """A piece of furniture on the floor, and what lies on it."""
    half = rng.uniform((0.15, 0.15, 0.15), (1.0, 1.0, 0.5)) * rng.uniform(0.5, 1)
    turn = float(rng.integers(4) * np.pi / 2 + rng.normal() * rng.choice([0.02, 0.5]))
    free = np.maximum(size[[0, 2]] / 2 - half.max(), 0.01)
    place = free * rng.uniform(-1, 1, 2)
    if rng.random() < 0.7:  # along a wall
        axis = rng.integers(2)
        place[axis] = free[axis] * rng.choice([-1, 1])
    top = 2 * half[1]

    def on(dx: float, y: float, dz: float) -> list[float]:
        """A place by its distance from the piece's middle, along the piece's own axes."""
        cos, sin = math.cos(turn), math.sin(turn)
        return [place[0] + cos * dx + sin * dz, y, place[1] - sin * dx + cos * dz]

    if rng.random() < 0.35:  # a table or a chair: a top on legs
        thick, leg = rng.uniform((0.015, 0.015), (0.05, 0.04))
        pieces = [Piece(on(0.0, top - thick, 0.0), [half[0], thick, half[2]], turn, BOX)]
        for x, z in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
            foot = on(x * (half[0] - leg), top / 2 - thick, z * (half[2] - leg))
            pieces.append(Piece(foot, [leg, top / 2 - thick, leg], turn, BOX))
    else:
        shape = int(rng.choice([BOX, BOX, BOX, CYLINDER]))
        pieces = [Piece(on(0.0, half[1], 0.0), half, turn, shape)]
        if rng.random() < 0.3:  # a back, as a sofa's
            rise = rng.uniform(0.1, 0.4)
            pieces.append(Piece(on(0.0, top + rise, 0.0), [half[0], rise, 0.08], turn, BOX))
    for _ in range(rng.integers(0, 4)):
        small = rng.uniform(0.03, 0.18, 3)
        dx, dz = rng.uniform(-0.7, 0.7, 2) * half[[0, 2]]
        shape = int(rng.choice([BOX, BOX, CYLINDER, BALL]))
        pieces.append(Piece(on(dx, top + small[1], dz), small, float(rng.uniform(0, 3)), shape))
    return pieces


def hanging(rng: np.random.Generator, size: np.ndarray) -> Piece:
    """A shelf, a cupboard or a picture on a wall."""
    half = rng.uniform((0.1, 0.05, 0.02), (0.7, 0.6, 0.2))
    axis = int(rng.integers(2)) * 2  # the wall's normal: x or z
    at = rng.uniform(-0.4, 0.4, 3) * size
    at[1] = rng.uniform(0.4, 0.85) * size[1]
    at[axis] = (size[axis] / 2 - half[2]) * rng.choice([-1, 1])
    return Piece(at, half, math.pi / 2 if axis == 0 else 0.0, BOX)


def camera(
    rng: np.random.Generator, size: np.ndarray
) -> tuple[Float[Tensor, " 3"], Float[Tensor, "3 3"]]:
    """Position and axes (right, down, ahead) of a camera that is level or tilted a little down."""
    x, z = rng.uniform(0.1, 0.46, 2) * rng.choice([-1, 1], 2) * size[[0, 2]]
    position = np.array([x, rng.uniform(0.35, min(1.9, 0.8 * size[1])), z])
    # Away from the near wall, more or less.
    yaw = math.atan2(-x, -z) + rng.normal() * 0.6
    pitch, roll = rng.normal(-0.2, 0.22), rng.normal() * 0.05
    ahead = np.array([
        math.sin(yaw) * math.cos(pitch), math.sin(pitch), math.cos(yaw) * math.cos(pitch)
    ])  # fmt: skip
    right = np.array([math.cos(yaw), 0.0, -math.sin(yaw)])
    down = np.cross(right, ahead)
    down = down if down[1] < 0 else -down
    right, down = (
        math.cos(roll) * right + math.sin(roll) * down,
        -math.sin(roll) * right + math.cos(roll) * down,
    )
    return tensor(position), tensor(np.stack([right, down, ahead]))


def paint(rng: np.random.Generator, count: int) -> Paint:
    """Muted colours for most surfaces, few with strong patterns."""
    light = rng.uniform(0.1, 0.95, (count, 1, 1))
    tint = 1 + 0.5 * rng.normal(size=(count, 1, 3)) * rng.random((count, 1, 1)) ** 2
    contrast = 1 - 0.8 * rng.random((count, 1, 1)) ** 2.5
    second = np.concatenate([np.ones((count, 1, 3)), contrast * np.ones((count, 1, 3))], axis=1)
    colours = (light * tint * second).clip(0.02, 1)
    lengths = np.exp(rng.uniform(math.log(0.03), math.log(1.5), (count, 1, 1)))
    spread = rng.choice([0.05, 0.5, 1.0], (count, 1, 1), p=[0.4, 0.3, 0.3])  # planks, or clouds
    along = rng.normal(size=(count, 1, 3))
    # Planks and tiles lie along the axes.
    axis = np.eye(3)[rng.integers(3, size=(count, 1))]
    along = np.where(rng.random((count, 1, 1)) < 0.6, axis, along)
    waves = along + spread * rng.normal(size=(count, WAVES, 3))
    waves = waves * 2 * math.pi / lengths * rng.uniform(0.5, 2, (count, WAVES, 1))
    step = np.exp(rng.uniform(0, 3, count))
    return Paint(
        tensor(colours),
        tensor(waves),
        tensor(rng.uniform(0, 2 * math.pi, (count, WAVES))),
        tensor(step),
    )


def tensor(values: object) -> Float[Tensor, "*shape"]:
    """The arrays in float32."""
    return torch.from_numpy(np.asarray(values, np.float32))


def holds(things: Things, point: Float[Tensor, " 3"], margin: float) -> Bool[Tensor, " n"]:
    """The mask of things that contain a point, or come within the margin of it."""
    local, _ = into(things, point[None], point[None])
    return ((local[:, 0].abs() - 1) * things.half < margin).all(dim=1)


def into(
    things: Things, origin: Float[Tensor, "r 3"], ray: Float[Tensor, "r 3"]
) -> tuple[Float[Tensor, "n r 3"], Float[Tensor, "n r 3"]]:
    """Origins and directions of rays in the axes of each unit shape; distances along a ray, in
    lengths of its direction, do not change."""
    from_centre = origin - things.centre[:, None]
    turned = [turn(v, -things.turn) for v in (from_centre, ray.expand_as(from_centre))]
    return turned[0] / things.half[:, None], turned[1] / things.half[:, None]


def turn(v: Float[Tensor, "n r 3"], angle: Float[Tensor, " n"]) -> Float[Tensor, "n r 3"]:
    """Vectors rotated around the vertical axis."""
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    x, y, z = v.unbind(-1)
    return torch.stack([cos * x + sin * z, y, cos * z - sin * x], dim=-1)


def reach(
    things: Things, origin: Float[Tensor, "r 3"], ray: Float[Tensor, "r 3"]
) -> Float[Tensor, "n r"]:
    """Distance to each thing in lengths of the ray; infinite where it misses.

    A convex shape is entered when the last of its bounds is, and left at the first: three slabs
    for a box, one and a circle for a cylinder. The room is met where it is left.
    """
    o, d = into(things, origin, ray)
    d = torch.where(d.abs() < 1e-9, 1e-9, d)
    slabs = torch.stack([(-1 - o) / d, (1 - o) / d])
    enter, leave = slabs.amin(dim=0), slabs.amax(dim=0)
    room = leave[:1].amin(dim=2)
    shape = things.shape[:, None]
    for kind, axes in ((CYLINDER, [0, 2]), (BALL, [0, 1, 2])):
        a = d[..., axes].square().sum(dim=-1)
        b = (o[..., axes] * d[..., axes]).sum(dim=-1)
        root = b.square() - a * (o[..., axes].square().sum(dim=-1) - 1)
        half = root.clamp(min=0).sqrt()
        first = torch.where(root > 0, (-b - half) / a, torch.inf)[..., None]
        last = torch.where(root > 0, (-b + half) / a, -torch.inf)[..., None]
        bound = torch.zeros(3, dtype=torch.bool, device=d.device)
        bound[axes] = True
        round_ = bound & (shape == kind)[..., None]
        enter, leave = torch.where(round_, first, enter), torch.where(round_, last, leave)
    begins, ends = enter.amax(dim=2), leave.amin(dim=2)
    distance = torch.where((begins < ends) & (begins > NEAR), begins, torch.inf)
    return torch.cat([room, distance[1:]])


@torch.no_grad()
def render(
    room: Room, size: tuple[int, int], device: torch.device
) -> tuple[UInt8[np.ndarray, "h w 3"], Float32[np.ndarray, "h w"]]:
    """The picture, and z along the optical axis in metres."""
    height, width = size
    things = Things(*(values.to(device) for values in room.things))
    u = (torch.arange(width, device=device) + 0.5) / width - 0.5
    v = ((torch.arange(height, device=device) + 0.5) - height / 2) / width
    v, u = torch.meshgrid(v / room.focal, u / room.focal, indexing="ij")
    seen = torch.stack([u, v, torch.ones_like(u)], dim=-1).flatten(0, 1)
    camera_position, lights = room.camera_position.to(device), room.lights.to(device)
    ray = seen @ room.camera_axes.to(device)  # one unit ahead, so that distance is z
    depth, index = reach(things, camera_position.expand_as(ray), ray).min(dim=0)
    point = camera_position + depth[:, None] * ray
    local, normal = surface(things, index, point)
    # The room's six sides are painted each for itself.
    side = normal.abs().argmax(dim=1) * 2 + (normal.sum(dim=1) > 0)
    painted = torch.where(index == 0, len(things.turn) + side, index)
    colour = paint_colours(Paint(*(values.to(device) for values in room.paint)), painted, local)
    light = room.ambient * (0.8 + 0.2 * normal[:, 1:2]) * torch.ones_like(colour)
    for i, (at, power) in enumerate(zip(lights, room.powers.to(device), strict=True)):
        way = at - point
        distance = way.norm(dim=1, keepdim=True).clamp(min=0.3)
        facing = (way * normal).sum(dim=1, keepdim=True).clamp(min=0) / distance
        if i == 0:  # the first casts shadows
            between = reach(things, point + 2e-3 * normal, way)[1:] < 1
            facing = facing * ~between.any(dim=0)[:, None]
        light = light + facing * power * 4 / (1 + distance.square())
    radiance = colour * light
    exposed = 0.35 * radiance / radiance.mean().clamp(min=1e-3)
    image = (exposed / (1 + 0.4 * exposed)).clamp(0, 1) ** (1 / 2.2)
    image = (255 * image).round().to(torch.uint8).reshape(height, width, 3)
    return image.cpu().numpy(), depth.reshape(height, width).cpu().numpy()


def surface(
    things: Things, index: Int64[Tensor, " r"], point: Float[Tensor, "r 3"]
) -> tuple[Float[Tensor, "r 3"], Float[Tensor, "r 3"]]:
    """Each point in its thing's own axes, in metres, and the surface's normal there."""
    half, angle = things.half[index], things.turn[index]
    local = turn((point - things.centre[index])[:, None], -angle)[:, 0]
    unit = local / half
    x, y, z = unit.unbind(-1)
    flat = torch.zeros_like(unit).scatter(1, unit.abs().argmax(dim=1, keepdim=True), 1) * unit
    upright = torch.stack([x, torch.zeros_like(y), z], dim=1) / half
    cap = torch.stack([torch.zeros_like(x), y, torch.zeros_like(z)], dim=1)
    rim = (y.abs() > torch.hypot(x, z))[:, None]
    shape = things.shape[index][:, None]
    normal = torch.where(shape == CYLINDER, torch.where(rim, cap, upright), flat)
    normal = torch.where(shape == BALL, unit / half, normal)
    normal = torch.where((index == 0)[:, None], -normal, normal)
    normal = turn(normal[:, None], angle)[:, 0]
    return local, normal / normal.norm(dim=1, keepdim=True).clamp(min=1e-9)


def paint_colours(
    paint: Paint, index: Int64[Tensor, " r"], local: Float[Tensor, "r 3"]
) -> Float[Tensor, "r 3"]:
    """Colours of paints, given by index, at points in the objects' own axes."""
    waves = (paint.waves[index] * local[:, None]).sum(dim=2) + paint.phases[index]
    share = (paint.step[index] * waves.sin().mean(dim=1)).sigmoid()[:, None]
    first, second = paint.colours[index].unbind(1)
    return first * share + second * (1 - share)
