"""What every training loop shares: seeds, schedule, average, checkpoints without pickle, metrics.

All randomness of a step comes from (seed, step), so nothing but step, parameters and optimiser
needs to be saved, and a resumed run is the run that was never interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
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
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from scalefield.errors import InputError, import_extra, one_line
from scalefield.io import as_json, config_differences, read_json, write_atomic, write_json
from scalefield.runtime.devices import check_device
from scalefield.runtime.progress import progress
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


@dataclass(frozen=True, kw_only=True)
class StepsConfig(OptimiserConfig):
    """Options of the recipes whose length is a number of steps or a time."""

    steps: int = 2000
    """Steps of the optimiser; fewer where `time_limit_s` ends the run."""
    time_limit_s: float | None = None
    """Seconds after which training ends, with the learning rate following the time; None: never."""


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


def save_checkpoint(
    path: Path,
    model: nn.Module,
    average: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    step: int,
    best: float,
) -> None:
    """Everything needed to continue, in one safetensors file, written atomically."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("model", model), ("ema", average)):
        tensors |= {f"{prefix}/{k}": v for k, v in module.state_dict().items()}
    for index, slots in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{k}": torch.as_tensor(v) for k, v in slots.items()}
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    # One entry only: the order of several is not defined, and equal runs shall be equal bytes.
    note = json.dumps({"step": step, "best": best if math.isfinite(best) else None})
    write_atomic(path, save(tensors, metadata={"state": note}))


def load_checkpoint(
    path: Path, model: nn.Module, average: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[int, float]:
    """Restore what `save_checkpoint` wrote; returns the next step and the best score so far."""
    try:
        with safe_open(path, "pt") as file:
            note = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        step, best = int(note["step"]), math.inf if note["best"] is None else float(note["best"])
        for prefix, module in (("model/", model), ("ema/", average)):
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


def prefetch(
    make: Callable[[Job], Made], jobs: Iterable[Job], threads: int = 2, ahead: int = 3
) -> Iterator[Made]:
    """Yield make(job) for every job in order, computed by threads up to `ahead` jobs ahead.

    The device computes one step while the next batches are made. `make` must depend on its job
    alone.
    """
    pool, waiting, jobs = ThreadPoolExecutor(threads), deque[Future[Made]](), iter(jobs)
    try:
        for job in islice(jobs, ahead):
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

    def __init__(self, device: torch.device) -> None:
        self.device, self.waited, self.worked = device, 0.0, 0.0

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


class Trainer:
    """A network in training: its moving average, AdamW, the learning rates, checkpoints, progress.

    A loop over `steps` makes a loss and calls `update` with it, and at times `log` and `keep`. A
    run that has a checkpoint is continued. The decay of the average is smaller in the first steps.
    """

    REPORT_EVERY = 100
    """Steps between two readings of the loss for the progress, which wait for the device."""

    def __init__(  # noqa: PLR0917
        self,
        net: nn.Module,
        groups: list[dict[str, Any]],
        config: OptimiserConfig,
        run: RunFolder,
        schedule: Schedule,
        device: torch.device,
        *,
        fused: bool = False,
        show_progress: bool = True,
    ) -> None:
        """`groups` are the parameters, as AdamW takes them; `fused` is for AdamW too."""
        self.net, self.config, self.run, self.schedule = net, config, run, schedule
        self.averaged = AveragedModel(net).eval().requires_grad_(False)
        # The initial weights count as one of those averaged; else the first step replaces them.
        self.averaged.n_averaged += 1
        self.optimiser = torch.optim.AdamW(
            groups, config.rate, weight_decay=config.weight_decay, fused=fused
        )
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.clock, self.step, self.best, self.ended = Clock(device), 0, math.inf, False
        self.bar, self.show_progress = progress(show=False), show_progress
        if run.checkpoint.exists():
            self.step, self.best = load_checkpoint(
                run.checkpoint, net, self.average, self.optimiser
            )
            schedule.resume(run.elapsed_s)

    @property
    def average(self) -> Any:
        """The network with the moving average of the weights."""
        return self.averaged.module

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are left, each with its learning rates set."""
        self.bar = progress(
            self.schedule.steps,
            initial=self.step,
            desc=self.run.path.name,
            unit="training step",
            show=self.show_progress,
        )
        with self.bar:
            for step in range(self.step, self.schedule.steps):
                factor = self.schedule.rate(step, self.config.warmup)
                for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
                    group["lr"] = rate * factor
                yield step
                self.bar.update()
                if self.ended:
                    return

    def update(self, loss: Tensor, clip: float = 1.0) -> None:
        """Make a step along the gradient of the loss, and average the weights."""
        descend(self.net, self.optimiser, loss, clip)
        self.update_average()
        if self.step % self.REPORT_EVERY == 0:
            self.show(loss=float(loss.detach()), done=self.schedule.progress(self.step))

    def update_average(self) -> None:
        """Count the step, and move the average towards the present weights."""
        decay = min(self.config.ema, (self.step + 1) / (self.step + 10))
        self.averaged.multi_avg_fn = get_ema_multi_avg_fn(decay)
        self.averaged.update_parameters(self.net)
        self.step += 1
        self.ended = self.schedule.progress(self.step) >= 1

    def due(self, every: int) -> bool:
        """Whether the step is the last one, or a multiple of `every`."""
        return self.ended or self.step % every == 0

    def show(self, **values: float) -> None:
        """Put values beside the progress."""
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        self.bar.set_description_str(f"{self.run.path.name} ({numbers})")

    def log(self, **values: float) -> None:
        """Log values of the present step."""
        self.run.log(self.step, self.clock, elapsed_s=self.schedule.elapsed_s, **values)

    def keep(self) -> None:
        """Write a checkpoint."""
        if self.run.main:
            save_checkpoint(
                self.run.checkpoint, self.net, self.average, self.optimiser,
                step=self.step, best=self.best,
            )  # fmt: skip


def descend(net: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor, clip: float) -> None:
    """Make a step of the optimiser along the gradient, whose norm is limited to `clip` unless 0."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimiser.step()


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
