"""One picture of a recovery: photograph with anchors, metric depth, uncertainty, log-scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from scalefield.anchors import Anchors
from scalefield.errors import counted
from scalefield.recovery import Recovery

PAPER, INK, SOFT_INK, HOLE = (250, 249, 246), (32, 35, 42), (105, 110, 120), (214, 212, 206)
PANEL_AREA = 640 * 480
MAX_LABELS = 16
"""Largest number of anchors that get a label; more labels would hide the picture."""
MAX_DOTS = 300
"""Largest number of anchors that are all drawn; of more, one in each square of `DOT_CELL_PX`."""
DOT_CELL_PX = 20
"""Side of these squares, in pixels of the panel."""


def colour_table(stops: Float[np.ndarray, "n 3"]) -> UInt8[np.ndarray, "256 3"]:
    """256 sRGB colours through OKLCh stops (lightness, chroma, hue in degrees), even in Oklab."""
    lightness, chroma, hue = stops.T
    angle = np.deg2rad(hue)
    lab = np.stack([lightness, chroma * np.cos(angle), chroma * np.sin(angle)])
    at = np.linspace(0, len(stops) - 1, 256)
    lab = np.stack([np.interp(at, np.arange(len(stops)), channel) for channel in lab])
    # Oklab to linear sRGB (Ottosson 2020), then the sRGB transfer curve.
    to_cone = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728],
               [1, -0.0894841775, -1.2914855480]]  # fmt: skip
    to_rgb = [[4.0767416621, -3.3077115913, 0.2309699292],
              [-1.2684380046, 2.6097574011, -0.3413193965],
              [-0.0041960863, -0.7034186147, 1.7076147010]]  # fmt: skip
    linear = np.clip(to_rgb @ (to_cone @ lab) ** 3, 0, 1).T
    srgb = np.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * srgb).astype(np.uint8)


# Lightness falls evenly with distance: equal steps look equal, in grey print and to the colour
# blind too.
NEAR_TO_FAR = colour_table(
    np.array([
        (0.97, 0.07, 104), (0.87, 0.14, 84), (0.77, 0.17, 58), (0.67, 0.19, 32),
        (0.57, 0.20, 4), (0.47, 0.18, 330), (0.37, 0.16, 297), (0.27, 0.12, 275),
    ])
)  # fmt: skip
# Light in the middle, where the factor is one; blue below, brown above.
SMALL_TO_LARGE = colour_table(
    np.array([
        (0.36, 0.11, 255), (0.55, 0.12, 245), (0.76, 0.07, 235), (0.965, 0.003, 90),
        (0.78, 0.09, 55), (0.61, 0.15, 40), (0.40, 0.13, 28),
    ])
)  # fmt: skip
# From paper to ink, in a hue that the other two tables do not have.
CERTAIN_TO_UNCERTAIN = colour_table(
    np.array([
        (0.97, 0.02, 180), (0.88, 0.07, 180), (0.77, 0.10, 182), (0.65, 0.11, 188),
        (0.53, 0.10, 198), (0.41, 0.08, 212), (0.29, 0.06, 235), (0.20, 0.04, 260),
    ])
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scale:
    """A map from values to colours, with the title of its colour bar."""

    table: UInt8[np.ndarray, "256 3"]
    low: float
    high: float
    logarithmic: bool = False
    label: Callable[[float], str] = "{:g}".format

    def position(self, values: np.ndarray) -> np.ndarray:
        """Values relative to `low` (0) and `high` (1); may exceed that range."""
        low, high = self.low, self.high
        if self.logarithmic:
            values, low, high = np.log(values), math.log(low), math.log(high)
        return (values - low) / (high - low)

    def colours(self, values: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape 3"]:
        """sRGB colours; NaN is grey."""
        finite = np.isfinite(values)
        position = self.position(np.where(finite, values, self.low))
        index = np.clip(np.round(255 * position), 0, 255).astype(np.uint8)
        colours = self.table[index]
        colours[~finite] = HOLE
        return colours

    def ticks(self, most: int) -> list[float]:
        """Round numbers inside the range, at most `most` of them."""
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for mantissas in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
                ticks = [m * 10.0**e for e in range(first, last + 1) for m in mantissas]
                ticks = [t for t in ticks if self.low <= t <= self.high]
                if 2 <= len(ticks) <= most:
                    return [float(f"{t:.6g}") for t in ticks]
            inside = [e for e in range(first, last + 1) if self.low <= 10.0**e <= self.high]
            if len(inside) >= 2:  # too many decades for a tick in each
                return [10.0**e for e in inside[:: -(-(len(inside) - 1) // (most - 1))]]
        return round_steps(self.low, self.high, most)


def round_steps(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between `low` and `high`, at most `most`."""
    power = math.floor(math.log10((high - low) / most))
    for step in (m * 10.0**e for e in range(power, power + 3) for m in (1, 2, 5)):
        count = math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1
        if count <= most:
            start = math.ceil(low / step - 1e-9)
            return [float(f"{(start + i) * step:.6g}") for i in range(count)]
    return []


ERROR_PANEL, LARGEST_ERROR = 460, 0.3
"""Width of a panel of `draw_errors`, and the relative error at the end of its colours."""
NUMBERED_SIDE = 1600
"""Longest side of `with_numbers`."""


def depth_scale(values: np.ndarray, unit: str = "") -> Scale:
    """A scale for depths: their 0.5th to 99.5th percentile, logarithmic from a ratio of 8 on."""
    finite = values[np.isfinite(values)]
    low, high = (float(v) for v in np.percentile(finite, (0.5, 99.5)))
    if high < 1.02 * low:  # a flat map still needs a scale around it
        low, high = low / 1.1, high * 1.1
    return Scale(NEAR_TO_FAR, low, high, logarithmic=high > 8 * low, label=lambda v: f"{v:g}{unit}")


def deviation_scale(std_log: np.ndarray) -> Scale:
    """A scale for standard deviations of log-depth, labelled in per cent or, where they are large,
    as factors."""
    finite = std_log[np.isfinite(std_log)]
    high = max(float(np.percentile(finite, 99.5)) if finite.size else 0.0, 0.01)
    if high <= math.log(3):
        per_cent = 100 * math.expm1(high)
        return Scale(CERTAIN_TO_UNCERTAIN, 0.0, per_cent, label=lambda v: f"±{v:g} %")
    return Scale(CERTAIN_TO_UNCERTAIN, 1.0, math.exp(min(high, 80)), True, label="{:g}x".format)


def deviation_colours(std_log: np.ndarray, scale: Scale) -> UInt8[np.ndarray, "h w 3"]:
    """The colours of standard deviations of log-depth on a `deviation_scale`."""
    bounded = np.minimum(std_log, 80.0)  # e^80 is still a number in float32
    return scale.colours(np.exp(bounded) if scale.logarithmic else 100 * np.expm1(bounded))


def draw_preview(
    recovery: Recovery,
    anchors: Anchors,
    image: UInt8[np.ndarray, "h w 3"] | None = None,
    notes: Sequence[str] = (),
) -> Image.Image:
    """Panels on light paper: the photograph (when there is one), D̂, std_log, D_MDE, ℓ and notes.

    Without std_log there are four panels and no notes. D_MDE has the colours of D̂ divided by the
    median scale, so what differs between the two panels is what the log-scale field did. ℓ is drawn
    around its median, as a factor.
    """
    maps = recovery.numpy()
    depth_m, log_scale = maps.depth_m.astype(np.float64), maps.log_scale.astype(np.float64)
    mde_depth = depth_m / np.exp(log_scale)
    middle = float(np.nanmedian(log_scale))
    metres = depth_scale(depth_m, " m")
    low, high = (limit / math.exp(middle) for limit in (metres.low, metres.high))
    relative = Scale(NEAR_TO_FAR, low, high, metres.logarithmic)
    reach = max(float(np.nanpercentile(np.abs(log_scale - middle), 99.5)), 0.02)
    factor = Scale(SMALL_TO_LARGE, math.exp(-reach), math.exp(reach), True, "{:g}x".format)

    report = recovery.report
    holes = f" · {counted(report.hole_pixels, 'pixel')} without depth" if report.hole_pixels else ""
    grey = relative.colours(mde_depth).mean(-1, keepdims=True) / 2 + 115
    photograph = np.repeat(grey.astype(np.uint8), 3, axis=2) if image is None else image
    sheet = Sheet(depth_m.shape)
    dots = sheet.dots(anchors, recovery)
    used = f"{report.anchors_used:,} of {report.anchors_given:,} anchors"
    used = used if report.anchors_given else "no anchors"
    drawn = f" · {len(dots):,} of them drawn" if len(dots) < len(anchors) else ""
    marked = sheet.with_anchors(sheet.resized(photograph), anchors, dots, recovery, metres)
    first = Panel(marked, used + drawn, metres)
    estimated = sheet.panel(
        relative.colours(mde_depth), f"relative depth · {report.model}", relative
    )
    recovered = sheet.panel(
        metres.colours(depth_m), f"recovered depth · {report.method}{holes}", metres
    )
    scaled = sheet.panel(
        factor.colours(np.exp(log_scale - middle)),
        f"log-scale field · factor around its median {math.exp(middle):.3g}x",
        factor,
    )
    if maps.std_log is None:
        return sheet.draw([[first, estimated], [recovered, scaled]])
    std_log = maps.std_log.astype(np.float64)
    spread = deviation_scale(std_log)
    typical = format_std_log(maps.typical_std_log() or 0.0)
    uncertain = sheet.panel(
        deviation_colours(std_log, spread), f"standard deviation · median {typical}", spread
    )
    return sheet.draw([[first, recovered, uncertain], [estimated, scaled]], notes)


def draw_errors(
    image: UInt8[np.ndarray, "h w 3"], anchors: Anchors, errors: Mapping[str, np.ndarray]
) -> Image.Image:
    """The photograph with its anchors beside maps of relative errors by title, in one colour
    scale; the text can be read at half the size."""
    height, width = image.shape[:2]
    size = ERROR_PANEL, round(ERROR_PANEL * height / width)
    text, gap = ERROR_PANEL // 16, ERROR_PANEL // 40
    font, table = ImageFont.load_default(text), SMALL_TO_LARGE[128:].repeat(2, axis=0)
    scale = Scale(table, 0.0, LARGEST_ERROR)
    photograph = Image.fromarray(image).resize(size, Image.Resampling.LANCZOS)
    panels = {counted(len(anchors), "measured point"): photograph}
    for title, error in errors.items():
        panels[title] = Image.fromarray(scale.colours(error)).resize(size, Image.Resampling.BOX)
    sheet = Image.new("RGB", (len(panels) * (size[0] + gap) + gap, size[1] + 5 * text), PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, (title, panel) in enumerate(panels.items()):
        x = gap + column * (size[0] + gap)
        draw.text((x, text), title, INK, font, "lm")
        sheet.paste(panel, (x, 2 * text))
        for u, v in zip(anchors.u.tolist(), anchors.v.tolist(), strict=True):
            place = (x + (u + 0.5) * size[0] / width, 2 * text + (v + 0.5) * size[1] / height)
            draw.circle(place, gap * (0.6 if column == 0 else 0.35), "white", "black")
    x, y = 2 * gap + size[0], size[1] + round(2.6 * text)
    bar = Image.fromarray(table[None].repeat(text // 2, axis=0))
    sheet.paste(bar.resize((size[0], text // 2)), (x, y))
    for share in np.linspace(0, 1, 4):
        label = f"{100 * share * LARGEST_ERROR:.0f} %" + (" or more" if share == 1 else "")
        draw.text((x + share * size[0], y + text), label, INK, font, "lt" if share == 1 else "mt")
    draw.text((x - gap, y + text // 4), "relative error", INK, font, "rm")
    return sheet


def with_numbers(
    image: UInt8[np.ndarray, "h w 3"], pixels: Sequence[tuple[int, int]], anchors: Anchors
) -> Image.Image:
    """The photograph with a numbered circle around each pixel and a dot on each anchor, at most
    `NUMBERED_SIDE` pixels wide and high."""
    picture = Image.fromarray(image)
    picture.thumbnail((NUMBERED_SIDE, NUMBERED_SIDE))
    scale, radius = picture.width / image.shape[1], max(5, round(max(picture.size) / 90))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(2 * radius)
    for u, v in zip(anchors.u.tolist(), anchors.v.tolist(), strict=True):
        draw.circle((u * scale, v * scale), max(2, radius / 3), "white", "black")
    for number, (u, v) in enumerate(pixels, 1):
        place = (u * scale, v * scale)
        for colour, width in (("black", 5), ("yellow", 3)):
            draw.circle(place, radius, outline=colour, width=max(1, width * radius // 12))
        draw.circle(place, 1, "yellow")
        right = place[0] > picture.width - 5 * radius
        beside = (place[0] + (-1.3 if right else 1.3) * radius, place[1])
        anchor = "rm" if right else "lm"
        draw.text(beside, f"{number}", "yellow", font, anchor, stroke_width=2, stroke_fill="black")
    return picture


def format_std_log(std_log: float) -> str:
    """A standard deviation of log-depth as a percentage or a factor."""
    if std_log < 0.01:
        return f"±{100 * math.expm1(std_log):.1f} %"
    if std_log < 1:
        return f"±{100 * math.expm1(std_log):.0f} %"
    return f"a factor of {math.exp(min(std_log, 700)):.2g}"  # a percentage would be misleading


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture of a sheet, with its title and the scale of its colours."""

    picture: Image.Image
    title: str
    scale: Scale | None = None


class Sheet:
    """Sizes of the layout; every panel has about the same area."""

    def __init__(
        self,
        shape: tuple[int, ...],
        area: int = PANEL_AREA,
        least_width: int = 420,
        least_height: int = 150,
    ) -> None:
        """`shape` is that of the maps, `area` that of a panel in pixels; the place of a panel has
        the least sizes."""
        height, width = shape
        zoom = math.sqrt(area / (height * width))
        self.width = min(max(round(width * zoom), 1), 1200)
        self.height = min(max(round(height * zoom), 1), 1200)
        self.cell_width = max(self.width, least_width)
        self.cell_height = max(self.height, least_height)
        self.zoom_u, self.zoom_v = self.width / width, self.height / height
        self.text = round(0.0235 * self.cell_width + 3)
        self.font = ImageFont.load_default(self.text)
        self.margin, self.title = round(1.4 * self.text), 2 * self.text
        self.bar, self.gutter = self.text, round(4.6 * self.text)

    def resized(
        self,
        pixels: UInt8[np.ndarray, "h w 3"],
        resampling: Image.Resampling = Image.Resampling.LANCZOS,
    ) -> Image.Image:
        """Pixels at the size of a panel."""
        return Image.fromarray(pixels).resize((self.width, self.height), resampling)

    def panel(self, pixels: UInt8[np.ndarray, "h w 3"], title: str, scale: Scale) -> Panel:
        """The panel of a map, whose pixels stay what they are."""
        return Panel(self.resized(pixels, Image.Resampling.BOX), title, scale)

    def draw(self, rows: Sequence[Sequence[Panel]], notes: Sequence[str] = ()) -> Image.Image:
        """Rows of panels, each with its title and colour bar; notes after the last panel."""
        step_x = self.cell_width + self.bar + self.gutter
        step_y = self.title + self.cell_height + self.margin // 2
        size = (len(rows[0]) * step_x + self.margin, len(rows) * step_y + self.margin)
        sheet = Image.new("RGB", size, PAPER)
        for row, panels in enumerate(rows):
            y = self.margin // 4 + row * step_y
            for column, panel in enumerate(panels):
                x, middle = self.margin + column * step_x, y + self.title / 2
                draw = ImageDraw.Draw(sheet)
                draw.text((x, middle), panel.title, INK, self.font, anchor="lm")
                sheet.paste(panel.picture, (x, y + self.title))
                if panel.scale is not None:
                    at = x + self.width + self.text // 2, y + self.title
                    self.colour_bar(sheet, *at, panel.scale)
        if notes:
            x = self.margin + len(rows[-1]) * step_x
            self.write(sheet, x, self.margin // 4 + (len(rows) - 1) * step_y + self.title, notes)
        return sheet

    def write(self, sheet: Image.Image, x: int, y: int, notes: Sequence[str]) -> None:
        """Notes in the width of a cell, as many lines as it holds."""
        draw, step = ImageDraw.Draw(sheet), round(1.5 * self.text)
        width = self.cell_width + self.bar
        lines = [line for note in notes for line in wrapped(note, draw, self.font, width)]
        most = max(1, self.cell_height // step)
        if len(lines) > most:
            lines = [*lines[: most - 1], "…"]
        for i, line in enumerate(lines):
            draw.text((x, y + i * step), line, INK, self.font, anchor="la")

    def colour_bar(self, sheet: Image.Image, x: int, y: int, scale: Scale) -> None:
        """A vertical bar, small values at the bottom, with ticks at round numbers."""
        height = self.cell_height
        bar = scale.table[np.linspace(255, 0, height).astype(int)]
        sheet.paste(Image.fromarray(np.repeat(bar[:, None], self.bar, axis=1)), (x, y))
        draw = ImageDraw.Draw(sheet)
        ticks = scale.ticks(most=max(2, min(8, height // (2 * self.text))))
        for tick, position in zip(ticks, scale.position(np.array(ticks)).tolist(), strict=True):
            at = y + (1 - position) * (height - 1)
            end = x + self.bar + self.text // 4
            draw.line([(x + self.bar, at), (end, at)], SOFT_INK)
            text_at = (end + self.text // 4, min(max(at, y + 6), y + height - 7))
            draw.text(text_at, scale.label(tick), INK, self.font, anchor="lm")

    def dots(self, anchors: Anchors, recovery: Recovery) -> list[int]:
        """The anchors to draw: all, or of many one in each square, rejected ones first."""
        if len(anchors) <= MAX_DOTS:
            return list(range(len(anchors)))
        rejected = [r.anchor for r in recovery.report.rejected]
        order = np.concatenate([rejected, np.setdiff1d(np.arange(len(anchors)), rejected)])
        order = order.astype(np.int64)
        cells = np.stack([anchors.u * self.zoom_u, anchors.v * self.zoom_v])[:, order]
        _, first = np.unique(cells // DOT_CELL_PX, axis=1, return_index=True)
        return np.sort(order[first]).tolist()

    def with_anchors(
        self,
        picture: Image.Image,
        anchors: Anchors,
        dots: Sequence[int],
        recovery: Recovery,
        scale: Scale,
    ) -> Image.Image:
        """Discs in the colour of their depth, a cross over the rejected, labels when few."""
        smooth = 4  # PIL draws without antialiasing; a larger layer, shrunk, has it
        layer = Image.new("RGBA", (self.width * smooth, self.height * smooth))
        draw = ImageDraw.Draw(layer)
        radius = float(np.clip(9 - 1.1 * math.log(max(len(anchors), 1)), 2.5, 7.5))
        x = (anchors.u + 0.5) * self.zoom_u
        y = (anchors.v + 0.5) * self.zoom_v
        rejected = {r.anchor for r in recovery.report.rejected}
        colours = scale.colours(anchors.depth_m)
        for i in dots:
            rings = [(radius + 1.8, INK), (radius + 0.9, (255, 255, 255))]
            for r, colour in (*rings, (radius - 0.6, tuple(colours[i].tolist()))):
                box = [c * smooth for c in (x[i] - r, y[i] - r, x[i] + r, y[i] + r)]
                draw.ellipse(box, fill=colour)
            if i in rejected:
                for sign in (-1, 1):
                    ends = [
                        (x[i] - radius, y[i] - sign * radius),
                        (x[i] + radius, y[i] + sign * radius),
                    ]
                    draw.line(
                        [(a * smooth, b * smooth) for a, b in ends], (200, 30, 30), 2 * smooth
                    )
        layer = layer.resize(picture.size, Image.Resampling.LANCZOS)
        result = Image.alpha_composite(picture.convert("RGBA"), layer)
        if len(anchors) <= MAX_LABELS:
            self.labels(result, x, y, radius, [f"{d:.2f} m" for d in anchors.depth_m])
        return result.convert("RGB")

    def labels(
        self, picture: Image.Image, x: np.ndarray, y: np.ndarray, radius: float, texts: list[str]
    ) -> None:
        """Draw labels at positions that hide as little as possible of anchors and other labels."""
        draw = ImageDraw.Draw(picture)
        taken = [
            (a - radius, b - radius, a + radius, b + radius) for a, b in zip(x, y, strict=True)
        ]
        height = self.text + 4
        for a, b, text in zip(x, y, texts, strict=True):
            width = draw.textlength(text, font=self.font) + 10
            gap = radius + 5
            candidates = [
                (a + gap, b - height / 2), (a - gap - width, b - height / 2),
                (a - width / 2, b - gap - height), (a - width / 2, b + gap),
            ]  # fmt: skip
            # Shifted to lie inside the picture, as far as it is large enough.
            inside = [
                (max(min(px, self.width - width - 2), 2), max(min(py, self.height - height - 2), 2))
                for px, py in candidates
            ]
            boxes = [(px, py, px + width, py + height) for px, py in inside]
            best = min(boxes, key=lambda box: sum(_overlap(box, other) for other in taken))
            taken.append(best)
            plate = Image.new("RGBA", picture.size)
            ImageDraw.Draw(plate).rounded_rectangle(best, 4, (255, 255, 255, 225))
            picture.alpha_composite(plate)
            middle = ((best[0] + best[2]) / 2, (best[1] + best[3]) / 2)
            draw.text(middle, text, INK, self.font, anchor="mm")


def wrapped(text: str, draw: ImageDraw.ImageDraw, font: Any, width: int) -> Iterator[str]:
    """The lines of a text that are at most `width` pixels wide; a longer word has its own line."""
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and draw.textlength(longer, font=font) > width:
            yield line
            longer = word
        line = longer
    yield line


def _overlap(a: tuple, b: tuple) -> float:
    """Area that two boxes (left, top, right, bottom) share."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return float(max(width, 0) * max(height, 0))
