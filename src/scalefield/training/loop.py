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
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from scalefield.devices import usable
from scalefield.errors import InputError, brief
from scalefield.files import read_json, write_atomic, write_json
from scalefield.provenance import provenance


def step_generator(seed: int, step: int, device: str | torch.device = "cpu") -> torch.Generator:
    """The random generator of one step. Also seeds the global one, which dropout uses."""
    key = (seed * 1_000_003 + step) % 2**63
    torch.manual_seed(key)
    return torch.Generator(device).manual_seed(key)


def cosine_rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up to 1, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Ema:
    """An exponential moving average of a model, buffers copied; younger steps count early on."""

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
    """Everything needed to go on, in one safetensors file, written atomically."""
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
        raise InputError(f"{path}: not a checkpoint of this training ({brief(e)})") from None
    optimiser.load_state_dict(optimiser.state_dict() | {"state": slots})
    return step, best


class RunFolder:
    """A training run on disk: run.json, metrics.jsonl, checkpoint.safetensors."""

    def __init__(self, folder: str | Path, config: Any, *, main: bool = True) -> None:
        """Open or create; a folder that holds another configuration is refused."""
        self.path, self.main = Path(folder), main
        self.config = json.loads(json.dumps(dataclasses.asdict(config), default=str))
        record = self.path / "run.json"
        if record.exists():
            said = read_json(record)
            found = said.get("config") if isinstance(said, dict) else None
            if not isinstance(found, dict):
                raise InputError(f"{record}: not the record of a training run")
            changed = sorted(k for k in self.config if found.get(k) != self.config[k])
            if changed:
                raise InputError(
                    f"{self.path} holds a run with another {', '.join(changed)}; "
                    "choose a new --out, or delete it"
                )
        elif main:
            write_json(record, {"config": self.config, "provenance": provenance()})

    @property
    def checkpoint(self) -> Path:
        """Where the newest state lies."""
        return self.path / "checkpoint.safetensors"

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def log(self, step: int, **values: float) -> None:
        """Append a line; lines of steps that are being done again are dropped first."""
        if not self.main:
            return
        lines = [line for line in self.metrics() if line["step"] < step]
        lines.append({"step": step, **{k: round(float(v), 6) for k, v in values.items()}})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomic(self.path / "metrics.jsonl", text.encode())


def processes() -> tuple[int, int]:
    """This process's rank and the number of processes, as torchrun set them; starts the group."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not torch.distributed.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend)
    return int(os.environ.get("RANK", "0")), world


def pick_device(name: str) -> torch.device:
    """The named device; "auto" is this process's GPU where there is one."""
    if name != "auto":
        return torch.device(usable(name))
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
