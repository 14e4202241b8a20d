"""From linear light to a photograph: exposure, tone curve, vignetting, noise. Pure code."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Photo:
    """Settings of one photograph."""

    key: float
    """Luminance that the geometric mean of the image is exposed to."""
    exposure_error_ev: float
    """Stops by which the exposure is wrong."""
    white_balance: tuple[float, float, float]
    """Factors of red, green and blue."""
    filmic: bool
    """Whether highlights are compressed; else they are clipped."""
    noise_std: float
    """Standard deviation of read noise, in units of the encoded range."""
    shot_noise: float
    """Standard deviation of shot noise at full exposure, in the same units."""
    vignetting: float
    """Share of light that is lost in the corners."""
    jpeg_quality: int
    """Quality of the JPEG file."""
    f_number: float | None
    """Aperture of the lens blur, or none for a pinhole."""
    focus_quantile: float
    """Quantile of the view's depths that is in focus."""


def draw_photo(rng: random.Random, dark: bool = False, blur: float = 0.14) -> Photo:
    """Random settings; `dark` scenes are noisier, and a share `blur` of the views has lens blur."""
    error = rng.gauss(0, 0.25) if rng.random() < 0.8 else rng.uniform(-1.6, 1.3)
    noisy = rng.random() < (0.4 if dark else 0.15)
    tint = rng.gauss(0, 0.06)
    return Photo(
        key=rng.uniform(0.13, 0.25),
        exposure_error_ev=error,
        white_balance=(1 + tint, 1.0, 1 - tint + rng.gauss(0, 0.02)),
        filmic=rng.random() < 0.8,
        noise_std=rng.uniform(0.012, 0.035) if noisy else rng.uniform(0, 0.01),
        shot_noise=rng.uniform(0, 0.03) if noisy else rng.uniform(0, 0.01),
        vignetting=rng.uniform(0, 0.4) if rng.random() < 0.4 else 0.0,
        jpeg_quality=rng.choice((95, 93, 93, 90, 80)),
        f_number=rng.choice((1.4, 2.0, 2.8)) if rng.random() < blur else None,
        focus_quantile=rng.uniform(0.1, 0.8),
    )


def develop(linear: np.ndarray, photo: Photo, seed: int) -> np.ndarray:
    """An 8-bit sRGB image (h, w, 3) of linear light (h, w, 3)."""
    linear = np.nan_to_num(np.maximum(linear, 0), posinf=1e4).astype(np.float32)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722], np.float32)
    exposure = photo.key / max(math.exp(float(np.log(luminance + 1e-4).mean())), 1e-5)
    bright = float(np.percentile(luminance, 97)) * exposure
    if bright > 3:  # meters give up part of the shadows for the highlights
        exposure *= (3 / bright) ** 0.6
    x = linear * (exposure * 2**photo.exposure_error_ev)
    x = x * np.array(photo.white_balance, np.float32) * _vignette(linear.shape, photo.vignetting)
    if photo.filmic:
        x = x * (1 + x / 16) / (1 + 0.8 * x)
    x = np.clip(x, 0, 1)
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=x.shape)
    encoded = np.where(x <= 0.0031308, 12.92 * x, 1.055 * np.maximum(x, 1e-6) ** (1 / 2.4) - 0.055)
    encoded = encoded + noise * np.hypot(photo.noise_std, photo.shot_noise * np.sqrt(x))
    return (np.clip(encoded, 0, 1) * 255 + 0.5).astype(np.uint8)


def _vignette(shape: tuple[int, ...], loss: float) -> np.ndarray:
    """Factor of each pixel, (h, w, 1): 1 in the centre, 1 - loss in the corners."""
    h, w = shape[:2]
    v, u = np.mgrid[:h, :w]
    radius = ((u - (w - 1) / 2) ** 2 + (v - (h - 1) / 2) ** 2) / ((w / 2) ** 2 + (h / 2) ** 2)
    return (1 - loss * radius)[..., None].astype(np.float32)


def kelvin_rgb(temperature_k: float) -> tuple[float, float, float]:
    """Linear colour of a black body, a common fit between 1900 K and 10000 K."""
    t = temperature_k / 100
    r = 1.0 if t <= 66 else 1.29 * (t - 60) ** -0.133
    g = 0.39 * math.log(t) - 0.63 if t <= 66 else 1.13 * (t - 60) ** -0.0755
    b = 1.0 if t >= 66 else (0.543 * math.log(t - 10) - 1.196 if t > 19 else 0.0)
    return tuple(max(0.0, min(1.0, c)) ** 2.2 for c in (r, g, b))  # type: ignore[return-value]
