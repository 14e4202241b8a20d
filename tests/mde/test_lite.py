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
    LiteNetwork,
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


class Brightness(LiteNet):
    """Log-depth is the brightness, plus a slope to the right and a constant for small images."""

    def __init__(self, slope, constant=3.0):
        torch.nn.Module.__init__(self)
        self.slope, self.constant = slope, constant

    def forward(self, x):
        log_depth = x.mean(dim=1, keepdim=True)
        if x.shape[3] < 512:
            across = torch.linspace(-1, 1, x.shape[3]).flip(0)  # the image is mirrored
            log_depth = log_depth + self.constant + self.slope * across
        return log_depth, x


def test_lite_coarse_pass_changes_nothing_if_both_passes_agree_up_to_a_constant():
    pixels = torch.zeros(2, 3, 384, 512)
    pixels[0, :, :, 200:] = 1.0
    one, two = (LiteNetwork(Brightness(0.0), "cpu", coarse_pass=p)(pixels) for p in (False, True))
    # The edge lies inside a cell of the grid, which both passes average alike.
    torch.testing.assert_close(two.prediction, one.prediction, atol=0.02, rtol=0.02)
    torch.testing.assert_close(two.features, one.features)


def test_lite_coarse_pass_takes_half_of_a_smooth_difference_and_keeps_edges():
    pixels = torch.zeros(1, 3, 384, 512)
    pixels[..., 256:] = 1.0
    log_depth = LiteNetwork(Brightness(0.4), "cpu", coarse_pass=True)(pixels).prediction.log()[0]
    wanted = pixels[0, 0] + 0.2 * torch.linspace(-1, 1, 512)
    error = (log_depth - wanted)[:, 20:-20]
    assert float(error.abs().max()) < 0.03
    step = log_depth[:, 256] - log_depth[:, 255]
    torch.testing.assert_close(step, torch.ones(384), atol=0.02, rtol=0)


def test_lite_coarse_pass_does_not_enlarge_small_images():
    shapes = []

    class Recorder(Brightness):
        def forward(self, x):
            shapes.append(tuple(x.shape[2:]))
            return super().forward(x)

    for shape in ((384, 512), (256, 832), (64, 96), (32, 32)):
        LiteNetwork(Recorder(0.0), "cpu", coarse_pass=True)(torch.zeros(1, 3, *shape))
    assert shapes[1::2] == [(256, 352), (160, 544), (64, 96), (32, 32)]
