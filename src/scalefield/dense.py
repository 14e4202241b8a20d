"""The field at every pixel: E[ℓ], whole or split by what explains it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.bends import Bends, Sights
from scalefield.cues import upsample
from scalefield.hearing import FEW
from scalefield.kernel import term_names
from scalefield.lattice import lattice_for
from scalefield.patchwork import Patchwork
from scalefield.posterior import Posterior
from scalefield.scene import Scene

BAND_PIXELS = 1 << 16
"""Pixels that are looked at at once where they are computed one by one."""


def dense_mean(posterior: Posterior | Patchwork, scene: Scene) -> Float[Tensor, "h w"]:
    """E[ℓ] at every pixel: the sum of `dense_parts`, without making each."""
    linear, maps = posterior.linear(), scene.maps
    on_grid = torch.einsum("bkhw,k->bhw", maps.modes, linear.weights.float())[:, None]
    on_grid = on_grid + maps.mean * linear.trust.float() + linear.constant.float()
    total = upsample(on_grid, scene.mde_output.shape)[0, 0]
    total = total.addcmul_(scene.log_depth, linear.slope.float())
    return total.add_(dense_bends(posterior, scene, False)[0]) if posterior.kernel.terms else total


def dense_parts(posterior: Posterior | Patchwork, scene: Scene) -> dict[str, Float[Tensor, "h w"]]:
    """E[ℓ] at every pixel, split by what explains it. Linear parts are made on the grid and
    upsampled; bends are made at full resolution, where log-depth has its edges."""
    linear, shape = posterior.linear(), scene.mde_output.shape
    modes = upsample(scene.maps.modes, shape)[0] * linear.weights.float()[:, None, None]
    parts = {
        "global": torch.ones_like(scene.log_depth) * linear.constant.float(),
        "mean": upsample(scene.maps.mean, shape)[0, 0] * linear.trust.float(),
        "slope": scene.log_depth * linear.slope.float(),
        **{f"mode {k}": mode for k, mode in enumerate(modes, start=1)},
    }
    if not posterior.kernel.terms:
        return parts
    bends = dense_bends(posterior, scene, True)
    return parts | dict(zip(term_names(posterior.kernel), bends, strict=True))


def dense_bends(
    posterior: Posterior | Patchwork, scene: Scene, each_term: bool
) -> Float[Tensor, "terms h w"]:
    """What the bending terms say at every pixel, each alone or in sum; in large images by
    interpolation between nodes."""
    lattice = lattice_for(scene, count := len(posterior.anchors))
    if lattice is not None and count <= FEW and not each_term and isinstance(posterior, Posterior):
        values = lattice.hearing.weighted(posterior)[:, None]
    else:
        sights = every_pixel(scene) if lattice is None else [lattice.sights]
        values = torch.cat([bends_at(posterior, scene, seen) for seen in sights])
        values = values if each_term else values.sum(dim=1, keepdim=True)
    made = values if lattice is None else lattice.spread(values)
    return made.mT.reshape(-1, *scene.mde_output.shape)


def every_pixel(scene: Scene) -> Iterator[Sights]:
    """What the bending terms look at in every pixel, row by row."""
    log_depth, width = scene.log_depth.flatten(), scene.mde_output.shape[1]
    for first in range(0, len(log_depth), BAND_PIXELS):
        some = log_depth[first : first + BAND_PIXELS]
        number = torch.arange(first, first + len(some), device=some.device)
        row = number.div(width, rounding_mode="floor")
        yield Sights.at(scene, torch.stack([number % width, row], dim=1).float(), some)


def bends_at(
    posterior: Posterior | Patchwork, scene: Scene, sights: Sights
) -> Float[Tensor, "n terms"]:
    """What each bending term says at some points."""
    if isinstance(posterior, Posterior):
        bends = Bends(posterior.kernel, posterior.anchors, scene.middle, torch.float32)
        return bends.weighted(sights, posterior.alpha)
    made = torch.zeros_like(sights.amplitude)
    for number, where, share in posterior.shares(sights.position + scene.middle):
        near = posterior.anchors[posterior.patches[number].near]
        bends = Bends(posterior.kernel, near, scene.middle, torch.float32)
        parts = bends.weighted(sights[where], posterior.alphas[number])
        made[where] += share[:, None].float() * parts
    return made
