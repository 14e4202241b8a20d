"""MiDaS DPT and Depth Anything as their authors build them, small, with the published names.

Only what decides names and results is kept: timm's ViT and its BiT ResNet, DINOv2's ViT, and the
DPT heads. The release files are state dicts of these modules in larger sizes.
"""

import math

import torch
import torch.nn.functional as nnf
from torch import nn

EPS = 1e-6


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Gamma(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))


class Block(nn.Module):
    def __init__(self, width, heads, *, scaled):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=EPS), nn.LayerNorm(width, eps=EPS)
        self.attn = Attention(width, heads)
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)}
        )
        if scaled:
            self.ls1, self.ls2 = Gamma(width), Gamma(width)

    def forward(self, x):
        scale1, scale2 = (self.ls1.gamma, self.ls2.gamma) if hasattr(self, "ls1") else (1, 1)
        x = x + scale1 * self.attn(self.norm1(x))
        return x + scale2 * self.mlp["fc2"](nnf.gelu(self.mlp["fc1"](self.norm2(x))))


def same_padded(x, kernel, stride, value=0.0):
    """TensorFlow's padding, which BiT was trained with."""
    pad = []
    for size in reversed(x.shape[-2:]):
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        pad += [total // 2, total - total // 2]
    return nnf.pad(x, pad, value=value)


class StdConv2dSame(nn.Conv2d):
    def __init__(self, inputs, outputs, kernel, stride=1):
        super().__init__(inputs, outputs, kernel, stride, bias=False)

    def forward(self, x):
        var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        weight = (self.weight - mean) / (var + 1e-8).sqrt()
        return nnf.conv2d(same_padded(x, self.weight.shape[-1], self.stride[0]), weight,
                          stride=self.stride)  # fmt: skip


def group_norm(channels):
    return nn.GroupNorm(32, channels, eps=1e-5)


class Bottleneck(nn.Module):
    def __init__(self, inputs, outputs, stride, *, first):
        super().__init__()
        middle = outputs // 4
        if first:
            self.downsample = nn.ModuleDict(
                {"conv": StdConv2dSame(inputs, outputs, 1, stride), "norm": group_norm(outputs)}
            )
        self.conv1, self.norm1 = StdConv2dSame(inputs, middle, 1), group_norm(middle)
        self.conv2, self.norm2 = StdConv2dSame(middle, middle, 3, stride), group_norm(middle)
        self.conv3, self.norm3 = StdConv2dSame(middle, outputs, 1), group_norm(outputs)

    def forward(self, x):
        short = x
        if hasattr(self, "downsample"):
            short = self.downsample["norm"](self.downsample["conv"](x))
        x = nnf.relu(self.norm1(self.conv1(x)))
        x = nnf.relu(self.norm2(self.conv2(x)))
        return nnf.relu(self.norm3(self.conv3(x)) + short)


class ResNetV2(nn.Module):
    def __init__(self, stem, widths, depths):
        super().__init__()
        self.stem = nn.ModuleDict({"conv": StdConv2dSame(3, stem, 7, 2), "norm": group_norm(stem)})
        self.stages = nn.ModuleList()
        inputs = stem
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = [
                Bottleneck(inputs if j == 0 else width, width, 2 if i and not j else 1, first=not j)
                for j in range(depth)
            ]
            self.stages.append(nn.ModuleDict({"blocks": nn.Sequential(*blocks)}))
            inputs = width

    def forward(self, x):
        x = nnf.relu(self.stem["norm"](self.stem["conv"](x)))
        x = nnf.max_pool2d(same_padded(x, 3, 2, value=-float("inf")), 3, 2)
        states = []
        for stage in self.stages:
            x = stage["blocks"](x)
            states.append(x)
        return states


class Timm(nn.Module):
    """timm's VisionTransformer, with its classifier, which the release files carry along."""

    def __init__(self, width, depth, heads, grid, patch, backbone=None, outputs=3):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, width))
        self.patch_embed = nn.Module()
        if backbone is not None:
            self.patch_embed.backbone = backbone
        self.patch_embed.proj = nn.Conv2d(outputs, width, patch, patch)
        self.blocks = nn.ModuleList(Block(width, heads, scaled=False) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.head = nn.Linear(width, 10)


class Project(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(2 * width, width), nn.GELU())

    def forward(self, tokens):
        readout = tokens[:, :1].expand_as(tokens[:, 1:])
        return self.project(torch.cat([tokens[:, 1:], readout], -1))


class ResidualConvUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(nnf.relu(self.conv1(nnf.relu(x))))


class RefineNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out_conv = nn.Conv2d(width, width, 1)
        self.resConfUnit1, self.resConfUnit2 = ResidualConvUnit(width), ResidualConvUnit(width)

    def forward(self, x, lateral=None, size=None):
        if lateral is not None:
            x = x + self.resConfUnit1(lateral)
        x = self.resConfUnit2(x)
        size = size or [2 * n for n in x.shape[-2:]]
        return self.out_conv(nnf.interpolate(x, size=size, mode="bilinear", align_corners=True))


def scratch(channels, width):
    module = nn.Module()
    for i, inputs in enumerate(channels, 1):
        setattr(module, f"layer{i}_rn", nn.Conv2d(inputs, width, 3, padding=1, bias=False))
        setattr(module, f"refinenet{i}", RefineNet(width))
    return module


def fuse(module, maps):
    one, two, three, four = (getattr(module, f"layer{i}_rn")(m) for i, m in enumerate(maps, 1))
    x = module.refinenet4(four, size=three.shape[-2:])
    x = module.refinenet3(x, three, size=two.shape[-2:])
    x = module.refinenet2(x, two, size=one.shape[-2:])
    return module.refinenet1(x, one)


class Midas(nn.Module):
    """DPT-Hybrid or DPT-Large, as `midas.dpt_depth.DPTDepthModel` builds them."""

    def __init__(self, *, hybrid, width=128, depth=4, grid=4, fused=16):
        super().__init__()
        self.hybrid, self.depth = hybrid, depth
        backbone = ResNetV2(32, (128, 128, 256), (2, 1, 1)) if hybrid else None
        channels = (128, 128, 48, 48) if hybrid else (16, 24, 32, 40)
        heads = width // 64
        self.pretrained = nn.Module()
        self.pretrained.model = Timm(
            width, depth, heads, grid, 1 if hybrid else 16, backbone, 256 if hybrid else 3
        )

        def steps(channel, *resize):
            skipped = nn.Identity(), nn.Identity()  # a transposition and a reshape
            return nn.Sequential(Project(width), *skipped, nn.Conv2d(width, channel, 1), *resize)

        c1, c2, c3, c4 = channels
        if not hybrid:
            self.pretrained.act_postprocess1 = steps(c1, nn.ConvTranspose2d(c1, c1, 4, 4))
            self.pretrained.act_postprocess2 = steps(c2, nn.ConvTranspose2d(c2, c2, 2, 2))
        self.pretrained.act_postprocess3 = steps(c3)
        self.pretrained.act_postprocess4 = steps(c4, nn.Conv2d(c4, c4, 3, 2, 1))
        self.scratch = scratch(channels, fused)
        self.scratch.output_conv = nn.Sequential(
            nn.Conv2d(fused, fused // 2, 3, padding=1),
            nn.UpsamplingBilinear2d(scale_factor=2),  # align_corners=True
            nn.Conv2d(fused // 2, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 1, 1),
            nn.ReLU(),
        )

    def forward(self, pixels):
        net = self.pretrained.model
        maps, x = [], pixels
        if self.hybrid:
            states = net.patch_embed.backbone(pixels)
            maps, x = states[:2], states[-1]
        patches = net.patch_embed.proj(x)
        tokens = patches.flatten(2).transpose(1, 2)
        tokens = torch.cat([net.cls_token.expand(len(tokens), -1, -1), tokens], 1) + net.pos_embed
        taps = [self.depth * q // 4 - 1 for q in (1, 2, 3, 4)]
        for i, block in enumerate(net.blocks):
            tokens = block(tokens)
            if i in taps:
                number = taps.index(i) + 1
                if self.hybrid and number < 3:
                    continue
                steps = getattr(self.pretrained, f"act_postprocess{number}")
                flat = steps[0](tokens).transpose(1, 2)
                maps.append(steps[3:](flat.unflatten(2, patches.shape[-2:])))
        return self.scratch.output_conv(fuse(self.scratch, maps))[:, 0]


class DinoV2(nn.Module):
    def __init__(self, width, depth, grid):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, 14, 14)})
        self.blocks = nn.ModuleList(Block(width, width // 64, scaled=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPS)


class DepthAnything(nn.Module):
    """Depth Anything V1 (the last four layers) or V2 (one of each quarter)."""

    def __init__(self, *, layers, width=128, depth=8, grid=3, fused=16):
        super().__init__()
        self.layers = layers
        self.pretrained = DinoV2(width, depth, grid)
        c1, c2, c3, c4 = channels = (12, 16, 24, 32)
        self.depth_head = nn.Module()
        self.depth_head.projects = nn.ModuleList(nn.Conv2d(width, c, 1) for c in channels)
        self.depth_head.resize_layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(c1, c1, 4, 4),
                nn.ConvTranspose2d(c2, c2, 2, 2),
                nn.Identity(),
                nn.Conv2d(c4, c4, 3, 2, 1),
            ]
        )
        self.depth_head.scratch = scratch((c1, c2, c3, c4), fused)
        self.depth_head.scratch.output_conv1 = nn.Conv2d(fused, fused // 2, 3, padding=1)
        self.depth_head.scratch.output_conv2 = nn.Sequential(
            nn.Conv2d(fused // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.ReLU()
        )

    def forward(self, pixels):
        net, head = self.pretrained, self.depth_head
        patches = net.patch_embed["proj"](pixels)
        tokens = patches.flatten(2).transpose(1, 2)
        tokens = torch.cat([net.cls_token.expand(len(tokens), -1, -1), tokens], 1) + net.pos_embed
        maps = []
        for i, block in enumerate(net.blocks):
            tokens = block(tokens)
            if i in self.layers:
                number = len(maps)
                flat = net.norm(tokens)[:, 1:].transpose(1, 2).unflatten(2, patches.shape[-2:])
                maps.append(head.resize_layers[number](head.projects[number](flat)))
        x = head.scratch.output_conv1(fuse(head.scratch, maps))
        x = nnf.interpolate(x, size=pixels.shape[-2:], mode="bilinear", align_corners=True)
        return head.scratch.output_conv2(x)[:, 0]


def lively(network, seed=0):
    """Random weights under which no parameter is without influence, and no output is zero."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, parameter in network.named_parameters():
            if name.endswith(("output_conv.4.bias", "output_conv2.2.bias")):
                parameter.fill_(2.0)
    return network.eval()
