"""Into the network and back: sizes, values, and that the way back loses nothing it need not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield.mde.da3 import PREPROCESS as DA3
from scalefield.mde.estimator import Preprocess, to_shape
from scalefield.mde.transformers_mde import PREPROCESS


@pytest.mark.parametrize(
    ("preprocess", "shape", "wanted"),
    [
        (DA3, (375, 1242), (154, 504)),  # 152.2 rounds to 11 patches
        (DA3, (480, 640), (378, 504)),
        (DA3, (504, 280), (504, 280)),
        (DA3, (10, 5000), (14, 504)),
        (PREPROCESS["dpt"], (375, 1242), (384, 1280)),  # as MiDaS does it
        (PREPROCESS["dpt"], (480, 640), (384, 512)),
        (PREPROCESS["dpt"], (200, 300), (256, 384)),
        (PREPROCESS["depth_anything"], (480, 640), (518, 686)),
        (PREPROCESS["zoedepth"], (480, 640), (384, 512)),
        (PREPROCESS["glpn"], (375, 1242), (384, 1248)),
        (PREPROCESS["depth_pro"], (375, 1242), (1536, 1536)),
    ],
)
def test_preprocess_known_sizes(preprocess, shape, wanted):
    assert preprocess.target(shape) == wanted


@given(
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    st.sampled_from(["inside", "least", "native"]),
    st.sampled_from([1, 14, 32]),
)
def test_preprocess_sides_are_multiples_and_the_aspect_ratio_is_kept(shape, fit, multiple):
    height, width = Preprocess((504, 504), fit, multiple).target(shape)
    assert height % multiple == width % multiple == 0
    assert min(height, width) >= multiple
    scale = {"inside": min(504 / n for n in shape), "native": 1.0}.get(fit)
    if scale is None:
        scale = min((504 / n for n in shape), key=lambda s: abs(1 - s))
    for found, side in ((height, shape[0]), (width, shape[1])):
        assert abs(found - scale * side) <= max(multiple, 1) / 2 + 0.5 or found == multiple


def test_preprocess_values(photograph):
    image = photograph(28, 42)
    pixels = Preprocess((28, 42), "inside", 14, (0.5, 0.25, 0.0), (1.0, 0.5, 2.0))([image])
    assert pixels.shape == (1, 3, 28, 42)
    wanted = (image / 255 - [0.5, 0.25, 0.0]) / [1.0, 0.5, 2.0]
    np.testing.assert_allclose(pixels[0].permute(1, 2, 0), wanted, atol=1e-6)


def test_preprocess_equals_the_published_preprocessing_of_dpt(photograph):
    """At MiDaS's own settings, which its hub file does not carry, but its code does."""
    module = pytest.importorskip("transformers.models.dpt.image_processing_pil_dpt")
    theirs = module.DPTImageProcessorPil(
        keep_aspect_ratio=True, ensure_multiple_of=32, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    image = photograph(375, 500)
    wanted = theirs(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(PREPROCESS["dpt"]([image]), wanted, rtol=0, atol=1e-5)


def test_preprocess_area_is_the_mean_of_the_covered_pixels():
    image = np.random.default_rng(0).integers(0, 256, (28, 56, 3), dtype=np.uint8)
    preprocess = Preprocess((14, 28), "stretch", 1, (0.0,) * 3, (1 / 255,) * 3, "area")
    means = image.reshape(14, 2, 28, 2, 3).mean((1, 3))
    np.testing.assert_allclose(
        preprocess([image])[0].permute(1, 2, 0), means, atol=1.01
    )  # 8-bit twice


def test_preprocess_image_is_not_changed(photograph):
    image = photograph(20, 30)
    before = image.copy()
    DA3([image])
    np.testing.assert_array_equal(image, before)


def ramp(height, width):
    """A map that is linear in the place in the image, with pixel centres at (i + 0.5) / n."""
    v, u = ((torch.arange(n) + 0.5) / n for n in (height, width))
    return (v[:, None] + 2 * u)[None]


@given(st.integers(2, 60), st.integers(2, 60), st.integers(2, 60), st.integers(2, 60))
def test_to_shape_way_back_keeps_every_place(h, w, height, width):
    found = to_shape(ramp(h, w), (height, width))[0]
    wanted = ramp(height, width)[0]
    # Away from the borders, where bilinear interpolation has neighbours on both sides; to a
    # tenth of a pixel, because the antialiasing triangle does not quite keep a ramp.
    rows, columns = (
        [i for i in range(n) if 2 / m < (i + 0.5) / n < 1 - 2 / m and 2 <= i < n - 2]
        for n, m in ((height, h), (width, w))
    )
    error = (found - wanted)[rows][:, columns].abs()
    assert error.numel() == 0 or float(error.max()) <= 0.1 * (1 / height + 2 / width)
    assert float(found.min()) >= float(ramp(h, w).min()) - 1e-5
    assert float(found.max()) <= float(ramp(h, w).max()) + 1e-5
