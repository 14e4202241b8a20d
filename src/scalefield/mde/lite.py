"""`lite`: a small MDE that is shipped with the package. EfficientNet-Lite2 with a light decoder.

It predicts depth up to scale and was trained on a few hundred frames. It is fast and needs no
download, but is far less accurate than a large model.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from scalefield.errors import InputError, one_line
from scalefield.io import read_json
from scalefield.io.weights import WEIGHTS, verify_checksums
from scalefield.mde.estimator import Estimator, Preprocess, Raw

LITE_WEIGHTS = WEIGHTS / "lite"

COARSE_PIXELS = 256 * 341
"""Pixels of the coarse pass; smaller images are not enlarged."""
COARSE_CELLS = 32
"""Cells of the grid on which both passes are compared, along the longer side."""

PREPROCESS = Preprocess((384, 512), "area", 32, (0.5,) * 3, (0.5,) * 3, "bilinear")
FEATURE_CHANNELS = 64

STAGES = (  # kernel, stride, expansion, channels, repeats: EfficientNet-Lite2
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 3),
    (5, 2, 6, 48, 3),
    (3, 2, 6, 88, 4),
    (5, 1, 6, 120, 4),
    (5, 2, 6, 208, 5),
    (3, 1, 6, 352, 1),
)
TAPS = (0, 1, 2, 4, 6)
"""Stages whose outputs the decoder uses: strides 2, 4, 8, 16, 32."""


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does, which the encoder was trained with."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        """Convolve with padding: for even sizes and stride 2, the odd row and column go right and
        below."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:  # the same on all sides, so that nothing need be copied
            return nnf.conv2d(x, self.weight, None, 1, kernel // 2, 1, self.groups)
        pads = []
        for size in (x.shape[3], x.shape[2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return nnf.conv2d(nnf.pad(x, pads), self.weight, None, self.stride, 0, 1, self.groups)


def unit(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    *,
    groups: int = 1,
    act: bool = True,
) -> nn.Sequential:
    """Convolution, batch norm and, where wanted, ReLU6."""
    layers = [
        SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([nn.ReLU6()] if act else []))


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        expansion = [unit(inputs, hidden)] if expand > 1 else []
        self.layers = nn.Sequential(
            *expansion,
            unit(hidden, hidden, kernel, stride, groups=hidden),
            unit(hidden, outputs, act=False),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        """x + layers(x), or layers(x)."""
        return x + self.layers(x) if self.shortcut else self.layers(x)


class Encoder(nn.Module):
    """EfficientNet-Lite2 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = unit(3, 32, 3, 2)
        stages, inputs = [], 32
        for kernel, stride, expand, outputs, repeats in STAGES:
            blocks = []
            for i in range(repeats):
                blocks.append(
                    InvertedResidual(inputs, outputs, kernel, stride if i == 0 else 1, expand)
                )
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> list[Tensor]:
        """Maps at strides 2, 4, 8, 16 and 32."""
        x = self.stem(x)
        maps = []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in TAPS:
                maps.append(x)
        return maps


class Refine(nn.Module):
    """Two depthwise-separable convolutions around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            unit(width, width, 5, groups=width, act=False), unit(width, width),
            unit(width, width, 5, groups=width, act=False), unit(width, width, act=False),
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x + layers(x)."""
        return x + self.layers(x)


class ConvexUpsampling(nn.Module):
    """Upsampling by two: each fine pixel is a convex combination of its 3×3 coarse neighbours.

    The weights are predicted from features and from the image at full resolution. A convex
    combination keeps depth discontinuities sharp where bilinear interpolation blends both sides
    (Teed & Deng, "RAFT", ECCV 2020).
    """

    def __init__(self, features: int, hidden: int = 32) -> None:
        super().__init__()
        self.features = unit(features, hidden, 3, act=False)
        self.image = unit(12, hidden, 3, act=False)
        self.weights = nn.Conv2d(hidden, 4 * 9, 1)

    def forward(
        self,
        coarse: Float[Tensor, "b 1 h w"],
        features: Float[Tensor, "b c h w"],
        image: Float[Tensor, "b 3 h2 w2"],
    ) -> Float[Tensor, "b 1 h2 w2"]:
        """The map at twice the resolution of `coarse`."""
        height, width = coarse.shape[2:]
        hidden = self.features(features) + self.image(nnf.pixel_unshuffle(image, 2))
        weights = self.weights(nnf.relu6(hidden)).unflatten(1, (9, 4)).softmax(dim=1)
        padded = nnf.pad(coarse, (1, 1, 1, 1), mode="replicate")
        neighbours = [
            padded[:, :, row : row + height, column : column + width]
            for row in range(3)
            for column in range(3)
        ]
        fine = (weights * torch.stack(neighbours, dim=1)).sum(dim=1)
        return nnf.pixel_shuffle(fine, 2)


class LiteNet(nn.Module):
    """RGB in −1 … 1 at a multiple of 32; log-depth (up to a constant), and F.

    Log-depth has half the resolution of the image, or all of it with `full_resolution`.
    """

    def __init__(self, width: int = FEATURE_CHANNELS, *, full_resolution: bool = False) -> None:
        super().__init__()
        self.encoder = Encoder()
        channels = [STAGES[i][3] for i in TAPS]
        self.lateral = nn.ModuleList(unit(c, width, act=False) for c in channels[1:])
        self.refine = nn.ModuleList(Refine(width) for _ in channels[1:])
        self.context = nn.Linear(channels[-1], width)
        fine = width // 2
        self.fine_lateral = unit(channels[0], fine, act=False)
        self.fine_reduce = unit(width, fine, act=False)
        self.fine_refine = Refine(fine)
        self.head = nn.Conv2d(fine, 1, 3, padding=1, padding_mode="replicate")
        self.upsampling = ConvexUpsampling(fine) if full_resolution else None

    def forward(
        self, x: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b 1 h2 w2"], Float[Tensor, "b c hf wf"]]:
        """log D at stride 2 or 1, and F, the decoder's map before the depth head, at stride 4."""
        half, *maps = self.encoder(x)
        context = self.context(maps[-1].mean(dim=(2, 3)))[:, :, None, None]
        y = self.refine[-1](self.lateral[-1](maps[-1]) + context)
        for lateral, refine, skip in zip(
            self.lateral[-2::-1], self.refine[-2::-1], maps[-2::-1], strict=True
        ):
            y = refine(grow(y, skip.shape[2:]) + lateral(skip))
        features = y
        y = self.fine_refine(grow(self.fine_reduce(y), half.shape[2:]) + self.fine_lateral(half))
        with exact(x):
            log_depth = self.head(y.float())
            if self.upsampling is not None:
                log_depth = self.upsampling(log_depth, y.float(), x.float())
        return log_depth, features


def exact(x: Tensor) -> AbstractContextManager[object]:
    """Float32 for what follows, also under autocast: bfloat16 has steps of 1 % in log-depth."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def grow(x: Float[Tensor, "b c h w"], size: tuple[int, ...]) -> Float[Tensor, "b c h2 w2"]:
    """Bilinear interpolation to another height and width."""
    return nnf.interpolate(x, size=size, mode="bilinear", align_corners=False)


class LiteNetwork:
    """LiteNet with the interface of `Estimator`: depth instead of its logarithm.

    With `coarse_pass` the network also sees the mirrored image at two thirds of its usual
    resolution, where its receptive field covers more of the scene. The low frequencies of log-depth
    are then the mean of both passes, and edges are those of the first (Miangoleh et al., "Boosting
    Monocular Depth Estimation Models to High-Resolution via Content-Adaptive Multi-Resolution
    Merging", CVPR 2021).
    """

    def __init__(self, net: LiteNet, device: str, *, coarse_pass: bool = False) -> None:
        self.net = net.eval().requires_grad_(False).to(device)
        self.coarse_pass = coarse_pass

    def __call__(self, pixels: Float[Tensor, "b 3 h w"]) -> Raw:
        """Depth at the network's resolution, and F."""
        log_depth, features = self.net(pixels)
        if self.coarse_pass:
            log_depth = log_depth + self.coarse_correction(pixels, log_depth)
        # Bounded, so that an odd image cannot overflow the exponential.
        return Raw(log_depth[:, 0].clamp(-10, 10).exp(), features)

    def coarse_correction(
        self, pixels: Float[Tensor, "b 3 h w"], log_depth: Float[Tensor, "b 1 h2 w2"]
    ) -> Float[Tensor, "b 1 h2 w2"]:
        """Half the difference to the log-depth of the coarse pass, on a grid with `COARSE_CELLS`
        cells along the longer side and interpolated."""
        height, width = pixels.shape[2:]
        scale = min(1.0, math.sqrt(COARSE_PIXELS / (height * width)))
        size = [max(1, round(scale * side / 32)) * 32 for side in (height, width)]
        small = nnf.interpolate(pixels, size=size, mode="bilinear", antialias=True)
        coarse = self.net(small.flip(3))[0].flip(3)
        cell = max(height, width) / COARSE_CELLS
        cells = max(1, round(height / cell)), max(1, round(width / cell))
        own, other = (nnf.interpolate(x, size=cells, mode="area") for x in (log_depth, coarse))
        difference = other - own
        # Both are known up to a constant.
        difference = difference - difference.flatten(1).median(dim=1).values[:, None, None, None]
        return 0.5 * grow(difference, log_depth.shape[2:])


@lru_cache(maxsize=8)
def load_lite(folder: str | Path = LITE_WEIGHTS, device: str = "cpu") -> Estimator:
    """The shipped model, or one trained by `scalefield train-mde`."""
    folder = verify_checksums(Path(folder))
    try:
        state = load_file(folder / "model.safetensors")
        config = read_json(folder / "config.json")
        revision = str(config["revision"])
        net = LiteNet(full_resolution=bool(config.get("full_resolution", False)))
        coarse_pass = bool(config.get("coarse_pass", False))
        revision += "-coarse" * coarse_pass
        # Stored in float16 without the batch counters, which inference never reads.
        counters = {k: v for k, v in net.state_dict().items() if not v.is_floating_point()}
        net.load_state_dict({name: tensor.float() for name, tensor in state.items()} | counters)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise InputError(f"{folder}: not the weights of lite ({one_line(e)})") from None
    network = LiteNetwork(net, device, coarse_pass=coarse_pass)
    return Estimator("lite", revision, "depth", PREPROCESS, network, device)


def load_imagenet_encoder(net: LiteNet, state: dict[str, Tensor]) -> None:
    """Copy published ImageNet weights (EfficientNet-Lite2, PyTorch names) into the encoder.

    Both lists run from stem to top with the same tensors in the same order.
    """
    theirs = [v for k, v in state.items() if not k.startswith(("_conv_head", "_bn1.", "_fc"))]
    ours = net.encoder.state_dict()
    if len(theirs) != len(ours):
        raise InputError(f"{len(ours)} tensors wanted for EfficientNet-Lite2, {len(theirs)} found")
    net.encoder.load_state_dict(dict(zip(ours, theirs, strict=True)))
