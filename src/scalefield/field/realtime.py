"""`LiveField`: `field` at the rate of a camera with a LiDAR, as one CUDA graph."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from scalefield.basis.realtime import captured
from scalefield.errors import InputError
from scalefield.field.blocks import Blocks, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.error_scale import kernel_of_image
from scalefield.field.image_inputs import MIN_NOISE_STD, ImageInputs
from scalefield.field.inference import calibrated
from scalefield.field.lattice import Lattice
from scalefield.field.model import FieldModel, load_field
from scalefield.field.network import FieldNet
from scalefield.field.outliers import detect_outliers
from scalefield.field.posterior import fit
from scalefield.field.shift import AffineMap, shift_posterior
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
    returned. On a processor the same steps run one after another.
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
        net = copy.deepcopy(model.net)  # the caller's stays where it is
        self.model = replace(model, net=net.to(target) if isinstance(net, FieldNet) else net)
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
        self.graph: torch.cuda.CUDAGraph | None = None
        if target.type == "cuda":
            self.graph, self.output = captured(self.run)

    @torch.no_grad()
    def run(self) -> LiveOutput:
        """Depth and standard deviation for what the buffers hold."""
        _, _, pixels, depth_m, noise = self.inputs
        model, config = self.model, self.inference
        uv = (pixels + 0.5).floor()
        inside = ((uv >= 0) & (uv <= self.last_uv)).all(dim=1)
        known = inside & (depth_m > 0) & (depth_m < torch.inf)
        columns, rows = uv.nan_to_num().clamp(min=0).minimum(self.last_uv).long().unbind(dim=1)
        measured = depth_m.double().where(known, 1.0).log()

        def observe(inputs: ImageInputs) -> Observations:
            at = inputs.pixels(rows, columns)
            y = measured - at.log_depth - inputs.log_depth_median
            return Observations(at, y, noise.double(), known)

        def without_outliers(observed: Observations, blocks: Blocks) -> Observations:
            if not self.robust:
                return observed
            found = detect_outliers(model.kernel, observed, blocks, config.outliers, static=True)
            return found.apply(observed)

        inputs = self.image_inputs()
        if inputs.affine is not None:
            few, index = observe(inputs).thinned(config.exact_block)
            few = without_outliers(few, Blocks.split(few, config))
            at, prior, scales = (rows[index], columns[index]), model.shift_prior, model.error_scales
            shift = shift_posterior(
                model.kernel, inputs.affine, few, at, prior=prior, scales=scales
            )
            inputs = inputs.with_shift(shift)
        observed = observe(inputs)
        blocks = Blocks.split(observed, config)
        observed = without_outliers(observed, blocks).with_spread_of_repeated_pixels()
        kernel = kernel_of_image(model.kernel, observed, model.error_scales, config.exact_block)
        fitted = fit(
            kernel, inputs, observed, config,
            blocks=blocks, lattice=self.lattice, static=True,
        )  # fmt: skip
        field, nothing = calibrated(model, fitted).render(), ~known.any()
        result = inputs.mde_depth * field.mean.exp(), field.std
        return LiveOutput(*(x.masked_fill(nothing, torch.nan) for x in result))

    def image_inputs(self) -> ImageInputs:
        """The kernel's inputs over the image, as `FieldModel.image_inputs`."""
        prediction, image = self.inputs.prediction, self.inputs.image if self.with_image else None
        relative: Tensor | AffineMap = prediction
        if self.affine:
            relative = AffineMap.normalised(prediction, prediction, self.kind)
        elif self.kind == "disparity":
            relative = prediction.reciprocal()
        return self.model.evaluate(relative, image, use_mean=self.use_mean)

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
            floor = torch.full_like(depth_m, MIN_NOISE_STD)
            buffers.noise[:n].copy_(torch.hypot(sigma_m / depth_m, floor))
        if image is not None:
            buffers.image.copy_(image, non_blocking=True)
        if self.graph is None:
            return self.run()
        self.graph.replay()
        return self.output
