"""The cache: exact round trips, distinct keys for distinct inputs, and damage that is noticed."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from scalefield.errors import InputError
from scalefield.mde import MDE
from scalefield.mde.cache import MDECache, default_cache
from scalefield.mde.estimator import Estimator, Preprocess, Raw


class Counting:
    """A network that counts the images it has seen."""

    def __init__(self, gain=1.0, confident=True, featured=True):
        self.seen, self.gain = 0, gain
        self.confident, self.featured = confident, featured

    def __call__(self, pixels):
        self.seen += len(pixels)
        features = self.gain * F.avg_pool2d(pixels, 8) if self.featured else None
        return Raw(pixels.mean(1) + 5, features, pixels.amax(1) if self.confident else None)


def estimator(**options):
    preprocess = Preprocess((64, 64), "inside", 16)
    return Estimator("counting", "r1", "disparity", preprocess, Counting(**options))


def assert_equal(a, b):
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype
            assert torch.equal(x, y), field.name
        else:
            assert x == y, field.name


@pytest.mark.parametrize("options", [{}, {"confident": False}, {"featured": False}, {"gain": 1e7}])
def test_round_trip_is_exact(tmp_path, photograph, options):
    mde = estimator(**options)
    image = photograph(40, 60)
    first = MDECache(tmp_path, mde)(image)
    again = MDECache(tmp_path, mde)(image)
    assert mde.network.seen == 1
    assert_equal(first, again)
    direct = mde(image)
    assert torch.equal(first.prediction, direct.prediction)
    assert torch.equal(first.image, direct.image)
    assert (first.kind, first.model, first.revision) == ("disparity", "counting", "r1")
    assert first.options == direct.options
    if direct.features is not None:
        assert first.features.dtype == torch.float32
        torch.testing.assert_close(first.features, direct.features, rtol=1e-3, atol=1e-4)


def test_features_take_half_the_space(tmp_path, photograph):
    image = photograph(64, 64)
    output = MDECache(tmp_path, estimator())(image)
    (file,) = tmp_path.iterdir()
    numbers = 4 * 2 * output.prediction.numel() + 2 * output.features.numel()
    assert numbers < file.stat().st_size < numbers + 2000


def test_is_itself_an_mde(tmp_path):
    mde = estimator()
    cache = MDECache(tmp_path, mde)
    assert isinstance(cache, MDE)
    assert (cache.name, cache.revision, cache.options) == (mde.name, mde.revision, mde.options)


def test_cache_keys_differ_for_every_difference(tmp_path, photograph):
    mde = estimator()
    image = photograph(40, 60)
    brighter = image.copy()
    brighter[0, 0, 0] ^= 1
    replace = dataclasses.replace
    other_size = Preprocess((64, 64), "inside", 32)
    paths = [
        MDECache(tmp_path, mde).path(image),
        MDECache(tmp_path, mde).path(brighter),
        MDECache(tmp_path, mde).path(image.reshape(60, 40, 3)),
        MDECache(tmp_path, replace(mde, name="other")).path(image),
        MDECache(tmp_path, replace(mde, revision="r2")).path(image),
        MDECache(tmp_path, replace(mde, preprocess=other_size)).path(image),
    ]
    assert len(set(paths)) == len(paths)
    assert MDECache(tmp_path, estimator()).path(image.copy()) == paths[0]
    assert MDECache(tmp_path, mde).path(np.asfortranarray(image)) == paths[0]


def test_batch_computes_only_what_is_missing(tmp_path, photograph):
    mde = estimator()
    cache = MDECache(tmp_path, mde)
    images = [photograph(40, 60, seed) for seed in range(4)]
    alone = cache(images[2])
    outputs = cache.batch(images)
    assert mde.network.seen == 4
    assert_equal(outputs[2], alone)
    for image, output in zip(images, outputs, strict=True):
        np.testing.assert_array_equal(output.image, image)
        assert_equal(cache(image), output)
    assert mde.network.seen == 4


def truncate(data):
    return data[: len(data) // 2]


def flip_a_bit_of_the_maps(data):
    return data[:-7] + bytes([data[-7] ^ 4]) + data[-6:]


def swap_the_kind(data):
    return data.replace(b"disparity", b"disparitx")


@pytest.mark.parametrize(
    "damage",
    [truncate, flip_a_bit_of_the_maps, swap_the_kind, lambda data: b"", lambda data: b"x" * 100],
)
def test_damage_is_noticed_and_mended(tmp_path, photograph, damage):
    mde = estimator()
    cache = MDECache(tmp_path, mde)
    image = photograph(40, 60)
    wanted = cache(image)
    path = cache.path(image)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    with pytest.warns(UserWarning, match="is damaged .* and is made again"):
        assert_equal(cache(image), wanted)
    assert mde.network.seen == 2
    assert path.read_bytes() == whole
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache(image)


def test_nothing_is_left_beside_the_files(tmp_path, photograph):
    cache = MDECache(tmp_path / "new" / "folder", estimator())
    image = photograph(40, 60)
    cache(image)
    assert list(cache.folder.iterdir()) == [cache.path(image)]


def test_a_plain_function_has_no_revision(tmp_path):
    class Plain:
        name = "plain"

        def __call__(self, image):
            return None

    with pytest.raises(InputError, match="plain has no `revision`"):
        MDECache(tmp_path, Plain())


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALEFIELD_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("SCALEFIELD_CACHE")
    assert default_cache().parts[-2:] == ("scalefield", "mde")
