"""Video: a field whose linear weights live on from frame to frame, so that few anchors suffice."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.dense import dense_mean
from scalefield.deviation import dense_std
from scalefield.doubt import doubt
from scalefield.embedding import FieldMaps
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import (
    Field,
    FieldModel,
    condition,
    expected,
    said,
    spread,
    told,
)
from scalefield.recovery import Recovery, without
from scalefield.report import Rejection, Warning
from scalefield.scene import Scene
from scalefield.validation import require


@dataclass
class Stream:
    """`field` over the frames of one camera, one after another.

    The global scale, the linear modes' weights and the mean function's are a state w ~ N(m, P). A
    frame's anchors update it in closed form, and the next frame begins with it: its scale may have
    drifted, and the modes' weights are drawn back to their prior. What bends stays the frame's own.
    Thousands of anchors, as of a LiDAR, are solved in patches, as `field` does it; and as `field`
    does, a frame's own anchors are held against one another before they are heard.
    The estimator's unit must be steady, as that of `lite` and of metric models is.

        stream = Stream()
        for image, anchors in frames:
            recovery = stream(mde(image), anchors)     # a frame may have no anchors at all
    """

    method: Field = field(default_factory=Field)
    drift: float = 0.05
    """Standard deviation of the change of the global log-scale from one frame to the next."""
    forgetting: float = 0.15
    """Share of the modes' weights that is forgotten from one frame to the next."""
    state: tuple[Float[Tensor, " w"], Float[Tensor, "w w"]] | None = None
    """m and P: the constant, the modes, the mean function; None before the first anchors."""

    def __post_init__(self) -> None:
        require(0 <= self.drift < math.inf, "drift", "0 or more", self.drift)
        require(0 <= self.forgetting <= 1, "forgetting", "0 … 1", self.forgetting)
        free = self.method.level == "free"
        require(free, "level", "free in a stream, whose state it is", self.method.level)

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """The next frame's recovery; its anchors may be few, or none."""
        model = self.method.load()
        scene = model.scene(mde_output)
        given, (rows, columns) = anchors, anchors.pixels(mde_output.shape)
        usable = mde_output.valid[rows, columns].cpu().numpy()
        wrong, warnings, doubted = self.judged(model, scene, given, np.flatnonzero(usable))
        reason = "no relative depth here"
        holes = (Rejection(int(i), "no_relative_depth", reason) for i in np.flatnonzero(~usable))
        rejected = (*holes, *wrong)
        anchors = without(given, rejected)
        if self.state is None and len(anchors) == 0:
            return expected(model, scene)
        points, y, noise = said(model, scene, anchors)
        noise = noise if doubted is None else doubted
        if self.state is None:
            self.state = first_state(model, scene, y - points.mean)
        m, P = self.predicted(model)
        root = torch.linalg.cholesky(P)
        carried = carry(scene, m, root)
        # All linear parts but the slope are the state's now, with unit variance.
        kernel = dataclasses.replace(model.kernel, constant=0.0, linear=1.0, doubt=0.0)
        zero = y.new_zeros(())
        posterior, fallbacks = condition(kernel, carried.anchors(anchors), y, noise, offset=zero)
        # The modes come last among the linear parts, after the constant, the slope and the mean.
        left = posterior.linear_covariance()[3:, 3:]
        self.state = m + root @ posterior.weights(), root @ left @ root.mT
        factor = model.calibration if len(anchors) == 0 else spread(model, posterior)
        recovery = Recovery.from_log_scale(
            mde_output,
            given,
            dense_mean(posterior, carried),
            rejected=rejected,
            fallbacks=fallbacks,
            warnings=warnings,
            std_log=dense_std(posterior, carried).mul_(factor),
        )
        return dataclasses.replace(recovery, basis_maps=scene.maps.modes[0])

    def judged(
        self, model: FieldModel, scene: Scene, anchors: Anchors, which: Int64[np.ndarray, " m"]
    ) -> tuple[tuple[Rejection, ...], tuple[Warning, ...], Float[Tensor, " _"] | None]:
        """Whom `field` would leave out of these anchors in this frame, what it would say, and the
        others' standard deviations, where it doubts any."""
        if not self.method.robust or len(which) == 0:
            return (), (), None
        verdict = doubt(model.kernel, *said(model, scene, anchors[which]))
        return *told(verdict, anchors, which), verdict.noise[~verdict.wrong]

    def predicted(self, model: FieldModel) -> tuple[Float[Tensor, " w"], Float[Tensor, "w w"]]:
        """The state one frame later: the scale wanders, the weights return to their prior."""
        assert self.state is not None
        m, P = self.state
        keep = torch.full_like(m, 1 - self.forgetting)
        keep[0] = 1.0
        renewed = (1 - keep**2) * prior_variance(model, len(m) - 2).to(m)
        renewed[0] = self.drift**2
        return keep * m, keep[:, None] * P * keep + torch.diag(renewed)


def prior_variance(model: FieldModel, modes: int) -> Float[Tensor, " w"]:
    """Variance of the constant, the modes' weights, and the mean function's."""
    kernel = model.kernel
    deviations = [kernel.constant, *[kernel.linear] * modes, kernel.doubt]
    return torch.tensor([float(d) for d in deviations], dtype=torch.float64).square() + 1e-12


def first_state(
    model: FieldModel, scene: Scene, scale: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " w"], Float[Tensor, "w w"]]:
    """Before the first anchors are heard: their median, and the prior around it."""
    modes = scene.maps.layout.modes
    m = scale.new_zeros(modes + 2)
    m[0] = scale.quantile(0.5)
    return m, torch.diag(prior_variance(model, modes).to(scale))


def carry(scene: Scene, m: Float[Tensor, " w"], root: Float[Tensor, "w w"]) -> Scene:
    """The scene with the state in it: its modes are ψᵀL with P = LLᵀ, its mean is μ + ψᵀm."""
    maps, layout = scene.maps.maps, scene.maps.layout
    linear = torch.cat([torch.ones_like(maps[:, :1]), scene.maps.modes, scene.maps.mean], dim=1)
    modes = torch.einsum("bwij,wv->bvij", linear, root.to(maps.dtype))
    mean = scene.maps.mean + torch.einsum("bwij,w->bij", linear, m.to(maps.dtype))[:, None]
    rest = maps[:, layout.modes : -1]
    grown = dataclasses.replace(layout, modes=len(m))
    carried = FieldMaps(torch.cat([modes, rest, mean], dim=1), scene.maps.level, grown)
    return dataclasses.replace(scene, maps=carried)
