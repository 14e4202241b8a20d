import numpy as np
import pytest
import torch

from scalefield.errors import InputError
from scalefield.mde import load_mde
from scalefield.mde.lite import (
    FEATURE_CHANNELS,
    PREPROCESS,
    ConvexUpsampling,
    LiteNet,
    load_imagenet_encoder,
)


@pytest.mark.parametrize("shape", [(480, 640), (375, 1242), (1, 1), (700, 33), (47, 61)])
def test_lite_any_image_gives_depth_and_features(shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    output = load_mde("lite")(image)
    assert output.shape == shape
    assert output.kind == "depth"
    assert bool(output.valid.all())
    assert output.features.shape[0] == FEATURE_CHANNELS
    height, width = PREPROCESS.target(shape)
    assert output.features.shape[1:] == (height // 4, width // 4)


def test_lite_size_is_that_of_the_card():
    count = sum(p.numel() for p in LiteNet().parameters())
    assert 3_000_000 < count < 5_000_000


def test_lite_about_two_hundred_thousand_pixels_are_processed():
    for shape in ((480, 640), (375, 1242), (1080, 1920), (512, 512)):
        height, width = PREPROCESS.target(shape)
        assert height % 32 == width % 32 == 0
        assert 0.85 < height * width / (384 * 512) < 1.15
        assert abs(np.log(width / height * shape[0] / shape[1])) < 0.12


def test_lite_published_encoder_weights_are_copied_in_order():
    """Tensors of the published file go by position; a strange file is refused."""
    net = LiteNet()
    theirs = {f"_blocks.{i}": torch.full_like(v, i) for i, v in enumerate(
        net.encoder.state_dict().values())}  # fmt: skip
    load_imagenet_encoder(net, theirs | {"_fc.weight": torch.zeros(3), "_bn1.bias": torch.ones(3)})
    for i, value in enumerate(net.encoder.state_dict().values()):
        assert bool((value == i).all())
    with pytest.raises(InputError, match="tensors wanted for EfficientNet-Lite2"):
        load_imagenet_encoder(net, {"a": torch.zeros(1)})


def test_convex_upsampling_keeps_a_step_sharp_and_stays_within_its_neighbours():
    torch.manual_seed(0)
    layer = ConvexUpsampling(4).eval()
    coarse = torch.zeros(1, 1, 6, 8)
    coarse[..., 4:] = 1.0
    fine = layer(coarse, torch.randn(1, 4, 6, 8), torch.randn(1, 3, 12, 16))
    assert fine.shape == (1, 1, 12, 16)
    assert bool(((fine >= 0) & (fine <= 1 + 1e-6)).all())
    torch.testing.assert_close(fine[..., :6], torch.zeros(1, 1, 12, 6))
    torch.testing.assert_close(fine[..., 10:], torch.ones(1, 1, 12, 6))


def test_lite_net_at_full_resolution_has_float32_log_depth_of_the_image_s_size():
    net = LiteNet(full_resolution=True).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        log_depth, features = net(torch.zeros(1, 3, 64, 96))
    assert log_depth.shape == (1, 1, 64, 96)
    assert log_depth.dtype == torch.float32
    assert features.shape == (1, FEATURE_CHANNELS, 16, 24)
