"""`LiveField`: `field` at the rate of a camera with a LiDAR, as one CUDA graph."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from scalefield.basis.cues import grid_image, log_depth_and_level
from scalefield.basis.realtime import captured
from scalefield.errors import InputError
from scalefield.field.blocks import Blocks, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.inference import (
    calibrated_std,
    kernel_of_image,
    with_spread_of_repeated_pixels,
)
from scalefield.field.local import Lattice, PixelSampler
from scalefield.field.model import FieldModel, load_field
from scalefield.field.network import FieldNet
from scalefield.field.outliers import detect_outliers
from scalefield.field.posterior import StaticShapes, fit
from scalefield.runtime.devices import check_device
from scalefield.runtime.threads import one_thread

MAX_UNION = 48
"""Anchors of a cell: the neighbours of its four nodes, of which few differ."""


class LiveInputs(NamedTuple):
    """Buffers that a graph reads."""

    mde_depth: Float[Tensor, "h w"]
    """D_MDE, positive and finite everywhere, as `MDEOutput.mde_depth` is."""
    image: UInt8[Tensor, "h w 3"]
    pixels: Float[Tensor, "n 2"]
    """(u, v) of the anchors; pixel centres are at integers."""
    depth_m: Float[Tensor, " n"]
    """Depth of the anchors; 0 where there is none."""
    noise: Float[Tensor, " n"]
    """Standard deviation of the anchors' log-depth."""


class LiveOutput(NamedTuple):
    """Maps of the image's size; NaN without any anchor."""

    depth_m: Float[Tensor, "h w"]
    std_log: Float[Tensor, "h w"]


class LiveField:
    """`field` for images of one size with at most `max_anchors` anchors.

        live = LiveField((375, 1242), device="cuda")
        depth_m, std_log = live(mde_depth, pixels, lidar_m, image=image)

    On a GPU the network, the outlier search, the solve and the evaluation at every pixel are
    captured as one CUDA graph when the object is made. A call overwrites what the one before it
    returned. On a processor the same steps run one after another.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        model: str | Path | FieldModel = "field",
        max_anchors: int = 20_000,
        robust: bool = True,
        with_image: bool = True,
        estimator: str = "",
        inference: InferenceConfig | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """`with_image`: whether calls bring the image. `estimator`: name of the MDE, for which the
        mean function is used if the model was trained with it."""
        if min(*shape, max_anchors) < 1:
            raise InputError(
                f"shape and max_anchors must be positive, found {shape} and {max_anchors}"
            )
        model = model if isinstance(model, FieldModel) else load_field(model)
        if isinstance(model.net, FieldNet) and model.net.config.feature_channels:
            raise InputError("LiveField takes a model without features F, found one with them")
        target = torch.device(check_device(str(device)))
        net = copy.deepcopy(model.net)  # the caller's stays where it is
        self.model = replace(model, net=net.to(target) if isinstance(net, FieldNet) else net)
        self.robust, self.with_image = robust, with_image
        self.inference = inference or InferenceConfig()
        self.mean_known = model.estimators is None or estimator in model.estimators
        noise = float(model.kernel.noise_std)
        self.inputs = LiveInputs(
            torch.ones(shape, device=target),
            torch.zeros(*shape, 3, dtype=torch.uint8, device=target),
            torch.zeros(max_anchors, 2, device=target),
            torch.zeros(max_anchors, device=target),
            torch.full((max_anchors,), noise, device=target),
        )
        self.last_uv = torch.tensor([shape[1] - 1.0, shape[0] - 1.0], device=target)
        cell_px = self.inference.cell_size_px(shape, max_anchors)
        sampler = PixelSampler(model.kernel, Lattice(shape, cell_px, target))
        self.static = StaticShapes(sampler, MAX_UNION)
        self.graph: torch.cuda.CUDAGraph | None = None
        if target.type == "cuda":
            self.graph, self.output = captured(self.run)

    @torch.no_grad()
    def run(self) -> LiveOutput:
        """Depth and standard deviation for what the buffers hold."""
        mde_depth, image, pixels, depth_m, noise = self.inputs
        model = self.model
        log_depth, median = log_depth_and_level(mde_depth[None])
        picture = grid_image(image, log_depth.shape[2:])[None] if self.with_image else None
        with one_thread():
            maps = model.net(log_depth.float(), picture, None)
        maps = maps if self.mean_known else maps.without_mean()
        inputs = ImageInputs(mde_depth, maps, median[0])
        uv = (pixels + 0.5).floor()
        inside = ((uv >= 0) & (uv <= self.last_uv)).all(dim=1)
        known = inside & (depth_m > 0) & (depth_m < torch.inf)
        columns, rows = uv.nan_to_num().clamp(min=0).minimum(self.last_uv).long().unbind(dim=1)
        at = inputs.pixels(rows, columns)
        y = depth_m.double().where(known, 1.0).log() - at.log_depth - inputs.log_depth_median
        observed = Observations(at, y, noise.double(), known)
        config = self.inference
        blocks = Blocks.split(observed, config)
        if self.robust:
            found = detect_outliers(model.kernel, observed, blocks, config.outliers, static=True)
            observed = found.apply(observed)
        observed = with_spread_of_repeated_pixels(observed, inputs)
        kernel = kernel_of_image(model, observed, config)
        fitted = fit(kernel, inputs, observed, config, blocks=blocks, static=self.static)
        std_log = calibrated_std(model, fitted)
        result, nothing = (mde_depth * fitted.mean().exp(), std_log), ~known.any()
        return LiveOutput(*(x.masked_fill(nothing, torch.nan) for x in result))

    def __call__(
        self,
        mde_depth: Float[Tensor, "_ _"],
        pixels: Float[Tensor, "_ _"],
        depth_m: Float[Tensor, " _"],
        *,
        image: UInt8[Tensor, "_ _ 3"] | None = None,
        sigma_m: Float[Tensor, " _"] | None = None,
    ) -> LiveOutput:
        """Metric depth and the standard deviation of its logarithm; see `LiveInputs`."""
        buffers, n = self.inputs, len(depth_m)
        if mde_depth.shape != buffers.mde_depth.shape:
            raise InputError(
                f"relative depth of shape {tuple(buffers.mde_depth.shape)} wanted, "
                f"found {tuple(mde_depth.shape)}"
            )
        if pixels.shape != (n, 2) or depth_m.ndim != 1:
            raise InputError(
                "pixels of shape (n, 2) and depth_m of (n,) wanted, "
                f"found {tuple(pixels.shape)} and {tuple(depth_m.shape)}"
            )
        if n > len(buffers.depth_m):
            raise InputError(f"{n} anchors given, at most {len(buffers.depth_m)} were asked for")
        if (image is not None) != self.with_image:
            wanted = "an" if self.with_image else "no"
            raise InputError(f"{wanted} image wanted: this was made with_image={self.with_image}")
        buffers.mde_depth.copy_(mde_depth, non_blocking=True)
        buffers.pixels[:n].copy_(pixels, non_blocking=True)
        buffers.depth_m[:n].copy_(depth_m, non_blocking=True)
        buffers.depth_m[n:] = 0
        buffers.noise[:] = float(self.model.kernel.noise_std)
        if sigma_m is not None:
            buffers.noise[:n].copy_(torch.hypot(sigma_m / depth_m, torch.full_like(depth_m, 1e-3)))
        if image is not None:
            buffers.image.copy_(image, non_blocking=True)
        if self.graph is None:
            return self.run()
        self.graph.replay()
        return self.output
