"""Generator, solve and apply relative to the limits of the device: 504×504, K = 8, on CUDA.

Both limits are measured in the same run: multiply-adds by large matrix products, bytes by large
copies. The work is counted in two ways. `layers` sums, over the convolutions, the longer of
their arithmetic and of reading their input and writing their output once; everything between
them (norms, activations, the gate) counts as fused away, and so does the averaging of F, which is
read as it is by its projection. `whole` is the longer of all arithmetic and of reading the inputs
and writing depth once: what no program can beat.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from benchmarks.cases import random_batch
from benchmarks.timing import spread, turn_by_turn
from benchmarks.worlds import Batch
from torch import Tensor, nn

from scalefield.basis.realtime import Inputs, captured, fused_steps, metric_depth

BATCH = 32
GEMM = 8192
COPY_BYTES = 1 << 31


def ceilings() -> dict[str, float]:
    """Operations a second by precision, and bytes a second read and written."""
    found = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        times = turn_by_turn({name: lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}, 5, "cuda")
        found[f"{name}_flops"] = 2 * GEMM**3 / spread(times.seconds[name])[0]
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = turn_by_turn({"copy": lambda: target.copy_(source)}, 5, "cuda")
    found["copy_bytes"] = 2 * COPY_BYTES / spread(times.seconds["copy"])[0]
    return found


def count(batch: Batch) -> list[tuple[float, float]]:
    """Operations and bytes of each convolution of the generator, by running it once."""
    found: list[tuple[float, float]] = []

    def note(layer: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        size = output.element_size()
        taps = layer.weight[0].numel()
        weights = layer.weight.numel() * layer.weight.element_size()
        of_f = layer is generator.feature_projection and batch.inputs.features is not None
        (x,) = (batch.inputs.features,) if of_f else inputs
        found.append((2.0 * taps * output.numel(), size * (x.numel() + output.numel()) + weights))

    generator = batch.generator
    layers = [m for m in generator.modules() if isinstance(m, nn.Conv2d)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    dataclasses.replace(batch, run=metric_depth)()
    for hook in hooks:
        hook.remove()
    return found


def least_seconds(batch: Batch, flops: float, bytes_s: float) -> dict[str, float]:
    """The two bounds on the time of one batch."""
    convolutions = count(batch)
    mde_depth, features = batch.inputs.mde_depth, batch.inputs.features
    ends = [mde_depth, mde_depth]  # relative depth in, metric depth out
    if features is not None:
        ends.append(features)
    outside = sum(t.numel() * t.element_size() for t in ends)
    # Outside the generator: log, average, upsample, exp and multiply read and write depth once.
    layers = sum(max(f / flops, b / bytes_s) for f, b in convolutions)
    layers += 2 * mde_depth.numel() * mde_depth.element_size() / bytes_s
    operations = sum(f for f, _ in convolutions)
    return {"layers": layers, "whole": max(operations / flops, outside / bytes_s)}


def variants(batch: Batch) -> dict[str, Callable[[], Batch]]:
    """Ways to run the same work; each is made when its turn comes."""
    return {
        "float32": lambda: batch,
        "bfloat16, channels last": lambda: cast(batch, torch.bfloat16),
        "bfloat16, channels last, compiled": lambda: compiled(cast(batch, torch.bfloat16)),
        "bfloat16, fused": lambda: fused(cast(batch, torch.bfloat16)),
    }


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    """Generator and features in a precision and channels last; the solve stays in float64."""
    generator = copy.deepcopy(batch.generator).to(dtype=dtype, memory_format=torch.channels_last)
    features = batch.inputs.features
    if features is not None:
        features = features.to(dtype=dtype, memory_format=torch.channels_last)
    inputs = Inputs(*batch.inputs[:3], features)
    return dataclasses.replace(batch, generator=generator, inputs=inputs)


def compiled(batch: Batch) -> Batch:
    """All of it through torch.compile."""
    return dataclasses.replace(batch, run=torch.compile(batch.run, dynamic=False))


def fused(batch: Batch) -> Batch:
    """As `Live` does it."""
    run = partial(metric_depth, steps=fused_steps(batch.generator))
    return dataclasses.replace(batch, run=run)


def measure(repeats: int, say: Callable[[str, object], None], *, compile_too: bool) -> None:
    """Report ceilings, then each variant at batch 32 and, captured, at batch 1, as they come."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    limits = ceilings()
    say("ceilings", {name: float(f"{value:.4g}") for name, value in limits.items()})
    for size in (BATCH, 1):
        batch = random_batch("cuda", size, channels=128, stride=504 / 288)
        for name, make in variants(batch).items():
            if "compiled" in name and not compile_too:
                continue
            try:
                say(f"batch {size}, {name}", one(make(), size, name, limits, repeats))
            except Exception as e:
                say(f"batch {size}, {name}", {"missing": f"{type(e).__name__}: {e}"[:300]})


def one(batch: Batch, size: int, name: str, limits: dict[str, float], repeats: int) -> dict:
    """Milliseconds as it is and as a graph, and the least that the device needs."""
    precision = "bf16" if "bfloat16" in name else "fp32"
    bounds = least_seconds(batch, limits[f"{precision}_flops"], limits["copy_bytes"])
    found: dict = {
        "batch": size,
        "least_ms": {k: float(f"{1e3 * v:.4g}") for k, v in bounds.items()},
        "plain_ms": milliseconds(batch, repeats),
    }
    try:
        found["graph_ms"] = milliseconds(captured(batch)[0].replay, repeats)
    except Exception as e:
        found["no graph"] = f"{type(e).__name__}: {e}".splitlines()[0][:300]
        torch.cuda.synchronize()
    return found


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Median and quartiles of one call."""
    times = turn_by_turn({"": work}, repeats, "cuda")
    if times.missing:
        raise RuntimeError(times.missing[""])
    return spread(1e3 * times.seconds[""])


if __name__ == "__main__":  # in a process of its own: a failed capture may spoil what follows
    measure(
        int(sys.argv[1]),
        lambda name, found: print(json.dumps({"name": name, "found": found}), flush=True),
        compile_too=sys.argv[2] == "True",
    )
