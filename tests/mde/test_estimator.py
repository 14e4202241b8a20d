"""The wrapper around every network, on a network whose features are known."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from scalefield.errors import InputError
from scalefield.mde.estimator import Estimator, Preprocess, Raw

PREPROCESS = Preprocess((160, 160), "inside", 16)


def pooled(pixels):
    """Brightness as depth, mean colours of 8×8 pixels as F."""
    return Raw(pixels.mean(1) + 5, F.avg_pool2d(pixels, 8), pixels.amax(1))


def estimator(network=pooled):
    return Estimator("pooled", "r1", "depth", PREPROCESS, network)


def test_estimator_output_has_the_size_of_the_image_and_features_keep_theirs(photograph):
    image = photograph(75, 131)
    output = estimator()(image)
    assert output.prediction.shape == output.confidence.shape == (75, 131)
    assert output.features.shape == (3, 12, 20)  # 96×160 pixels
    np.testing.assert_array_equal(output.image, image)
    assert (output.model, output.revision, output.kind) == ("pooled", "r1", "depth")
    assert output.options == PREPROCESS.as_dict()


def test_estimator_features_follow_the_image(assert_features_follow_the_image):
    assert_features_follow_the_image(estimator(), 160)


def test_raw_padding_would_be_noticed(assert_features_follow_the_image):
    """The check above can fail: a network that pads its input puts F beside the image."""

    def padded(pixels):
        return pooled(F.pad(pixels, (0, 64, 0, 64)))

    with pytest.raises(AssertionError, match="moved by"):
        assert_features_follow_the_image(estimator(padded), 160)


def test_estimator_batch_equals_one_by_one(photograph):
    images = [photograph(75, 131, seed) for seed in range(3)]
    mde = estimator()
    for image, together in zip(images, mde.batch(images), strict=True):
        alone = mde(image)
        assert torch.equal(together.prediction, alone.prediction)
        assert torch.equal(together.features, alone.features)
        assert torch.equal(together.image, alone.image)


def test_estimator_batch_of_two_sizes_is_refused(photograph):
    with pytest.raises(InputError, match=r"one size, found \[\(20, 30\), \(30, 20\)\]"):
        estimator().batch([photograph(20, 30), photograph(30, 20)])


def test_estimator_generator_can_be_trained_on_the_features(photograph):
    layer = torch.nn.Conv2d(3, 1, 1)
    features = estimator()(photograph(40, 40)).features
    layer(features[None]).sum().backward()
    assert layer.weight.grad.abs().sum() > 0
