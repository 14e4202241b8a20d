"""Render the bundled sample room: a photograph-like image whose true depth is known.

    python scripts/render_sample.py src/scalefield/samples

A small path tracer: boxes, ellipsoids and tapered cylinders under affine maps, daylight and sun
through a window, a lamp, procedural materials, a wavelet denoiser, and a camera with vignette,
blur and noise. The same command always writes the same files, on any number of processes.
"""

from __future__ import annotations

import argparse
import io
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image, ImageFilter

from sample_room import LAMP_CENTRE, LAMP_RADIUS, SEED, WINDOW, room
from tracer import Array, Hits, Scene, turn, unit

WIDTH, HEIGHT, FOCAL_PX = 640, 480, 525.0
SUPERSAMPLE = 2
PATHS = 4
EYE = np.array([0.30, 1.42, 0.0])
YAW_DEG, PITCH_DEG = -9.0, -15.5

SUN = np.array([-0.80, 0.50, -0.42]) / np.linalg.norm([-0.80, 0.50, -0.42])
SUN_RGB = np.array([4.6, 3.9, 3.0])
CURTAIN = (-1.49, (0.7, 2.2), (-1.3, 1.5))  # z, y range, x range: a lit curtain behind the camera
CURTAIN_RGB = np.array([3.7, 3.65, 3.6])
LAMP_RGB = np.array([12.0, 8.6, 5.2])


def sky(direction: Array) -> Array:
    """Radiance of the world outside the window."""
    up = direction[:, 1]
    blue = (
        np.array([10.5, 11.0, 11.6]) - np.array([5.3, 3.4, 0.2]) * np.clip(up, 0, 1)[:, None] ** 0.6
    )
    return np.where((up > 0)[:, None], blue, [1.5, 1.6, 1.1])


def sunlight(scene: Scene, p: Array, n: Array, rng: np.random.Generator) -> Array:
    """Sun through the window, with a disc of about a degree: soft edges."""
    toward = unit(SUN + 0.009 * rng.standard_normal(p.shape))
    facing = np.maximum((n * toward).sum(1), 0)
    x, ys, zs = WINDOW
    t = (x - p[:, 0]) / toward[:, 0]
    y, z = p[:, 1] + t * toward[:, 1], p[:, 2] + t * toward[:, 2]
    ask = np.flatnonzero((facing > 0) & (ys[0] < y) & (y < ys[1]) & (zs[0] < z) & (z < zs[1]))
    light = np.zeros_like(p)
    if len(ask):
        lit = scene.free(p[ask] + 2e-4 * n[ask], toward[ask], np.inf)
        light[ask] = (facing[ask] * lit)[:, None] * SUN_RGB / np.pi
    return light


def soft_light(scene: Scene, p: Array, n: Array, rng: np.random.Generator) -> Array:
    """∫ L cos θ / π over window, curtain and lamp, one sample each."""
    count, to_lamp = len(p), LAMP_CENTRE - p
    x, ys, zs = WINDOW
    window = np.stack([np.full(count, x), rng.uniform(*ys, count), rng.uniform(*zs, count)], 1)
    z, y_range, xs = CURTAIN
    curtain = np.stack(
        [rng.uniform(*xs, count), rng.uniform(*y_range, count), np.full(count, z)], 1
    )
    lamp = LAMP_CENTRE + LAMP_RADIUS * unit(rng.standard_normal(p.shape) - 0.7 * unit(to_lamp))
    total = np.zeros_like(p)
    for name, target in (("window", window), ("curtain", curtain), ("lamp", lamp)):
        way = target - p
        distance = np.linalg.norm(way, axis=1)
        toward = way / distance[:, None]
        facing = np.maximum((n * toward).sum(1), 0)
        ask = np.flatnonzero(facing > 0)
        spread = 1 / np.maximum(distance[ask, None] ** 2, 0.1) / np.pi
        if name == "window":
            area = np.ptp(ys) * np.ptp(zs) * np.abs(toward[ask, :1])
            radiance, length = sky(toward[ask]) * area * spread, np.inf
        elif name == "curtain":
            area = np.ptp(y_range) * np.ptp(xs) * np.abs(toward[ask, 2:])
            radiance, length = CURTAIN_RGB * area * spread, distance[ask] - 0.01
        else:
            area = np.pi * LAMP_RADIUS**2
            radiance, length = LAMP_RGB * area * spread, distance[ask] - 2.2 * LAMP_RADIUS
        lit = scene.free(p[ask] + 2e-4 * n[ask], toward[ask], length)
        total[ask] += radiance * (facing[ask] * lit)[:, None]
    return total


def bounce(scene: Scene, p: Array, n: Array, rng: np.random.Generator, more: int) -> Array:
    """Light that arrives over other surfaces: one cosine-weighted ray."""
    direction = unit(n + unit(rng.standard_normal(p.shape)))
    hits = scene.look(p + 2e-4 * n, direction, textured=False)
    return outgoing(scene, hits, rng, more)


def outgoing(scene: Scene, hits: Hits, rng: np.random.Generator, more: int) -> Array:
    """Diffuse radiance that leaves the surfaces a ray met (lights themselves not counted)."""
    radiance = np.zeros_like(hits.point)
    met = np.flatnonzero(np.isfinite(hits.t))
    if len(met):
        p, n = hits.point[met], hits.normal[met]
        light = sunlight(scene, p, n, rng) + soft_light(scene, p, n, rng)
        if more:
            light += bounce(scene, p, n, rng, more - 1)
        radiance[met] = np.minimum(hits.albedo[met] * light, 3.0)
    return radiance


def camera_rays(width: int, height: int, focal_px: float) -> Array:
    """Directions with unit z in the camera's frame, so that a ray's length t is the z-depth."""
    u, v = np.meshgrid(np.arange(width), np.arange(height))
    x, y = (u - (width - 1) / 2) / focal_px, -(v - (height - 1) / 2) / focal_px
    in_camera = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3)
    return in_camera @ (turn(yaw=YAW_DEG) @ turn(pitch=-PITCH_DEG)).T


def render_tile(job: tuple[int, Array]) -> dict[str, Array]:
    """Everything about the pixels behind these rays: surfaces, soft light, sun, reflections."""
    index, rays = job
    scene, rng = room(), np.random.default_rng((SEED, index))
    hits = scene.look(np.broadcast_to(EYE, rays.shape), rays)
    p, n = hits.point, hits.normal
    soft, sun, mirror = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    shiny = np.flatnonzero(hits.gloss > 0)
    view = unit(rays)
    for _ in range(PATHS):
        for _ in range(4):  # few rays reach the window, and a soft edge needs many
            sun += sunlight(scene, p, n, rng) / 4
        soft += soft_light(scene, p, n, rng) + bounce(scene, p, n, rng, 2)
        if len(shiny):
            v, m = view[shiny], n[shiny]
            reflected = v - 2 * (v * m).sum(1, keepdims=True) * m
            rough = 0.09 / (0.3 + hits.gloss[shiny, None])
            reflected = unit(reflected + rough * rng.standard_normal(reflected.shape))
            seen = scene.look(p[shiny] + 2e-4 * m, reflected)
            light = outgoing(scene, seen, rng, 1)
            lamp = np.flatnonzero(is_lamp(scene, seen.shape))
            light[lamp] = LAMP_RGB
            outside = np.flatnonzero(~np.isfinite(seen.t))
            light[outside] = sky(reflected[outside])
            mirror[shiny] += np.minimum(light, 6.0)
    facing = np.abs((view * n).sum(1))
    fresnel = (hits.gloss * (0.04 + 0.96 * (1 - facing) ** 5))[:, None]
    glow = is_lamp(scene, hits.shape)[:, None] * LAMP_RGB * 0.35
    return {
        "t": hits.t, "point": p, "face": hits.face, "albedo": hits.albedo, "glow": glow,
        "soft": soft / PATHS, "sun": sun / PATHS, "mirror": fresnel * mirror / PATHS,
    }  # fmt: skip


def is_lamp(scene: Scene, shape: Array) -> Array:
    """Which of these shapes are the lamp's globe."""
    lamp = next(i for i, s in enumerate(scene.shapes) if np.allclose(s.centre, LAMP_CENTRE))
    return shape == lamp


def denoise(light: Array, normal: Array, point: Array, z: Array, passes: int) -> Array:
    """Edge-avoiding à-trous wavelets (Dammertz 2010): averages over one surface, not across."""
    kernel = np.array([1, 4, 6, 4, 1]) / 16
    for level in range(passes):
        gap, total, weights = 2**level, 0.0, 0.0
        level_mean = light.mean(-1)
        for i, j in np.ndindex(5, 5):
            shift = ((i - 2) * gap, (j - 2) * gap)
            other, p, n = (np.roll(a, shift, (0, 1)) for a in (light, point, normal))
            off_plane = np.abs(((p - point) * normal).sum(-1)) / (0.004 * z * (1 + gap / 4))
            across = np.linalg.norm(p - point, axis=-1) / (0.02 * z * gap)
            bend = 24 * (1 - (n * normal).sum(-1))
            contrast = np.abs(other.mean(-1) - level_mean) / (0.5 * level_mean / (level + 1) + 0.05)
            weight = kernel[i] * kernel[j] * np.exp(-off_plane - across - bend - contrast)
            total = total + weight[..., None] * other
            weights = weights + weight
        light = total / weights[..., None]
    return light


def blur(image: Array, sigma: float) -> Array:
    """Gaussian blur of a float image."""
    radius = int(3 * sigma + 1)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        pad = [(radius, radius) if a == axis else (0, 0) for a in range(3)]
        padded = np.pad(image, pad, mode="edge")
        size = image.shape[axis]
        image = sum(k * np.take(padded, np.arange(i, i + size), axis) for i, k in enumerate(kernel))
    return image


def develop(radiance: Array) -> Image.Image:
    """A camera's way from light to JPEG: bloom, vignette, lens blur, noise, tone curve."""
    h, w = HEIGHT, WIDTH
    radiance = radiance.reshape(h, SUPERSAMPLE, w, SUPERSAMPLE, 3).mean((1, 3))
    bright = np.clip(radiance - 1.2, 0, 6)
    radiance = radiance + 0.10 * blur(bright, 5) + 0.04 * blur(bright, 24)
    v, u = np.mgrid[-1 : 1 : h * 1j, -1 : 1 : w * 1j]
    radiance = blur(radiance, 0.55) * (1 - 0.14 * (u**2 + v**2))[..., None]
    rng = np.random.default_rng((SEED, 1_000_000))
    exposed = 1.05 * radiance
    exposed += rng.standard_normal(exposed.shape) * np.sqrt(3e-5 + 2.5e-4 * np.maximum(exposed, 0))
    exposed = np.maximum(exposed, 0)
    x = 0.9 * exposed  # Narkowicz's fit of the ACES curve
    tone = np.clip(x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14), 0, 1)
    srgb = np.where(tone < 0.0031308, 12.92 * tone, 1.055 * tone ** (1 / 2.4) - 0.055)
    grey = srgb.mean(-1, keepdims=True)
    pixels = np.clip(grey + 0.95 * (srgb - grey), 0, 1)
    image = Image.fromarray(np.round(255 * pixels).astype(np.uint8))
    return image.filter(ImageFilter.UnsharpMask(radius=1.2, percent=45, threshold=2))


def render(processes: int) -> tuple[Image.Image, Array]:
    """The photograph, and the exact z-depth at its pixel centres in metres."""
    s = SUPERSAMPLE
    rays = camera_rays(WIDTH * s, HEIGHT * s, FOCAL_PX * s)
    tiles = np.array_split(rays, 192)
    with ProcessPoolExecutor(processes) as pool:
        parts = list(pool.map(render_tile, enumerate(tiles)))
    g = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    g = {k: v.reshape(HEIGHT * s, WIDTH * s, *v.shape[1:]) for k, v in g.items()}
    soft = denoise(g["soft"], g["face"], g["point"], g["t"], 5)
    sun = denoise(g["sun"], g["face"], g["point"], g["t"], 2)
    mirror = denoise(g["mirror"], g["face"], g["point"], g["t"], 3)
    photograph = develop(g["albedo"] * (soft + sun) + mirror + g["glow"])
    depth_m = room().trace(
        np.broadcast_to(EYE, (WIDTH * HEIGHT, 3)), camera_rays(WIDTH, HEIGHT, FOCAL_PX)
    )[0]
    return photograph, depth_m.reshape(HEIGHT, WIDTH)


def main() -> None:
    """Render and write room.jpg and room_depth.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    photograph, depth_m = render(args.processes)

    from scalefield.io import write_atomic, write_depth_png

    jpeg = io.BytesIO()
    photograph.save(jpeg, "JPEG", quality=90, optimize=True)
    write_atomic(args.folder / "room.jpg", jpeg.getvalue())
    write_depth_png(args.folder / "room_depth.png", depth_m, units_per_metre=1000)


if __name__ == "__main__":
    main()
