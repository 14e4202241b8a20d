import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import ndimage

from scalefield import MDEOutput
from scalefield.alignment.superpixels import (
    components,
    members_of,
    merge_small,
    on_border,
    superpixel_labels,
)
from scalefield.errors import MissingExtra

label_images = arrays(
    np.int64, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(-1, 3)
)


@given(label_images)
def test_components_are_scipys_of_each_label(labels):
    parts = components(labels)
    for label in np.unique(labels):
        expected, count = ndimage.label(labels == label)
        pairs = {(int(e), int(p)) for e, p in zip(expected.flat, parts.flat, strict=True) if e}
        assert len(pairs) == count  # one to one
    assert set(np.unique(parts)) == set(range(parts.max() + 1))
    assert all(len(np.unique(labels[parts == p])) == 1 for p in range(parts.max() + 1))


@given(label_images, st.floats(0, 1))
def test_merge_small_leaves_connected_regions_of_the_wanted_size(labels, share):
    parts = components(labels)
    merged = merge_small(parts, share)
    sizes = np.bincount(merged.reshape(-1))
    assert len(sizes) == 1 or sizes.min() >= share * labels.size
    assert (sizes > 0).all()
    for part in range(parts.max() + 1):
        assert len(np.unique(merged[parts == part])) == 1  # nothing is torn
    for region in range(merged.max() + 1):
        assert ndimage.label(merged == region)[1] == 1  # what joins is adjacent


def test_merge_small_joins_a_region_across_its_longest_border():
    labels = np.array(
        [
            [0, 0, 0, 0, 1, 1],
            [0, 0, 2, 2, 1, 1],
            [0, 0, 0, 2, 1, 1],
            [0, 0, 0, 0, 1, 1],
        ]
    )
    merged = merge_small(components(labels), 0.2)
    assert merged[1, 2] == merged[0, 0] != merged[0, 5]


@given(label_images)
def test_on_border_and_members_of(labels):
    parts = components(labels)
    padded = np.pad(parts, 1, mode="edge")
    shifted = [padded[1:-1, :-2], padded[1:-1, 2:], padded[:-2, 1:-1], padded[2:, 1:-1]]
    np.testing.assert_array_equal(
        on_border(parts), np.any([other != parts for other in shifted], axis=0)
    )
    for region, inside in enumerate(members_of(parts)):
        np.testing.assert_array_equal(inside, np.flatnonzero(parts.reshape(-1) == region))


@pytest.mark.parametrize("with_image", [True, False])
def test_superpixel_labels_follow_depth_and_colour(with_image):
    depth = torch.ones(40, 60)
    depth[:, 25:] = 8
    image = torch.zeros(40, 60, 3, dtype=torch.uint8)
    image[17:] = 255
    mde_output = MDEOutput(depth, "depth", image=image if with_image else None)
    labels = superpixel_labels(mde_output, 20, 0.1)
    left, right = set(np.unique(labels[:, :25])), set(np.unique(labels[:, 25:]))
    assert not left & right
    if with_image:
        assert not set(np.unique(labels[:17])) & set(np.unique(labels[17:]))
    assert 8 <= len(left | right) <= 40


def seen(shape: tuple[int, int], *, with_image: bool) -> MDEOutput:
    """A rough map, in float64 so that nothing is copied by the way, and a photograph of noise."""
    generator = torch.Generator().manual_seed(3)
    depth = 1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    image = torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8)
    return MDEOutput(depth, "depth", image=image if with_image else None)


@pytest.mark.parametrize("with_image", [True, False])
def test_superpixel_labels_are_slic_of_colour_and_log_depth(with_image):
    segmentation = pytest.importorskip("skimage.segmentation")
    mde_output = seen((40, 60), with_image=with_image)
    before = mde_output.mde_depth.clone()
    log_depth = mde_output.mde_depth.log().numpy()
    low, high = np.quantile(log_depth, (0.05, 0.95))
    channels = [np.clip((log_depth - low) / (high - low), -1, 2)[..., None]]
    if with_image:
        channels.append(mde_output.image.numpy() / 255)
    options = {"convert2lab": False, "start_label": 0, "channel_axis": -1}
    stacked = np.concatenate(channels, axis=-1)
    expected = segmentation.slic(stacked, n_segments=20, compactness=0.1, **options)
    np.testing.assert_array_equal(superpixel_labels(mde_output, 20, 0.1), expected)
    torch.testing.assert_close(mde_output.mde_depth, before, rtol=0, atol=0)


def test_superpixel_labels_hold_no_third_copy_of_the_features():
    pytest.importorskip("skimage")
    mde_output = seen((300, 400), with_image=True)
    superpixel_labels(mde_output, 20, 0.1)  # what is imported and cached is no cost of the call
    tracemalloc.start()
    superpixel_labels(mde_output, 20, 0.1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.8 * mde_output.prediction.numel() * 4 * 8  # distances and labels are the rest


@pytest.mark.parametrize("shape", [(30, 40), (31, 41)])
def test_superpixel_labels_of_a_large_image_are_those_of_every_second_pixel(shape):
    pytest.importorskip("skimage")
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 255, (*shape, 3), dtype=np.uint8))
    depth = torch.from_numpy(rng.uniform(1, 3, shape))
    whole = MDEOutput(depth, "depth", image=image)
    half = MDEOutput(depth[::2, ::2], "depth", image=image[::2, ::2])
    found = superpixel_labels(whole, 20, 0.1, max_pixels=320)
    assert found.shape == shape
    np.testing.assert_array_equal(found[::2, ::2], superpixel_labels(half, 20, 0.1))
    np.testing.assert_array_equal(found[1::2], found[: 2 * (shape[0] // 2) : 2])


def test_superpixel_labels_name_the_extra_that_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    mde_output = MDEOutput(torch.ones(4, 4), "depth")
    with pytest.raises(MissingExtra, match=r"pip install 'scalefield\[region\]'"):
        superpixel_labels(mde_output, 4, 0.1)
