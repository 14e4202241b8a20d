"""`LiveField`: `field` at the rate of a camera with a LiDAR, as one CUDA graph."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from scalefield.basis.realtime import captured
from scalefield.errors import InputError
from scalefield.field.condition import condition
from scalefield.field.config import InferenceConfig
from scalefield.field.lattice import Lattice
from scalefield.field.model import FieldModel, load_field
from scalefield.field.network import FieldNet
from scalefield.field.observations import MIN_NOISE_STD, Readings
from scalefield.field.shift import SAMPLES, AffineMap
from scalefield.mde.output import Kind, affine_by_default
from scalefield.runtime.devices import check_device
from scalefield.validation import require_choice


class LiveInputs(NamedTuple):
    """Buffers that a graph reads."""

    prediction: Float[Tensor, "h w"]
    """Relative depth or disparity, finite everywhere, and positive unless its shift is unknown."""
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

        live = LiveField((375, 1242), kind="disparity", device="cuda")
        depth_m, std_log = live(disparity, pixels, lidar_m, image=image)

    On a GPU the network, the outlier search, the solve and the evaluation at every pixel are
    captured as one CUDA graph when the object is made. A call overwrites what the one before it
    returned. On a processor a call is the same as `recover`, and `max_anchors` has no effect; the
    graph differs from it by less than the interpolation between the nodes of the lattice, because
    its lattice and its blocks are those of `max_anchors` anchors.

    Pixels whose prediction is not finite are holes: anchors on them are left out, and depth there
    is NaN. An anchor whose `sigma_m` is not finite has the noise of one without.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        kind: Kind = "depth",
        affine: bool | None = None,
        model: str | Path | FieldModel = "field",
        max_anchors: int = 20_000,
        robust: bool = True,
        with_image: bool = True,
        estimator: str = "",
        inference: InferenceConfig | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """`kind` and `affine`: what the estimator predicts, and whether its shift is unknown, as in
        `recover`; disparity is taken as affine-invariant unless `affine` says otherwise.
        `with_image`: whether calls bring the image. `estimator`: name of the MDE, for which the
        mean function is used if the model was trained with it."""
        if min(*shape, max_anchors) < 1:
            raise InputError(
                f"shape and max_anchors must be positive, found {shape} and {max_anchors}"
            )
        model = model if isinstance(model, FieldModel) else load_field(model)
        if isinstance(model.net, FieldNet) and model.net.config.feature_channels:
            raise InputError("LiveField takes a model without features F, found one with them")
        target = torch.device(check_device(str(device)))
        self.model = model.on_device(target)
        require_choice("kind", kind, get_args(Kind))
        self.kind, self.affine = kind, affine_by_default(kind) if affine is None else affine
        self.robust, self.with_image = robust, with_image
        self.inference = inference or InferenceConfig()
        self.use_mean = model.knows(estimator)
        self.inputs = LiveInputs(
            torch.ones(shape, device=target),
            torch.zeros(*shape, 3, dtype=torch.uint8, device=target),
            torch.zeros(max_anchors, 2, device=target),
            torch.zeros(max_anchors, device=target),
            torch.full((max_anchors,), float(model.kernel.noise_std), device=target),
        )
        self.last_uv = torch.tensor([shape[1] - 1.0, shape[0] - 1.0], device=target)
        self.lattice = Lattice.of(shape, max_anchors, self.inference, target)
        self.static = target.type == "cuda"
        """Whether shapes may not depend on the anchors, as in a graph."""
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.static:
            self.graph, self.output = captured(self.run)

    @torch.no_grad()
    def run(self) -> LiveOutput:
        """Depth and standard deviation for what the buffers hold."""
        _, _, pixels, depth_m, noise = self.inputs
        uv = (pixels + 0.5).floor()
        inside = ((uv >= 0) & (uv <= self.last_uv)).all(dim=1)
        columns, rows = uv.nan_to_num().clamp(min=0).minimum(self.last_uv).long().unbind(dim=1)
        relative, valid = self.relative_depth()
        known = inside & (depth_m > 0) & (depth_m < torch.inf) & valid[rows, columns]
        measured = depth_m.double().where(known, 1.0).log()
        readings = Readings(rows, columns, measured, noise.double(), known)
        if not self.static:
            readings = Readings(*(x[known] for x in readings))
            if len(readings.rows) == 0:
                nothing = torch.full_like(self.inputs.prediction, torch.nan)
                return LiveOutput(nothing, nothing.clone())
        image = self.model.evaluate(
            relative, self.inputs.image if self.with_image else None, use_mean=self.use_mean
        )
        posterior = condition(
            self.model,
            image,
            readings,
            robust=self.robust,
            config=self.inference,
            lattice=self.lattice if self.static else None,
        )
        field, nothing = posterior.render(), ~valid | ~known.any()
        result = posterior.image.mde_depth * field.mean.exp(), field.std
        return LiveOutput(*(x.masked_fill(nothing, torch.nan) for x in result))

    def relative_depth(self) -> tuple[Float[Tensor, "h w"] | AffineMap, Bool[Tensor, "h w"]]:
        """The prediction as `FieldModel.evaluate` takes it, and the pixels that have one; holes
        have the median of the others."""
        prediction = self.inputs.prediction
        valid = prediction.isfinite() & (self.affine | (prediction > 0))
        known = prediction.masked_fill(~valid, torch.inf).flatten()
        known = known[:: 1 + len(known) // SAMPLES].sort().values
        # A lone index would be fetched by the host.
        middle = ((known < torch.inf).sum(dim=0, keepdim=True) - 1).clamp(min=0) // 2
        filled = torch.where(valid, prediction, known[middle].nan_to_num(posinf=1.0))
        if self.affine:
            return AffineMap.normalised(filled, filled, self.kind), valid
        return filled.reciprocal() if self.kind == "disparity" else filled, valid

    def __call__(
        self,
        prediction: Float[Tensor, "_ _"],
        pixels: Float[Tensor, "_ _"],
        depth_m: Float[Tensor, " _"],
        *,
        image: UInt8[Tensor, "_ _ 3"] | None = None,
        sigma_m: Float[Tensor, " _"] | None = None,
    ) -> LiveOutput:
        """Metric depth and the standard deviation of its logarithm; see `LiveInputs`."""
        buffers, n = self.inputs, len(depth_m)
        if prediction.shape != buffers.prediction.shape:
            raise InputError(
                f"a prediction of shape {tuple(buffers.prediction.shape)} wanted, "
                f"found {tuple(prediction.shape)}"
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
        buffers.prediction.copy_(prediction, non_blocking=True)
        buffers.pixels[:n].copy_(pixels, non_blocking=True)
        buffers.depth_m[:n].copy_(depth_m, non_blocking=True)
        buffers.depth_m[n:] = 0
        buffers.noise[:] = float(self.model.kernel.noise_std)
        if sigma_m is not None:
            noise = torch.hypot(sigma_m / depth_m, torch.full_like(depth_m, MIN_NOISE_STD))
            known = (noise > 0) & (noise < torch.inf)
            buffers.noise[:n].copy_(noise.where(known, float(self.model.kernel.noise_std)))
        if image is not None:
            buffers.image.copy_(image, non_blocking=True)
        if self.graph is None:
            return self.run()
        self.graph.replay()
        return self.output
