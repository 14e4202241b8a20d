"""`FieldModel`: a learned kernel with its network, on disk and applied to an image."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from scalefield.basis.grids import grid_image, log_depth_and_level
from scalefield.errors import InputError, one_line
from scalefield.field.error_scale import ERROR_SCALES, ErrorScale, prior_factors
from scalefield.field.image_inputs import ChannelLayout, FieldMaps, ImageInputs
from scalefield.field.kernel import Kernel, StationaryTerm
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.field.shift import SHIFT_PRIOR, AffineMap, Shift
from scalefield.io import read_json, write_atomic, write_json
from scalefield.io.weights import WEIGHTS, verify_checksums
from scalefield.mde.hub import find_weights
from scalefield.mde.output import MDEOutput
from scalefield.runtime.devices import full_precision, on_device
from scalefield.runtime.threads import one_thread
from scalefield.validation import from_json


@dataclass(frozen=True, eq=False)
class FieldModel:
    """A learned kernel, the network that predicts its inputs, and the calibration of its std."""

    kernel: Kernel
    net: Callable[..., FieldMaps]
    """A `FieldNet`, or any function of log-depth, image and features that returns `FieldMaps`."""
    std_scale: float = 1.0
    """Factor on the posterior's standard deviation, chosen on val."""
    std_decay: float = 0.0
    """The factor is multiplied by n^−std_decay for n anchors."""
    prior_count: float = 10.0
    """Number of anchors at which the spread of an image's own leave-one-out residuals has the same
    weight as the learned one."""
    scale_prior_std: float = 0.5
    """Standard deviation of the expected log-depth of the image's median pixel."""
    shift_prior: Shift = SHIFT_PRIOR
    """Prior of the shift of an affine-invariant map (`scalefield.field.shift`)."""
    error_scales: tuple[ErrorScale, ...] = ERROR_SCALES
    """Hypotheses about how much the estimator errs (`scalefield.field.error_scale`)."""
    estimators: tuple[str, ...] | None = None
    """Names of the estimators in training. The mean function is set to zero for all others; None
    applies it to every estimator."""

    @property
    def prior_kernel(self) -> Kernel:
        """The kernel of an image before its first anchor."""
        return self.kernel.scaled(prior_factors(self.error_scales))

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors (float16) and config.json."""
        folder, net = Path(folder), self.net
        if not isinstance(net, FieldNet):
            raise InputError("only a model with a FieldNet can be saved")
        state = {name: x.half().contiguous().cpu() for name, x in net.state_dict().items()}
        write_atomic(folder / "model.safetensors", save(state))
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {"kernel": dataclasses.asdict(self.kernel), "net": dataclasses.asdict(net.config)}
        write_json(folder / "config.json", plain)

    @classmethod
    def load(cls, folder: str | Path) -> FieldModel:
        """Read what `save` wrote, ready for inference."""
        path = Path(folder) / "config.json"
        values = read_json(path)
        try:
            model = cls.from_config(values)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as e:
            raise InputError(f"{path}: not a field model's configuration ({one_line(e)})") from None
        net = model.net
        assert isinstance(net, FieldNet)
        try:
            state = load_file(path.with_name("model.safetensors"))
            weights = {name: tensor.float() for name, tensor in state.items()}
            net.load_state_dict(weights, assign=True)
        except (OSError, SafetensorError, RuntimeError) as e:
            raise InputError(f"{folder}: not the weights of such a field ({one_line(e)})") from None
        net.eval().requires_grad_(False)
        return model

    @classmethod
    def from_config(cls, values: dict[str, Any]) -> FieldModel:
        """A model of this configuration whose network has no weights yet."""
        values = dict(values)
        kernel, config = dict(values.pop("kernel")), dict(values.pop("net"))
        if isinstance(values.get("estimators"), list):
            values["estimators"] = tuple(values["estimators"])
        kernel["terms"] = tuple(from_json(StationaryTerm, term) for term in kernel["terms"])
        if "shift_prior" in values:
            values["shift_prior"] = Shift(*values["shift_prior"])
        if "error_scales" in values:
            values["error_scales"] = tuple(ErrorScale(*scale) for scale in values["error_scales"])
        config["layout"] = from_json(ChannelLayout, config["layout"])
        config["dilations"] = tuple(config["dilations"])
        with torch.device("meta"):  # a wrong size in the configuration costs no memory
            net = FieldNet(from_json(FieldNetConfig, config))
        return from_json(cls, {**values, "kernel": from_json(Kernel, kernel), "net": net})

    def on_device(self, device: torch.device) -> FieldModel:
        """The model with its network on a device; this one stays where it is."""
        if not isinstance(self.net, FieldNet):
            return self
        net = on_device(self.net, device)
        return self if net is self.net else dataclasses.replace(self, net=net)

    def knows(self, estimator: str) -> bool:
        """Whether the mean function applies to an estimator of this name."""
        return self.estimators is None or estimator in self.estimators

    def image_inputs(self, mde_output: MDEOutput) -> ImageInputs:
        """The kernel's inputs over the image, from one run of the network.

        The network sees an affine-invariant map at the mean of the shift's prior.
        """
        relative = AffineMap.of(mde_output) if mde_output.affine else mde_output.mde_depth
        features = mde_output.features
        model = self
        if isinstance(self.net, FieldNet):
            model = self.on_device(mde_output.prediction.device)
            features = features if self.net.config.feature_channels else None
        with full_precision():
            return model.evaluate(
                relative, mde_output.image, features, use_mean=self.knows(mde_output.model)
            )

    @torch.no_grad()
    def evaluate(
        self,
        relative: Float[Tensor, "h w"] | AffineMap,
        image: UInt8[Tensor, "h w 3"] | None,
        features: Float[Tensor, "c hf wf"] | None = None,
        *,
        use_mean: bool,
    ) -> ImageInputs:
        """`image_inputs` of a relative depth map, or of one with an unknown shift, on the network's
        device; `use_mean`: whether the mean function applies."""
        if isinstance(relative, AffineMap):
            affine, mde_depth = relative, relative.log_depth(self.shift_prior.mean).exp()
        else:
            affine, mde_depth = None, relative
        # The logarithm first: float64 maps may hold depths that float32 cannot.
        log_depth, median = log_depth_and_level(mde_depth[None])
        if image is not None:
            image = grid_image(image.to(log_depth.device), log_depth.shape[2:])[None]
        if features is not None:
            features = features[None].float()
        with one_thread():
            maps = self.net(log_depth.float(), image, features)
        maps = maps if use_mean else maps.without_mean()
        inputs = ImageInputs(mde_depth, maps, median[0], affine)
        if affine is None:
            return inputs
        return dataclasses.replace(inputs, shift_prior=self.shift_prior).with_shift(
            self.shift_prior
        )


@lru_cache(maxsize=4)
def load_field(name: str | Path) -> FieldModel:
    """A field model by shipped name, folder or hub id `owner/name[@revision]`."""
    shipped = WEIGHTS / name
    if not shipped.is_dir() and not Path(name).is_dir():
        if str(name).count("/") == 1:
            return FieldModel.load(find_weights(str(name)).folder)
        names = sorted(p.parent.name for p in WEIGHTS.glob("field*/config.json"))
        raise InputError(
            f"no field model {str(name)!r}: not a folder, nor a hub id owner/name, nor one of "
            f"{names}"
        )
    return FieldModel.load(verify_checksums(shipped) if shipped.is_dir() else name)
