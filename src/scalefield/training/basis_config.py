"""Hyper-parameters of the training of a basis map generator: our preset, and the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scalefield.anchor_sampling import REGIMES
from scalefield.basis.losses import LossWeights
from scalefield.basis.ridge import LITERAL, Ridge
from scalefield.errors import InputError
from scalefield.training.loop import OptimiserConfig


@dataclass(frozen=True)
class BasisTraining(OptimiserConfig):
    """Hyper-parameters. The defaults were chosen on val; `paper_preset` has the paper's values."""

    k: int = 8
    """K, the number of basis maps."""
    anchors: tuple[int, int] = (1, 30)
    """Least and largest number of anchors of an image in a step."""
    anchor_draw: Literal["fresh", "protocol"] = "fresh"
    """fresh: new anchors in every step. protocol: in every step the anchors that the benchmark's
    protocol draws for the image in the regime `validate`, as the paper's fixed seed does."""
    counts: Literal["log-uniform", "uniform"] = "log-uniform"
    """How the number of fresh anchors is drawn between the two of `anchors`."""
    anchor_jitter: float = 1.0
    """Shift of the fresh anchors' grid candidates, as a share of a grid cell."""
    validate: str = "low"
    """Regime whose validation loss chooses the checkpoint."""
    epochs: int = 16
    """Passes over the training frames."""
    batch: int = 24
    """Frames of a step, over all processes."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    precision: Literal["auto", "float32"] = "auto"
    """auto: on a GPU the network runs in bfloat16, and losses and solve in float32 and float64.
    The rounding of bfloat16 grows with the targets, which are large where nothing is centred and
    D_MDE has a small unit."""
    width: int = 64
    """Channels of the trunk."""
    pixels: int = 2048
    """Known pixels an image that the dense loss uses in a step, drawn anew; 0 for all that were
    kept in preparation."""
    beta: float = 0.1
    """Residual of log-depth at which SmoothL1 changes from square to absolute."""
    mirror: bool = True
    """Mirror half of the images."""
    stretch: float = 0.15
    """D_MDE becomes D^γ with log γ of this standard deviation, which varies the bias of the MDE."""
    offset_noise: float = 0.3
    """Standard deviation of an error of the offset, which only the global channel can correct."""
    feature_dropout: float = 0.2
    """Probability with which each channel of F is set to zero."""
    zero_features: bool = False
    """The F = 0 variant, same architecture."""
    losses: LossWeights = field(default_factory=LossWeights)
    ridge: Ridge = field(default_factory=Ridge)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(2, "k", "width")
        self.require_at_least(1, "epochs")
        self.require_at_least(0, "clip", "pixels", "beta", "anchor_jitter", "stretch")
        self.require_at_least(0, "offset_noise", "feature_dropout")
        least, most = self.anchors
        if not 1 <= least <= most:
            raise InputError(f"anchors must be two counts from 1 up, found {least} and {most}")

    @property
    def draws_nothing(self) -> bool:
        """Whether a frame has the same anchors, pixels and depth in every step."""
        changes = self.mirror or self.stretch or self.offset_noise or self.pixels
        return self.anchor_draw == "protocol" and not changes


def default_preset(k: int, regime: str, **changes: object) -> BasisTraining:
    """Our recipe: one model for all of low and below, or one from medium to high."""
    anchors = (1, 30) if regime == "low" else (30, 530)
    chosen = {"k": k, "anchors": anchors, "validate": regime}
    return BasisTraining(**(chosen | changes))  # type: ignore[arg-type]


def paper_preset(
    k: int, regime: str, *, fine_tune: bool = False, **changes: object
) -> BasisTraining:
    """The paper's recipe: 25 epochs in one regime, or 5 more to move a model to another one.

    The protocol's anchors with their fixed seed, all four losses as printed, a plain ridge, no
    augmentation, no average of the weights. What the paper leaves open keeps our defaults;
    docs/paper.md lists each choice.
    """
    literal = {
        "k": k,
        "anchors": REGIMES[regime],
        "anchor_draw": "protocol",
        "counts": "uniform",
        "anchor_jitter": 0.0,
        "validate": regime,
        "epochs": 5 if fine_tune else 25,
        "ema": 0.0,
        "clip": 0.0,
        "pixels": 0,
        "beta": 1.0,
        "mirror": False,
        "offset_noise": 0.0,
        "stretch": 0.0,
        "feature_dropout": 0.0,
        "precision": "float32",
        "losses": LossWeights(gate_reduction="sum"),
        "ridge": LITERAL,
    }
    return BasisTraining(**(literal | changes))  # type: ignore[arg-type]
