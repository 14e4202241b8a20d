"""What every training loop shares: seeds, schedule, EMA, checkpoints without pickle, metrics.

All randomness of a step comes from (seed, step), so nothing but step, parameters and optimiser
needs to be saved, and a resumed run is the run that was never interrupted.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from tqdm import tqdm

from scalefield.errors import InputError, import_extra, one_line
from scalefield.io import as_json, config_differences, read_json, write_atomic, write_json
from scalefield.runtime.devices import check_device
from scalefield.runtime.provenance import provenance

Job = TypeVar("Job")
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """Options of the optimiser that all recipes share: AdamW, a learning rate with warm-up and
    cosine decay, and a moving average of the weights. Recipes inherit it and set their defaults."""

    batch: int = 16
    """Frames of a step, over all processes."""
    rate: float = 1e-3
    """Learning rate of AdamW after the warm-up; it falls to zero along a cosine."""
    weight_decay: float = 0.05
    """Weight decay of AdamW."""
    warmup: int = 50
    """Steps in which the rate rises from zero."""
    ema: float = 0.998
    """Decay of the moving average of the weights that is validated and saved; 0 for none."""
    seed: int = 0
    """Seed of the initial weights and of everything that is drawn in training."""

    def __post_init__(self) -> None:
        self.require_at_least(1, "batch")
        self.require_at_least(0, "rate", "weight_decay", "warmup", "ema", "seed")
        if self.ema >= 1 or self.seed >= 2**63:
            raise InputError(
                f"ema must be below 1 and seed below 2⁶³, found {self.ema} and {self.seed}"
            )

    def require_at_least(self, least: int, *names: str) -> None:
        """Raise InputError where a field of these names is smaller, infinite or not a number."""
        for name in names:
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise InputError(f"{name} must be {least} or more, found {value}")


def step_generator(seed: int, step: int) -> torch.Generator:
    """The random generator of one step. Also seeds the global one, which dropout uses."""
    key = (seed * 1_000_003 + step) % 2**63
    torch.manual_seed(key)
    return torch.Generator().manual_seed(key)


def cosine_rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up to 1, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Schedule:
    """Progress of a run that ends after a number of steps or a time, whichever comes first.

    Learning rates follow the progress. A run with a time limit therefore ends with a rate of zero
    on a fast and on a slow device, but only a run without one is reproducible to the bit.
    """

    def __init__(self, steps: int, time_limit_s: float | None = None) -> None:
        self.steps, self.time_limit_s = steps, time_limit_s
        self.began = time.monotonic()

    def resume(self, elapsed_s: float) -> None:
        """Count time that an earlier process spent on the same run."""
        self.began -= elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def progress(self, step: int) -> float:
        """Share of the run that is done before `step`, in 0 … 1."""
        done = step / self.steps
        if self.time_limit_s is not None:
            done = max(done, self.elapsed_s / self.time_limit_s)
        return min(done, 1.0)

    def rate(self, step: int, warmup: int) -> float:
        """`cosine_rate` at the present progress; the warm-up counts steps."""
        if self.time_limit_s is None or step < warmup:
            return cosine_rate(step, self.steps, warmup)
        return 0.5 * (1 + math.cos(math.pi * self.progress(step)))


class Ema:
    """An exponential moving average of the parameters of a model, and a copy of its buffers.

    The decay is smaller in the first steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards `model`."""
        decay = min(self.decay, (step + 1) / (step + 10))
        # Whole lists at once: hundreds of small launches would cost more than the step.
        ours: list[Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(ours, list(model.parameters()), 1 - decay)
        if buffers := list(self.model.buffers()):
            torch._foreach_copy_(buffers, list(model.buffers()))


def save_checkpoint(
    path: Path,
    model: nn.Module,
    ema: Ema,
    optimiser: torch.optim.Optimizer,
    *,
    step: int,
    best: float,
) -> None:
    """Everything needed to continue, in one safetensors file, written atomically."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("model", model), ("ema", ema.model)):
        tensors |= {f"{prefix}/{k}": v for k, v in module.state_dict().items()}
    for index, slots in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{k}": torch.as_tensor(v) for k, v in slots.items()}
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    # One entry only: the order of several is not defined, and equal runs shall be equal bytes.
    note = json.dumps({"step": step, "best": best if math.isfinite(best) else None})
    write_atomic(path, save(tensors, metadata={"state": note}))


def load_checkpoint(
    path: Path, model: nn.Module, ema: Ema, optimiser: torch.optim.Optimizer
) -> tuple[int, float]:
    """Restore what `save_checkpoint` wrote; returns the next step and the best score so far."""
    try:
        with safe_open(path, "pt") as file:
            note = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        step, best = int(note["step"]), math.inf if note["best"] is None else float(note["best"])
        for prefix, module in (("model/", model), ("ema/", ema.model)):
            part = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            module.load_state_dict(part)
        slots: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser/"):
                _, index, slot = name.split("/")
                slots.setdefault(int(index), {})[slot] = tensor
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise InputError(f"{path}: not a checkpoint of this training ({one_line(e)})") from None
    optimiser.load_state_dict(optimiser.state_dict() | {"state": slots})
    return step, best


def prefetch(make: Callable[[Job], Made], jobs: Iterable[Job], threads: int = 2) -> Iterator[Made]:
    """Yield make(job) for every job in order, computed by threads a few jobs ahead.

    The device computes one step while the next batches are made. `make` must depend on its job
    alone.
    """
    pool, waiting, jobs = ThreadPoolExecutor(threads), deque[Future[Made]](), iter(jobs)
    try:
        for job in islice(jobs, threads + 1):
            waiting.append(pool.submit(make, job))
        while waiting:
            made = waiting.popleft().result()
            for job in islice(jobs, 1):
                waiting.append(pool.submit(make, job))
            yield made
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker(_: int) -> None:
    """Ignore Ctrl+C in a worker of a DataLoader; the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Clock:
    """Time of every twentieth step, and time spent waiting for its data.

    A GPU is synchronised before and after these steps only.
    """

    EVERY = 20

    def __init__(self, device: torch.device, elapsed_s: float = 0.0) -> None:
        """Start; `elapsed_s` is what earlier processes spent on the same run."""
        self.device, self.waited, self.worked = device, 0.0, 0.0
        self.began = time.monotonic() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run, validation included."""
        return time.monotonic() - self.began

    @contextmanager
    def waiting(self, step: int) -> Iterator[None]:
        """Measure the time that is spent waiting for data."""
        began = self.now(step)
        yield
        self.waited += self.now(step) - began

    @contextmanager
    def working(self, step: int) -> Iterator[None]:
        """Measure the time of the step."""
        began = self.now(step)
        yield
        self.worked += self.now(step) - began

    def now(self, step: int) -> float:
        """Time in seconds; 0 for a step that is not measured."""
        if step % self.EVERY:
            return 0.0
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def share(self) -> float:
        """Share of the time spent in steps; 1 if no step waited for data."""
        return self.worked / (self.worked + self.waited) if self.worked else 0.0

    def as_dict(self) -> dict[str, float]:
        """The share, and on a GPU the largest memory that this process's tensors took, in GB."""
        found = {"share_in_step": round(self.share, 4)}
        if self.device.type == "cuda":
            found["peak_gpu_gb"] = round(torch.cuda.max_memory_allocated(self.device) / 1e9, 3)
        return found


class StepReport:
    """Lines on stderr with the loss and the speed of a run, every `every` steps; None: never."""

    def __init__(self, name: str, schedule: Schedule, every: int | None = 100) -> None:
        self.name, self.schedule, self.every = name, schedule, every
        self.last: tuple[int, float] | None = None

    def __call__(self, step: int, loss: Tensor) -> None:
        """Report after `step` steps; reading the loss waits for the device."""
        now = self.schedule.elapsed_s
        if self.last is None:  # the first steps load and choose kernels
            self.last = step, now
        if self.every is None or step % self.every:
            return
        value, (last_step, last_s) = float(loss.detach()), self.last
        now = self.schedule.elapsed_s
        speed = (step - last_step) / (now - last_s) if now > last_s else math.nan
        self.last = step, now
        line = f"{self.name}: step {step}, loss {value:.4f}, {speed:.1f} steps/s, "
        tqdm.write(f"{line}{self.schedule.progress(step):.0%}", file=sys.stderr)


class RunFolder:
    """A training run on disk: run.json, metrics.jsonl, clock.json, checkpoint.safetensors."""

    def __init__(
        self, folder: str | Path, config: Any, *, main: bool = True, tensorboard: bool = False
    ) -> None:
        """Open or create; a folder that holds another configuration is refused.

        `tensorboard` also writes event files for that program, into the subfolder tensorboard.
        """
        self.path, self.main = Path(folder), main
        self.writer = None
        if tensorboard and main:
            purpose, package = "writing TensorBoard logs", "tensorboard"
            module = import_extra("torch.utils.tensorboard", package, purpose, package=package)
            self.writer = module.SummaryWriter(str(self.path / "tensorboard"))
        self.config = as_json(dataclasses.asdict(config))
        record = self.path / "run.json"
        differing = config_differences(record, self.config, key="config")
        if differing:
            raise InputError(
                f"{self.path} holds a run with another {', '.join(differing)}; "
                "choose a new --out, or delete it"
            )
        if differing is None and main:
            write_json(record, {"config": self.config, "provenance": provenance()})

    @property
    def checkpoint(self) -> Path:
        """File of the newest state."""
        return self.path / "checkpoint.safetensors"

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def elapsed_s(self) -> float:
        """Seconds of training up to the newest state; 0 where they were not recorded."""
        path = self.path / "clock.json"
        recorded = read_json(path) if path.exists() else {}
        return float(recorded.get("elapsed_s", 0.0)) if isinstance(recorded, dict) else 0.0

    def log(self, step: int, clock: Clock, *, elapsed_s: float = 0.0, **values: float) -> None:
        """Append a line; lines of steps that are being done again are dropped first. Times have a
        file of their own, because equal runs have equal metrics."""
        if not self.main:
            return
        times = {**clock.as_dict(), "elapsed_s": round(elapsed_s, 1)}
        write_json(self.path / "clock.json", {"step": step, **times})
        lines = [line for line in self.metrics() if line["step"] < step]
        lines.append({"step": step, **{k: round(float(v), 6) for k, v in values.items()}})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomic(self.path / "metrics.jsonl", text.encode())
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name.replace("_", "/", 1), value, step)
            self.writer.flush()


def processes() -> tuple[int, int]:
    """This process's rank and the number of processes, as torchrun set them; starts the group."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not torch.distributed.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # One process may prepare frames for hours while the others wait for it.
        torch.distributed.init_process_group(backend, timeout=timedelta(hours=12))
    return int(os.environ.get("RANK", "0")), world


def wait_for_all(world: int) -> None:
    """Wait until every process of torchrun has called this function."""
    if world > 1:
        torch.distributed.barrier()


def pick_device(name: str) -> torch.device:
    """The named device; "auto" is this process's GPU where there is one."""
    if name != "auto":
        return torch.device(check_device(name))
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
