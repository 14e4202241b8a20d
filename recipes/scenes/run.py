"""Render many scenes, one process each; a rerun continues an interrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from recipes.scenes.dataset import collect, done_path
from recipes.scenes.files import write_text
from recipes.scenes.plan import SAMPLES, SceneSpec, scene_specs


@dataclass(frozen=True)
class RunConfig:
    """Scenes to render, and the output folder."""

    library: Path
    """Folder of the frozen library."""
    out: Path
    """Folder of the data set."""
    kind: str = "mix"
    """One of `plan.KINDS`, or `mix`."""
    scenes: int = 400
    """Number of scenes."""
    views: int = 8
    """Views of each scene."""
    seed: int = 0
    """Seed of the first scene."""
    samples: int | None = None
    """Samples a pixel; by default those of `plan.SAMPLES`."""
    threads: int = 2
    """Threads of Cycles."""
    scene_limit_s: int = 1800
    """Processor time after which a scene is given up. A process that is paused uses none."""
    pid_file: Path | None = None
    """File that gets the id of the process that renders, to pause it (SIGSTOP, SIGCONT)."""


def run(config: RunConfig) -> int:
    """Render the scenes that are not finished; 0 if all are then."""
    if not (config.library / "manifest.json").exists():
        raise SystemExit(f"{config.library}: no manifest.json; run the command `library` first")
    specs = scene_specs(config.kind, config.scenes, config.seed)
    failed = 0
    for spec in specs:
        if done_path(config.out, spec).exists() or _given_up(config, spec).exists():
            continue
        start = time.time()
        status = _render_scene(config, spec)
        print(f"{spec.name} status {status}, {time.time() - start:.0f} s", flush=True)
        if status in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL):
            return 1  # somebody stopped it
        if status == 0:
            print(collect(config.out), flush=True)
        else:
            failed += 1
            write_text(_given_up(config, spec), f"{status}\n")
    return int(failed > 0)


def _given_up(config: RunConfig, spec: SceneSpec) -> Path:
    """The mark of a scene that crashed or took too long, which a rerun leaves out."""
    return done_path(config.out, spec).with_suffix(".failed")


def _render_scene(config: RunConfig, spec: SceneSpec) -> int:
    """Render one scene in a process of its own; its exit status."""
    arguments = {
        "kind": spec.kind,
        "seed": spec.seed,
        "views": config.views,
        "library": str(config.library.resolve()),
        "out": str(config.out.resolve()),
        "limit_s": config.scene_limit_s,
        "render": {"samples": config.samples or SAMPLES[spec.kind], "threads": config.threads},
    }
    command = [sys.executable, "-m", "recipes.scenes.worker", json.dumps(arguments)]
    log = config.out / "logs" / f"{spec.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
        if config.pid_file:
            write_text(config.pid_file, f"{process.pid}\n")
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return -signal.SIGINT
