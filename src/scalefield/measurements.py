"""Measurements of every kind: what was measured at which pixels of a photograph, as functions of
depth.

Every kind is a function of the log-depths of a few pixels, of their rays and of the direction down.
`rows` are its values in logarithms of metres, or relative deviations that are zero; the field is
conditioned on them (`scalefield.field.survey`) and `Recovery.measure` reads them.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from scalefield.errors import FileError, InputError, counted, did_you_mean, one_line
from scalefield.io import read_bytes
from scalefield.io.anchor_tables import TableError, decode_text
from scalefield.io.lengths import LENGTH_LIMITS_M
from scalefield.io.measurement_tables import parse_measurement_table

Number: TypeAlias = int | float
Pixel: TypeAlias = Sequence[Number]
"""(u, v): pixels to the right and downwards, centres at integers."""
Orientation = Literal["free", "level", "upright"]
Statistic = Literal["nearest", "mean"]

RELATIVE_STD = 0.01
"""Standard deviation of a measurement without its own, relative to its value."""
END_STD_PX = 0.4
"""Standard deviation of each end of a length in pixels, as a hand marks it."""
NEAREST_M = 0.01
"""No surface in a photograph is nearer than this."""
FOOTPRINT_PIXELS = 8
"""Rows and columns of the pixels that stand for a sensor's footprint."""
SOFTNESS = 0.02
"""Difference in log-distance within which pixels share the nearest distance of a footprint."""
LOW_HEIGHT = 0.02
"""Heights below this share of the distance are extended linearly instead of logarithmically, so
that a height may start with the wrong sign."""


class View(NamedTuple):
    """What measurements are functions of, at m pixels; axes before them are several at once."""

    log_depth: Float[Tensor, "*b m"]
    rays: Float[Tensor, "*b m 3"]
    """(x/z, y/z, 1) of each pixel's ray."""
    down: Float[Tensor, "*b 3"]
    """Unit vector towards the ground, in the camera's frame."""

    @property
    def points(self) -> Float[Tensor, "*b m 3"]:
        """The pixels' points in the camera's frame."""
        return self.log_depth.exp()[..., None] * self.rays

    @property
    def log_distance(self) -> Float[Tensor, "*b m"]:
        """Logarithm of the distance along the ray."""
        return self.log_depth + self.rays.norm(dim=-1).log()


@dataclass(frozen=True)
class Measurement:
    """What was measured at pixels."""

    kind: ClassVar[str]
    """Name in tables and messages."""
    bound: ClassVar[bool] = False
    """Whether `rows` only have to be above their targets."""
    needs_camera: ClassVar[bool] = True
    """Whether the value depends on the camera."""
    reads: ClassVar[bool] = True
    """Whether a value can be read from a depth map."""
    degree: ClassVar[int] = 1
    """Power of metres in the value."""

    @property
    def pixels(self) -> tuple[Pixel, ...]:
        """The pixels that it depends on."""
        return self.marked

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """The value, in metres to the power `degree`."""
        raise NotImplementedError

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """What is compared with `targets`; by default the logarithm of `quantity`."""
        return self.quantity(view).log()[..., None]

    def targets(self) -> tuple[float, ...]:
        """The measured values of `rows`; one for all of them if they are equal."""
        return (math.log(vars(self).get("value_m", 1.0)),)

    def std(self) -> float:
        """Standard deviation of `rows`, or softness of a bound."""
        given = vars(self)
        if "sigma" in given:
            return given["sigma"]
        sigma_m = given.get("sigma_m")
        return self.degree * RELATIVE_STD if sigma_m is None else sigma_m / given["value_m"]

    @property
    def option(self) -> str:
        """What `rows` depends on besides the view."""
        return ""

    @property
    def name(self) -> str:
        """What `measurement` takes as the kind."""
        return self.kind

    @property
    def marked(self) -> tuple[Pixel, ...]:
        """The pixels that the user gave."""
        given = vars(self)
        single = [(given["u"], given["v"])] if "u" in given else []
        single += [given[name] for name in PIXEL_FIELDS if name in given]
        return (*single, *(p for name in LIST_FIELDS for p in given.get(name, ())))

    def as_dict(self) -> dict[str, Any]:
        """The measurement as JSON values, of which `measurement` makes it again."""
        given = {n: x for n, x in vars(self).items() if n in NUMBERS and n not in "uv"}
        given = {n: x for n, x in given.items() if x is not None}
        return {"kind": self.name, "pixels": [list(p) for p in self.marked], **given}

    @property
    def is_question(self) -> bool:
        """Whether the value is left open, to be read by `Recovery.measure`."""
        return "value_m" in vars(self) and vars(self)["value_m"] is None

    def __str__(self) -> str:
        ends = " – ".join(f"({u:g}, {v:g})" for u, v in self.marked[:3])
        more = f" and {len(self.marked) - 3} more" if len(self.marked) > 3 else ""
        value = vars(self).get("value_m")
        unit = "m²" if self.degree == 2 else "m"
        return f"{self.name} {ends}{more}" + ("" if value is None else f", {value:.4g} {unit}")

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if name in PIXEL_FIELDS:
                vars(self)[name] = _pixel(self.kind, value)
            elif name in LIST_FIELDS:
                vars(self)[name] = tuple(_pixel(self.kind, p) for p in value)
            elif name in NUMBERS and value is not None:
                low, high = NUMBERS[name]
                if not (_is_number(value) and low <= value <= high):
                    wanted = f"{self.kind}: {name} must be {low:g} to {high:g}"
                    raise InputError(f"{wanted}, found {value!r}")
                vars(self)[name] = float(value)
        self.check()

    def check(self) -> None:
        """Refuse what no depth could fulfil."""
        cells = [(math.floor(u + 0.5), math.floor(v + 0.5)) for u, v in self.pixels]
        if len(cells) > 1 and len(set(cells)) < len(cells):
            u, v = next(cell for cell in cells if cells.count(cell) > 1)
            both = "both ends lie" if len(cells) == 2 else "two of its points lie"
            raise InputError(f"{self}: {both} on one pixel, u={u} v={v}")

    def check_view(self, rays: Float64[np.ndarray, "m 3"]) -> None:
        """Refuse what no depth could fulfil for these rays of the pixels."""


NUMBERS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("value_m", "sigma_m", "low_m", "high_m"), LENGTH_LIMITS_M),
    **dict.fromkeys(("u", "v"), (-1e9, 1e9)),
    "sigma": (1e-6, 10.0),
    "margin": (0.0, 1e3),
    "pitch_deg": (-90.0, 90.0),
    "roll_deg": (-180.0, 180.0),
    "sigma_deg": (1e-3, 90.0),
}
"""Limits of the fields that hold numbers."""
PIXEL_FIELDS = ("start", "end", "point", "near", "far", "corner", "opposite")
"""Fields that hold one pixel."""
LIST_FIELDS = ("base", "points")
"""Fields that hold several."""


@dataclass(frozen=True)
class AtPixel(Measurement):
    """A distance at one pixel."""

    u: Number
    v: Number
    value_m: Number | None = None
    sigma_m: Number | None = None


@dataclass(frozen=True)
class Depth(AtPixel):
    """z along the optical axis at a pixel, as an anchor has it."""

    kind = "depth"
    needs_camera = False

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """The depth."""
        return view.log_depth[..., 0].exp()


@dataclass(frozen=True)
class Slant(AtPixel):
    """Distance from the camera along the ray, as a laser meter or a tape has it."""

    kind = "slant"

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """The distance."""
        return view.log_distance[..., 0].exp()


@dataclass(frozen=True)
class Length(Measurement):
    """Straight distance between the points of two pixels."""

    start: Pixel
    end: Pixel
    value_m: Number | None = None
    sigma_m: Number | None = None

    kind = "length"

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """The distance between the points."""
        return view.points.diff(dim=-2).norm(dim=-1)[..., 0]

    def std(self) -> float:
        """Standard deviation of the logarithm; that of the ends in the image is added."""
        return math.hypot(super().std(), _end_std(self.pixels))

    def check_view(self, rays: Float64[np.ndarray, "m 3"]) -> None:
        """Refuse a length between points that would be too near to be seen."""
        _check_nearness(self, rays)


@dataclass(frozen=True)
class KnownObject(Length):
    """A length of an object of known size: `KnownObject(start, end, name="door")`."""

    value_m: Number | None = dataclasses.field(init=False)
    sigma_m: Number | None = dataclasses.field(init=False)
    object: str = dataclasses.field(default="", kw_only=True)

    kind = "object"

    def __post_init__(self) -> None:
        if self.object not in OBJECTS:
            hint = did_you_mean(self.object, OBJECTS) or f"; there are {', '.join(OBJECTS)}"
            raise InputError(f"no object {self.object!r}{hint}")
        for name, value in zip(("value_m", "sigma_m"), OBJECTS[self.object], strict=True):
            vars(self)[name] = value
        super().__post_init__()

    @property
    def name(self) -> str:
        """The object."""
        return self.object

    def as_dict(self) -> dict[str, Any]:
        """The object and the ends."""
        return {"kind": self.object, "pixels": [list(p) for p in self.pixels]}


OBJECTS = {
    "door": (2.0, 0.06),
    "door width": (0.8, 0.08),
    "table height": (0.74, 0.02),
    "chair seat height": (0.45, 0.02),
    "kitchen counter height": (0.9, 0.03),
    "stair riser": (0.175, 0.012),
    "a4 long": (0.297, 0.001),
    "a4 short": (0.21, 0.001),
    "a3 long": (0.42, 0.001),
    "a3 short": (0.297, 0.001),
    "us letter long": (0.2794, 0.001),
    "us letter short": (0.2159, 0.001),
    "credit card long": (0.0856, 0.0003),
    "credit card short": (0.05398, 0.0003),
    "brick length": (0.24, 0.03),
    "bottle 1.5 l": (0.32, 0.02),
    "can 0.33 l": (0.115, 0.002),
    "euro pallet long": (1.2, 0.005),
    "euro pallet short": (0.8, 0.005),
    "car length": (4.4, 0.4),
    "car height": (1.5, 0.12),
    "person": (1.71, 0.1),
}
"""Height or named side of objects of known size in metres, with its standard deviation. Paper and
cards are ISO 216, ANSI and ISO/IEC 7810; pallets EN 13698; the others usual sizes."""


@dataclass(frozen=True)
class ThroughPixels(Measurement):
    """A value that depends on a list of pixels."""

    points: Sequence[Pixel]
    value_m: Number | None = None
    sigma_m: Number | None = None

    least: ClassVar[int]
    """Pixels that it needs."""

    def check(self) -> None:
        """Refuse too few pixels."""
        _check_count(self, self.pixels, self.least)
        super().check()


@dataclass(frozen=True)
class Path(ThroughPixels):
    """Length of the polygon through pixels, in their order."""

    kind = "path"
    least = 2

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """Sum of the distances between the points."""
        return view.points.diff(dim=-2).norm(dim=-1).sum(dim=-1)


@dataclass(frozen=True)
class Area(ThroughPixels):
    """Area of the polygon whose corners are pixels; its value is in square metres."""

    kind = "area"
    least = 3
    degree = 2

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """Half the norm of Σ Xᵢ × Xᵢ₊₁: the area of a plane polygon."""
        points = view.points - view.points[..., :1, :]
        crossed = torch.linalg.cross(points, points.roll(-1, dims=-2), dim=-1)
        return 0.5 * crossed.sum(dim=-2).norm(dim=-1)


@dataclass(frozen=True)
class CameraHeight(ThroughPixels):
    """Height of the camera above the floor, of which three pixels or more are given. That they lie
    on one plane is a `Plane`."""

    kind = "camera_height"
    least = 3

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """Distance of the plane n·X = 1 from the camera: 1 / ‖n‖."""
        return 1 / plane_normal(view.points).norm(dim=-1)

    def check_view(self, rays: Float64[np.ndarray, "m 3"]) -> None:
        """Refuse pixels on one line."""
        _check_spread(self, rays)


@dataclass(frozen=True)
class Height(Measurement):
    """Height of a point above the level of one pixel, or above the plane of three or more."""

    point: Pixel
    base: Sequence[Pixel]
    value_m: Number | None = None
    sigma_m: Number | None = None

    kind = "height"

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """Distance from the level or the plane; negative on the other side."""
        points = view.points
        if len(self.base) == 1:
            return ((points[..., 1, :] - points[..., 0, :]) * view.down).sum(dim=-1)
        normal = plane_normal(points[..., 1:, :])
        return (1 - (points[..., 0, :] * normal).sum(dim=-1)) / normal.norm(dim=-1)

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """The logarithm, extended linearly below `LOW_HEIGHT` of the distance."""
        distance = view.log_distance.mean(dim=-1)
        share = self.quantity(view) / distance.exp()
        linear = math.log(LOW_HEIGHT) + share / LOW_HEIGHT - 1
        low = share < LOW_HEIGHT
        return (distance + torch.where(low, linear, share.where(~low, 1.0).log()))[..., None]

    def check(self) -> None:
        """Refuse two pixels, which are neither a level nor a plane."""
        if len(self.base) not in (1, *range(3, 1000)):
            found = len(self.base)
            raise InputError(
                f"{self.kind}: wanted 1 pixel of a level, or 3 of a plane, found {found}"
            )
        super().check()

    def check_view(self, rays: Float64[np.ndarray, "m 3"]) -> None:
        """Refuse a plane through pixels on one line."""
        if len(self.base) > 1:
            _check_spread(self, rays[1:])


@dataclass(frozen=True)
class Plane(Measurement):
    """Pixels on one plane, which may be level (a floor, a table) or upright (a wall).

    1/z is linear in the ray on every plane. The rows are the part of relative 1/z that no plane
    explains; `sigma` is their standard deviation, the flatness relative to depth.
    """

    points: Sequence[Pixel]
    orientation: Orientation = "free"
    sigma: Number = RELATIVE_STD

    kind = "plane"
    reads = False
    degree = 0

    @property
    def option(self) -> str:
        """The orientation."""
        return self.orientation

    @property
    def name(self) -> str:
        """The orientation, or "plane"."""
        return self.kind if self.orientation == "free" else self.orientation

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """Bᵀ(q − Rn), q relative 1/z, R the rays within the planes of this orientation, n the
        best of them and B an orthonormal basis of what R does not reach."""
        inverse = (-view.log_depth).exp()
        q = inverse / inverse.mean(dim=-1, keepdim=True)
        R = view.rays
        if self.orientation != "free":
            downward = (R * view.down[..., None, :]).sum(dim=-1, keepdim=True)
            R = downward
            if self.orientation == "upright":
                # Of the plane's normal, the part along `down` is zero.
                sideways, forward = _level_axes(view.down)
                R = torch.stack(
                    [(view.rays * a[..., None, :]).sum(-1) for a in (sideways, forward)], -1
                )
        Q = torch.linalg.qr(R.detach(), mode="complete").Q
        n = torch.linalg.lstsq(R.detach(), q.detach()[..., None]).solution
        rest = q[..., None] - R @ n
        return (Q[..., R.shape[-1] :].mT @ rest)[..., 0]

    def check(self) -> None:
        """Refuse pixels that lie on a plane in any case."""
        if self.orientation not in (choices := ("free", "level", "upright")):
            raise InputError(f"plane: orientation is one of {choices}, found {self.orientation!r}")
        least = {"free": 4, "level": 2, "upright": 3}[self.orientation]
        _check_count(self, self.pixels, least)
        super().check()

    def check_view(self, rays: Float64[np.ndarray, "m 3"]) -> None:
        """Refuse pixels on one line, which are on many planes."""
        if self.orientation == "free":
            _check_spread(self, rays)


@dataclass(frozen=True)
class EqualDepth(Measurement):
    """Pixels of one depth; `sigma` is the standard deviation relative to it."""

    points: Sequence[Pixel]
    sigma: Number = RELATIVE_STD

    kind = "equal"
    needs_camera = False
    reads = False
    degree = 0

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """Orthonormal contrasts of log-depth."""
        ones = torch.ones_like(view.log_depth[..., None]).detach()
        basis = torch.linalg.qr(ones, mode="complete").Q[..., 1:]
        return (basis.mT @ view.log_depth[..., None])[..., 0]

    def check(self) -> None:
        """Refuse a single pixel."""
        _check_count(self, self.pixels, 2)
        super().check()


@dataclass(frozen=True)
class Order(Measurement):
    """One pixel is nearer than another, by a factor of 1 + `margin` at least."""

    near: Pixel
    far: Pixel
    margin: Number = 0.0
    sigma: Number = 2 * RELATIVE_STD

    kind = "order"
    bound = True
    needs_camera = False
    reads = False
    degree = 0

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """Difference of the log-depths."""
        return view.log_depth.diff(dim=-1)

    def targets(self) -> tuple[float, ...]:
        """The margin."""
        return (math.log1p(self.margin),)


@dataclass(frozen=True)
class Interval(Measurement):
    """The depth of a pixel lies between two values; `sigma` is the softness relative to them."""

    u: Number
    v: Number
    low_m: Number
    high_m: Number
    sigma: Number = 2 * RELATIVE_STD

    kind = "interval"
    bound = True
    needs_camera = False
    reads = False

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """Log-depth, and minus log-depth."""
        return torch.cat([view.log_depth, -view.log_depth], dim=-1)

    def targets(self) -> tuple[float, ...]:
        """Of both rows."""
        return math.log(self.low_m), -math.log(self.high_m)

    def check(self) -> None:
        """Refuse an empty interval."""
        if not self.low_m < self.high_m:
            raise InputError(
                f"interval: wanted low_m below high_m, found {self.low_m:g} and {self.high_m:g}"
            )


@dataclass(frozen=True)
class Footprint(Measurement):
    """What a sensor with a wide beam reports: the nearest or the mean distance in a rectangle of
    pixels (an ultrasonic sensor, a zone of a time-of-flight sensor, radar)."""

    corner: Pixel
    opposite: Pixel
    value_m: Number | None = None
    sigma_m: Number | None = None
    statistic: Statistic = "nearest"

    kind = "footprint"

    @property
    def pixels(self) -> tuple[Pixel, ...]:
        """A grid of pixels over the rectangle."""
        axes = []
        for a, b in zip(self.corner, self.opposite, strict=True):
            first, last = sorted((math.floor(a + 0.5), math.floor(b + 0.5)))
            count = min(FOOTPRINT_PIXELS, last - first + 1)
            axes.append(np.linspace(first, last, count).round().tolist())
        return tuple((u, v) for v in axes[1] for u in axes[0])

    @property
    def option(self) -> str:
        """The statistic."""
        return self.statistic

    @property
    def name(self) -> str:
        """The statistic."""
        return self.statistic

    def quantity(self, view: View) -> Float[Tensor, "*b"]:
        """The mean distance, or a mean of those within `SOFTNESS` of the nearest."""
        distance = view.log_distance
        if self.statistic == "mean":
            return distance.exp().mean(dim=-1)
        weights = (-distance.detach() / SOFTNESS).softmax(dim=-1)
        return (weights * distance).sum(dim=-1).exp()

    def check(self) -> None:
        """Refuse another statistic."""
        if self.statistic not in ("nearest", "mean"):
            raise InputError(f"footprint: nearest or mean is wanted, found {self.statistic!r}")


@dataclass(frozen=True)
class Tilt(Measurement):
    """How far the camera looks down, and how far it is rolled clockwise, in degrees."""

    pitch_deg: Number
    roll_deg: Number = 0.0
    sigma_deg: Number = 1.0

    kind = "tilt"
    reads = False
    degree = 0

    def rows(self, view: View) -> Float[Tensor, "*b r"]:
        """Pitch and roll in radians."""
        x, y, z = view.down.unbind(dim=-1)
        return torch.stack([torch.atan2(z, torch.hypot(x, y)), torch.atan2(x, y)], dim=-1)

    def targets(self) -> tuple[float, ...]:
        """Both angles."""
        return math.radians(self.pitch_deg), math.radians(self.roll_deg)

    def std(self) -> float:
        """Of both angles."""
        return math.radians(self.sigma_deg)


KINDS: dict[str, tuple[type[Measurement], int | None, dict[str, Any]]] = {
    "depth": (Depth, 1, {}),
    "slant": (Slant, 1, {}),
    "length": (Length, 2, {}),
    "path": (Path, None, {}),
    "area": (Area, None, {}),
    "height": (Height, None, {}),
    "camera_height": (CameraHeight, None, {}),
    "plane": (Plane, None, {}),
    "level": (Plane, None, {"orientation": "level"}),
    "upright": (Plane, None, {"orientation": "upright"}),
    "equal": (EqualDepth, None, {}),
    "order": (Order, 2, {}),
    "interval": (Interval, 1, {}),
    "nearest": (Footprint, 2, {}),
    "mean": (Footprint, 2, {"statistic": "mean"}),
    "tilt": (Tilt, 0, {}),
    **{name: (KnownObject, 2, {"object": name}) for name in OBJECTS},
}
"""Class, number of pixels (None for any) and options of each kind; objects are kinds too."""
ALIASES = {"floor": "level", "table": "level", "wall": "upright", "slant distance": "slant"}


def measurement(kind: str, pixels: Sequence[Pixel], **values: Any) -> Measurement:
    """The measurement of a kind by name at pixels, with its values by the names of its fields.

    `sigma_m` is refused where a deviation is relative, and None is no value.
    """
    kind = ALIASES.get(kind, kind)
    values = {name: x for name, x in values.items() if x is not None}
    if kind not in KINDS:
        names = (*KINDS, *ALIASES)
        hint = did_you_mean(kind, names) or f"; there are {', '.join(names)}"
        raise InputError(f"no kind of measurement {kind!r}{hint}")
    make, count, options = KINDS[kind]
    if count is not None and len(pixels) != count:
        raise InputError(f"{kind}: wanted {counted(count, 'pixel')}, found {len(pixels)}")
    known = {f.name for f in dataclasses.fields(make) if f.init}
    if unknown := sorted(values.keys() - known):
        raise InputError(f"{kind} has no {', '.join(unknown)}")
    if make is Height:
        where: tuple[Any, ...] = (pixels[0], tuple(pixels[1:])) if pixels else ()
    elif count == 1:
        where = _pixel(kind, pixels[0])
    else:
        where = tuple(pixels) if count is not None else (tuple(pixels),)
    try:
        return make(*where, **{**options, **values})
    except TypeError as e:
        raise InputError(f"{kind}: {one_line(e).partition(') ')[2] or e}") from None


MeasurementsLike: TypeAlias = Any
"""An argument of `measurements`: measurements, dicts of `Measurement.as_dict`, a file, or None."""


def measurements(values: MeasurementsLike) -> tuple[Measurement, ...]:
    """Measurements from what holds them: a list, with JSON values among it, or a CSV file with the
    columns kind, value, sigma and the positions u, v, u2, v2, …"""
    if values is None:
        return ()
    if isinstance(values, (str, pathlib.Path)):
        return read_measurements(pathlib.Path(values))
    if isinstance(values, (Measurement, Mapping)):
        values = [values]
    found: list[Measurement] = []
    for each in values:
        value = each
        if isinstance(value, Mapping):
            given = {str(name): x for name, x in value.items()}
            kind, pixels = given.pop("kind", None), given.pop("pixels", ())
            if not isinstance(kind, str) or not isinstance(pixels, (list, tuple)):
                raise InputError('a measurement in JSON wants "kind" and a list of "pixels"')
            value = measurement(kind, pixels, **given)
        if not isinstance(value, Measurement):
            shown = one_line(repr(value), 60)
            raise InputError(
                f"wanted a measurement such as Length(start, end, 0.74), found {shown}"
            )
        found.append(value)
    return tuple(found)


def read_measurements(path: pathlib.Path) -> tuple[Measurement, ...]:
    """The measurements of a CSV file; rows without a value are questions for `Recovery.measure`."""
    found = []
    try:
        for row in parse_measurement_table(decode_text(read_bytes(path))):
            try:
                found.append(measurement(row.kind, row.pixels, **row.values))
            except InputError as e:
                raise FileError(path, str(e), line=row.line) from None
    except TableError as e:
        raise FileError(path, str(e)) from None
    return tuple(found)


def down_vector(pitch: Float[Tensor, "*b"], roll: Float[Tensor, "*b"]) -> Float[Tensor, "*b 3"]:
    """Unit vector towards the ground in the frame of a camera of this pitch and roll."""
    level = pitch.cos()
    return torch.stack([roll.sin() * level, roll.cos() * level, pitch.sin()], dim=-1)


def plane_normal(points: Float[Tensor, "*b m 3"]) -> Float[Tensor, "*b 3"]:
    """n of the plane n·X = 1 with the least squares of n·X − 1: of relative deviations."""
    gram = points.mT @ points
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None]
    eye = torch.eye(3, dtype=points.dtype, device=points.device)
    return torch.linalg.solve(gram + 1e-12 * trace * eye, points.sum(dim=-2))


def _level_axes(down: Float[Tensor, "*b 3"]) -> tuple[Tensor, Tensor]:
    """Two unit vectors orthogonal to `down` and to each other."""
    ahead = torch.zeros_like(down)
    ahead[..., 2] = 1
    sideways = torch.nn.functional.normalize(torch.linalg.cross(down, ahead, dim=-1), dim=-1)
    return sideways, torch.linalg.cross(sideways, down, dim=-1)


def _pixel(kind: str, value: Any) -> tuple[float, float]:
    try:
        u, v = (float(x) for x in value)
    except (TypeError, ValueError):
        raise InputError(f"{kind}: wanted a pixel (u, v), found {value!r}") from None
    if not (math.isfinite(u) and math.isfinite(v)):
        raise InputError(f"{kind}: wanted a finite pixel (u, v), found {value!r}")
    return u, v


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _check_count(measured: Measurement, pixels: Sequence[Pixel], least: int) -> None:
    if len(pixels) < least:
        raise InputError(f"{measured.kind}: {least} pixels or more are wanted, found {len(pixels)}")


def _end_std(pixels: Sequence[Pixel]) -> float:
    """What the ends' positions in the image add to the standard deviation of a log-length."""
    (u0, v0), (u1, v1) = pixels
    return math.sqrt(2) * END_STD_PX / math.hypot(u1 - u0, v1 - v0)


def _check_nearness(measured: Measurement, rays: Float64[np.ndarray, "m 3"]) -> None:
    a, b = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    angle = math.atan2(float(np.linalg.norm(np.cross(a, b))), float(a @ b))
    value = vars(measured)["value_m"]
    if value is not None and value < NEAREST_M * math.sin(min(angle, math.pi / 2)):
        raise InputError(
            f"{measured}: the camera sees no length so short there; at {100 * NEAREST_M:g} cm from "
            f"the camera it would be {NEAREST_M * math.sin(angle):.2g} m"
        )


def _check_spread(measured: Measurement, rays: Float64[np.ndarray, "m 3"]) -> None:
    """Refuse pixels on one line: no three of them span a triangle of the image."""
    xy = rays[:, :2]
    extent = float(np.ptp(xy, axis=0).max())
    triangles = (np.linalg.det(rays[list(c)]) for c in combinations(range(min(len(xy), 12)), 3))
    if max(abs(t) for t in triangles) < 1e-3 * extent**2:
        raise InputError(f"{measured}: the pixels lie on one line, which many planes contain")


class Reading(NamedTuple):
    """A value read from a depth map, with its uncertainty."""

    value: float
    """In metres, in square metres for an area."""
    low: float
    """Lower end of the interval; NaN if the method has no uncertainty."""
    high: float
    draws: Float64[np.ndarray, " d"]
    """The value in draws from the posterior, the same ones for all readings of one call: their
    sums and ratios have the right uncertainty too."""


def group_alike(measured: Sequence[Measurement]) -> list[list[int]]:
    """Indices of measurements whose rows are one function of as many pixels."""
    groups: dict[tuple, list[int]] = {}
    for i, m in enumerate(measured):
        groups.setdefault((type(m), len(m.pixels), m.option), []).append(i)
    return list(groups.values())
