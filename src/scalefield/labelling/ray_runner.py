"""Labelling on a Ray cluster, by actors that each hold a labeller.

Ray Core is used and not Ray Data: a dataset needs its own scheduler and an object for every image
before the first label is made.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scalefield.errors import InputError, import_extra, one_line
from scalefield.labelling.labeller import Record, failed_records
from scalefield.labelling.runners import DEAD, Label, Make
from scalefield.labelling.samples import Job

RETRIES = 2
"""Number of further attempts at a job after its worker died."""
PATIENCE_S = 10.0
"""Seconds without a result after which the run prints what it waits for."""

LOCAL_CONFIG = {"worker_niceness": 0}
"""Settings of a cluster on this machine. Ray gives its workers niceness 15 by default: where other
processes compete for the cores, they would hardly get any time."""

Log = Callable[[str], object]
"""Takes a sentence about the state of the run."""


def import_ray() -> Any:
    """Ray, or the command that installs it."""
    return import_extra("ray", "ray", "labelling on a cluster")


def run_ray(
    jobs: Sequence[Job],
    make: Make,
    workers: int,
    gpus: float = 0.0,
    log: Log = lambda sentence: None,
) -> Iterator[tuple[Job, list[Record]]]:
    """Run jobs in `workers` actors of a Ray cluster; results come in order of completion.

    The cluster is the connected one, the one of RAY_ADDRESS or of this machine, or a new local one.
    Each actor has one CPU and `gpus` GPUs, and creates its labeller once. A dead actor is replaced
    and its job tried again, `RETRIES` times; then the job is recorded as failed. Samples and output
    must be on a file system that all nodes share.
    """
    ray = import_ray()
    workers = min(workers, len(jobs))
    with connected(ray, workers, log):
        pool = _ActorPool(ray, make, gpus, log)
        try:
            yield from pool.run(jobs, workers)
        finally:
            pool.stop()


@contextmanager
def connected(ray: Any, workers: int, log: Log) -> Iterator[None]:
    """A block with a connection to a cluster, which is closed afterwards if it was made here."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "error"}
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "auto", **quiet)
        log(f"connected to the Ray cluster with {_resources(ray.cluster_resources())}")
    except ConnectionError:
        if address:
            raise InputError(f"no Ray cluster answers at RAY_ADDRESS={address}") from None
        log("no Ray cluster is running here; starting one on this machine")
        # As many CPUs as actors: otherwise some of them would wait for ever.
        count = max(workers, os.cpu_count() or 1)
        ray.init(num_cpus=count, include_dashboard=False, _system_config=LOCAL_CONFIG, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


class _ActorPool:
    """Actors of the cluster, each with at most one job at a time."""

    def __init__(self, ray: Any, make: Make, gpus: float, log: Log) -> None:
        self.ray, self.make, self.log = ray, make, log
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Actor)
        self.busy: dict[Any, tuple[Any, Job | None]] = {}
        """Actor and job by the reference of the result; no job while an actor loads."""
        self.idle: list[Any] = []
        self.failed_starts = 0

    def run(self, jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, list[Record]]]:
        """Each job with its records."""
        waiting, deaths = deque(jobs), Counter[str]()
        for _ in range(workers):
            self.start()
        self.log(f"waiting for the first of {workers} Ray actors to load the estimator")
        while waiting or any(job for _, job in self.busy.values()):
            while waiting and self.idle:
                actor, assigned = self.idle.pop(), waiting.popleft()
                self.busy[actor.label.remote(assigned)] = (actor, assigned)
            done, _ = self.ray.wait(list(self.busy), timeout=PATIENCE_S)
            if not done:
                self.explain(len(waiting))
            for reference in done:
                actor, job = self.busy.pop(reference)
                try:
                    records = self.ray.get(reference)
                except self.ray.exceptions.RayActorError as e:
                    if job is None:
                        self.refuse_many_failed_starts(e)
                    elif deaths[job.name] < RETRIES:
                        deaths[job.name] += 1
                        self.log(f"a Ray actor died while it worked on {job.name}; trying it again")
                        waiting.append(job)
                    else:
                        yield job, failed_records(job, DEAD)
                    self.start()
                    continue
                if job is not None:
                    yield job, records
                self.idle.append(actor)

    def start(self) -> None:
        """Start one more actor, which loads the estimator first."""
        actor = self.remote.remote(self.make)
        self.busy[actor.ready.remote()] = (actor, None)

    def refuse_many_failed_starts(self, error: Exception) -> None:
        """Count an actor that did not start; InputError after a few of them."""
        self.failed_starts += 1
        if self.failed_starts > RETRIES:
            last = str(error).strip().splitlines()[-1]
            raise InputError(f"the Ray actors do not start: {one_line(last)}") from None

    def explain(self, waiting: int) -> None:
        """Print what the run waits for."""
        running = [job.name for _, job in self.busy.values() if job]
        if running:
            names = ", ".join(running[:3])
            self.log(f"{len(running)} actors work on {names} …; {waiting} jobs wait")
        else:
            free = _resources(self.ray.available_resources())
            self.log(
                f"{len(self.busy)} Ray actors are not ready: they load the estimator, or wait "
                f"for a free CPU (or GPU); free now: {free}"
            )

    def stop(self) -> None:
        """End all actors."""
        for actor in (*self.idle, *(actor for actor, _ in self.busy.values())):
            self.ray.kill(actor)


def _resources(amounts: dict[str, float]) -> str:
    """Numbers of CPUs and GPUs in words."""
    named = (f"{amounts.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))
    return " and ".join(named)


class _Actor:
    """A process of the cluster with its labeller."""

    def __init__(self, make: Make) -> None:
        import warnings

        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # the driver has given the same warnings
        self.labeller: Label = make()

    def ready(self) -> None:
        """Return when the labeller is loaded."""

    def label(self, job: Job) -> list[Record]:
        """The records of a job."""
        return self.labeller(job)
