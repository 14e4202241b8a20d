"""`Live`: metric depth at a camera's rate, without synchronisation with the host.

`recover` checks every anchor, computes a standard deviation and reports, for which the host must
wait for the GPU. Here generator, solve and application run as one CUDA graph that is captured once
and replayed for every image of the same size.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import SubprocessError
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.basis.generator import Generator
from scalefield.basis.grids import grid_log_depth, sample_at, upsample
from scalefield.basis.pretrained import load_generator
from scalefield.basis.ridge import solve
from scalefield.errors import InputError, counted, one_line
from scalefield.runtime.devices import check_device, fastest_kernels, full_precision

WARM_UP = 3
"""Runs before a capture, in which libraries select kernels and allocate memory pools."""


class Inputs(NamedTuple):
    """Arguments of `metric_depth` for b images of one size."""

    mde_depth: Float[Tensor, "b h w"]
    """D_MDE, positive and finite everywhere, as `MDEOutput.mde_depth` is."""
    pixels: Float[Tensor, "b n 2"]
    """(u, v) of the anchors, pixel centres at integers."""
    depth_m: Float[Tensor, "b n"]
    """Depth of the anchors in metres. Anchors outside the image, or whose depth is not positive and
    finite, are ignored: pad sets of different sizes with zeros."""
    features: Float[Tensor, "b c hf wf"] | None = None
    """F, for a generator that was trained with it."""


class Steps(NamedTuple):
    """The two steps over all cells or pixels."""

    basis_maps: Callable[[Tensor | None, Tensor], Tensor]
    """E in float32, on its grid, from F and D."""
    apply: Callable[[Tensor, Tensor], Tensor]
    """D̂ from D and ℓ on the grid."""


def torch_steps(generator: Generator) -> Steps:
    """The steps in plain torch."""
    dtype = generator.basis_head.weight.dtype

    def basis_maps(features: Tensor | None, mde_depth: Tensor) -> Tensor:
        log_depth = grid_log_depth(mde_depth, generator.config.cells).to(dtype)
        return generator(features, log_depth).basis_maps.float()

    def apply(mde_depth: Tensor, log_scale: Tensor) -> Tensor:
        shape = (mde_depth.shape[1], mde_depth.shape[2])
        return mde_depth * upsample(log_scale[:, None], shape)[:, 0].exp()

    return Steps(basis_maps, apply)


def fused_steps(generator: Generator) -> Steps:
    """The steps by `fused`; by torch without Triton, and for norms whose groups do not have eight
    channels."""
    if generator.config.width % 8:
        return torch_steps(generator)
    try:
        from scalefield.basis.fused import FusedGenerator, apply

        steps = Steps(FusedGenerator(generator), apply)
        steps.basis_maps(None, torch.ones(1, 2, 2, device=generator.basis_head.weight.device))
    except ImportError:
        return torch_steps(generator)
    except (RuntimeError, OSError, SubprocessError) as e:  # for example, Triton needs a C compiler
        warnings.warn(f"Triton does not work here ({one_line(e)}): slower without", stacklevel=3)
        return torch_steps(generator)
    return steps


@torch.no_grad()
def metric_depth(
    generator: Generator, inputs: Inputs, steps: Steps | None = None
) -> Float[Tensor, "b h w"]:
    """D̂ = D · e^ℓ with ℓ = Eᵀw of each image, as `Basis` recovers it; NaN without any anchor.

    The generator may be in half precision; the solve is in float64. `steps`: `torch_steps` by
    default.
    """
    steps = steps or torch_steps(generator)
    mde_depth, pixels, depth_m, features = inputs
    shape = (mde_depth.shape[1], mde_depth.shape[2])
    maps = steps.basis_maps(features, mde_depth)

    column, row = (pixels + 0.5).floor().unbind(dim=-1)
    inside = (column >= 0) & (column < shape[1]) & (row >= 0) & (row < shape[0])
    known = inside & (depth_m > 0) & depth_m.isfinite()
    # Where nothing is known any pixel will do. Whole numbers, because float32 counts to 16 million.
    sides = ((column, shape[1]), (row, shape[0]))
    column, row = (at.nan_to_num().clamp(0, n - 1).long() for at, n in sides)
    mde_at_anchors = mde_depth.flatten(1).gather(1, row * shape[1] + column)
    y = depth_m.masked_fill(~known, 1.0).double().log() - mde_at_anchors.double().log()
    position = torch.stack([(2 * column + 1) / shape[1] - 1, (2 * row + 1) / shape[0] - 1], dim=-1)
    solution = solve(sample_at(maps, position), y, known.double(), generator.config.ridge)

    # Upsampling is linear: ℓ is combined on the grid and one map is upsampled, not K.
    log_scale = solution.log_scale(maps)
    nothing = ~known.any(dim=1)[:, None, None]
    return steps.apply(mde_depth, log_scale.masked_fill(nothing, torch.nan))


class Live:
    """`metric_depth` for images of one size, with at most `anchors` anchors each.

        live = Live("basis-depth-k8", (480, 640), device="cuda", dtype=torch.float16)
        depth_m = live(mde_depth, pixels, lidar_m)

    On a GPU it is captured as a CUDA graph when it is made. What a call returns is overwritten by
    the next one; clone what shall stay.
    """

    def __init__(
        self,
        generator: str | Path | Generator,
        shape: tuple[int, int],
        *,
        anchors: int = 512,
        batch: int = 1,
        features: tuple[int, int, int] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`features`: channels, height and width of F, for a generator that was trained with it.
        `dtype`: of the generator. torch.float16 is faster on a GPU, and a test holds its log-depth
        to within 0.005 of float32's; torch.bfloat16 is ten times less accurate."""
        if not isinstance(generator, Generator):
            generator = load_generator(generator)
        wanted = 0 if generator.config.zero_features else generator.config.feature_channels
        if wanted and (features is None or features[0] != wanted):
            raise InputError(
                f"this generator was trained with features of {wanted} channels: give features="
                f"({wanted}, height, width), found {features}"
            )
        if min(*shape, anchors, batch) < 1:
            raise InputError(
                f"shape, anchors and batch must be positive, found {shape}, {anchors}, {batch}"
            )
        if not dtype.is_floating_point:
            raise InputError(f"dtype must be a floating type, found {dtype}")
        device = check_device(str(device))
        # A copy: the caller's stays where and what it is.
        self.generator = copy.deepcopy(generator).to(device, dtype).eval()
        self.generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.inputs = Inputs(
            torch.ones(batch, *shape, device=device),
            torch.zeros(batch, anchors, 2, device=device),
            torch.zeros(batch, anchors, device=device),
        )
        if wanted and features is not None:
            zeros = torch.zeros(batch, *features, device=device, dtype=dtype)
            lying = zeros.to(memory_format=torch.channels_last)
            self.inputs = self.inputs._replace(features=lying)
        on_gpu = self.inputs.mde_depth.is_cuda
        self.steps = (fused_steps if on_gpu else torch_steps)(self.generator)
        self.graph: torch.cuda.CUDAGraph | None = None
        if on_gpu:
            self.graph, self.depth_m = captured(self.run)

    def run(self) -> Float[Tensor, "b h w"]:
        """Metric depth of the captured inputs."""
        return metric_depth(self.generator, self.inputs, self.steps)

    def __call__(
        self,
        mde_depth: Float[Tensor, "_ _ _"],  # sizes are checked below, with a sentence
        pixels: Float[Tensor, "*_ 2"],
        depth_m: Float[Tensor, "*_ _"],
        features: Float[Tensor, "_ _ _ _"] | None = None,
    ) -> Float[Tensor, "b h w"]:
        """Metric depth of each image; for the arguments see `Inputs`."""
        buffers, n = self.inputs, depth_m.shape[-1]
        batch = len(buffers.depth_m)
        if depth_m.shape != (batch, n) or pixels.shape != (batch, n, 2):
            raise InputError(
                f"pixels of shape ({batch}, n, 2) and depth_m of ({batch}, n) wanted, "
                f"found {tuple(pixels.shape)} and {tuple(depth_m.shape)}"
            )
        if n > buffers.depth_m.shape[1]:
            most = buffers.depth_m.shape[1]
            raise InputError(f"{counted(n, 'anchor')} given, more than the {most} it was made for")
        if mde_depth.shape != buffers.mde_depth.shape:
            raise InputError(
                f"made for relative depth of shape {tuple(buffers.mde_depth.shape)}, "
                f"found {tuple(mde_depth.shape)}"
            )
        buffers.mde_depth.copy_(mde_depth, non_blocking=True)
        buffers.pixels[:, :n].copy_(pixels, non_blocking=True)
        buffers.depth_m[:, :n].copy_(depth_m, non_blocking=True)
        buffers.depth_m[:, n:] = 0
        if buffers.features is not None:
            if features is None or features.shape != buffers.features.shape:
                raise InputError(
                    f"features of shape {tuple(buffers.features.shape)} wanted, "
                    f"found {None if features is None else tuple(features.shape)}"
                )
            buffers.features.copy_(features, non_blocking=True)
        if self.graph is None:
            return self.run()
        self.graph.replay()
        return self.depth_m


Result = TypeVar("Result")


def captured(work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
    """A captured CUDA graph, and the tensor that holds the result of each replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with full_precision(), fastest_kernels():
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = work()
    return graph, result
