"""The field at every pixel: E[ℓ], whole or split by what explains it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.basis.grids import upsample
from scalefield.bends import (
    Bends,
    Sights,
    Terms,
    all_terms,
    pairs_at_once,
    rough_terms,
    smooth_terms,
)
from scalefield.cusps import cusps_for
from scalefield.hearing import FEW
from scalefield.kernel import term_names
from scalefield.lattice import Lattice, lattice_for
from scalefield.patchwork import Patchwork
from scalefield.posterior import Posterior
from scalefield.scene import Scene


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
    """What the bending terms say at every pixel, each alone or in sum.

    In large images that is interpolated between nodes and put right beside anchors, where rough
    terms have their cusps. Among many anchors nodes would have to stand so close that it is as
    cheap to compute rough terms at every pixel; smooth ones have no cusps and want few nodes.
    """
    kernel, shape = posterior.kernel, scene.mde_output.shape
    if not len(posterior.anchors):
        return scene.log_depth.new_zeros(len(kernel.terms) if each_term else 1, *shape)
    between, lattice = all_terms(kernel), lattice_for(scene, len(posterior.anchors))
    if lattice is None and smooth_terms(kernel):
        between, lattice = smooth_terms(kernel), lattice_for(scene, 0)
    if lattice is None:
        return exact_bends(posterior, scene, all_terms(kernel), each_term).unflatten(1, shape)
    made = interpolated_bends(posterior, scene, lattice, between, each_term)
    if beyond := tuple(j for j in all_terms(kernel) if j not in between):
        exact = exact_bends(posterior, scene, beyond, each_term)
        order = np.argsort(between + beyond)
        made = torch.cat([made, exact])[order] if each_term else made.add_(exact)
    return made.unflatten(1, shape)


def interpolated_bends(
    posterior: Posterior | Patchwork, scene: Scene, lattice: Lattice, terms: Terms, each_term: bool
) -> Float[Tensor, "terms m"]:
    """Some terms made at nodes and interpolated at every pixel, cusps restored."""
    whole = not each_term and terms == all_terms(posterior.kernel)
    if whole and isinstance(posterior, Posterior) and len(posterior.anchors) <= FEW:
        values = lattice.weighted(posterior)[:, None]
    else:
        values = bends_at(posterior, scene, lattice.sights.only(terms), terms)
        values = values if each_term else values.sum(dim=1, keepdim=True)
    made = lattice.spread(values).mT
    rough = tuple(j for j in rough_terms(posterior.kernel) if j in terms)
    if rough and isinstance(posterior, Posterior):
        groups = {terms.index(j): (j,) for j in rough} if each_term else {0: rough}
        for row, group in groups.items():
            cusps_for(scene, lattice).restore(posterior, made[row], group)
    return made


def exact_bends(
    posterior: Posterior | Patchwork, scene: Scene, terms: Terms, each_term: bool
) -> Float[Tensor, "terms m"]:
    """Some terms made at every pixel."""
    count = len(terms) if each_term else 1
    made = scene.log_depth.new_empty(count, scene.log_depth.numel())
    for some, sights in every_pixel(scene, terms):
        values = bends_at(posterior, scene, sights, terms)
        made[:, some] = values.mT if each_term else values.sum(dim=1)
    return made


def every_pixel(scene: Scene, terms: Terms) -> Iterator[tuple[slice, Sights]]:
    """What some terms look at in every pixel, row by row, and which pixels these are."""
    log_depth, width = scene.log_depth.flatten(), scene.mde_output.shape[1]
    step = pairs_at_once(log_depth) // 4
    for first in range(0, len(log_depth), step):
        some = log_depth[first : first + step]
        number = torch.arange(first, first + len(some), device=some.device)
        row = number.div(width, rounding_mode="floor")
        place = torch.stack([number % width, row], dim=1).float()
        yield slice(first, first + len(some)), Sights.at(scene, place, some, terms)


def bends_at(
    posterior: Posterior | Patchwork, scene: Scene, sights: Sights, terms: Terms
) -> Float[Tensor, "n terms"]:
    """What each of some terms says at points seen for them."""
    kernel, dtype = posterior.kernel, sights.amplitude.dtype
    bends = Bends(kernel, posterior.anchors, scene.middle, dtype, terms)
    if isinstance(posterior, Posterior):
        return bends.weighted(sights, posterior.alpha)
    made = torch.zeros_like(sights.amplitude)
    for number, where, share in posterior.shares(sights.position + scene.middle):
        near = bends[posterior.heard[number]]
        parts = near.weighted(sights[where], posterior.alphas[number])
        made.index_add_(0, where, share[:, None].to(dtype) * parts)
    return made
