"""Ways of mapping a labeller over jobs: in this process, in several processes, on a Ray cluster.

Each worker uses one torch thread: convolutions split their sums among threads, and with one thread
a label has the same bytes on every machine. More processes use the other cores.
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from scalefield.errors import MissingExtra
from scalefield.labelling.labeller import Record, failed_records
from scalefield.labelling.samples import Job
from scalefield.runtime.devices import one_thread
from scalefield.runtime.workers import worker_pool

Label = Callable[[Job], list[Record]]
Make = Callable[[], Label]
"""Creates the labeller in the process that uses it; must be picklable."""

RETRIES = 2
"""How often Ray tries a job again after its worker died."""
DEAD = "the process that worked on it died (out of memory?)"


def run_here(jobs: Sequence[Job], make: Make) -> Iterator[tuple[Job, list[Record]]]:
    """One job after the other, in this process."""
    with one_thread():
        label = make()
        for job in jobs:
            yield job, label(job)


def run_pool(jobs: Sequence[Job], make: Make, workers: int) -> Iterator[tuple[Job, list[Record]]]:
    """Run jobs in `workers` processes; results come in order of completion.

    If a process dies, its pool and the jobs it held are lost. These jobs then run one by one, which
    identifies the job that kills its process: it is recorded as failed, and the others are
    completed.
    """
    waiting = deque(jobs)
    suspects: deque[Job] = deque()
    while waiting or suspects:
        alone = bool(suspects)
        source = suspects if alone else waiting
        with worker_pool(1 if alone else workers, _start, make) as pool:
            running: dict[Future, Job] = {}
            while source or running:
                try:
                    while source and len(running) < (1 if alone else 2 * workers):
                        future = pool.submit(_label, source[0])
                        running[future] = source.popleft()
                except BrokenProcessPool:  # between two jobs; the jobs it held are handled below
                    if not running:
                        break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                broken = []
                for future in done:
                    job = running.pop(future)
                    try:
                        yield job, future.result()
                    except BrokenProcessPool:
                        broken.append(job)
                if broken:
                    lost = [*broken, *running.values()]
                    if alone:
                        yield lost[0], failed_records(lost[0], DEAD)
                    else:
                        suspects.extend(lost)
                    break


def run_ray(
    jobs: Sequence[Job], make: Make, workers: int, gpus: float = 0
) -> Iterator[tuple[Job, list[Record]]]:
    """Run jobs on a Ray cluster (the connected one, or a local one), as a map over a dataset.

    Each of `workers` actors creates its labeller once, with `gpus` GPUs. Ray restarts a dead actor
    and repeats its job, `RETRIES` times; a job without a result is left out. Samples and output
    must be on a file system that all nodes share.
    """
    ray = import_ray()
    ray.data.DataContext.get_current().max_errored_blocks = -1
    items = [{"index": i} for i in range(len(jobs))]
    # One block a job from the start: what fails is lost by the block, and to divide blocks later
    # would need a free CPU when the actors have them all.
    rows = ray.data.from_items(items, override_num_blocks=len(items))
    with warnings.catch_warnings():
        # Ray will rename the last two arguments in 2.64, beyond which the extra does not go.
        warnings.simplefilter("ignore", DeprecationWarning)
        labelled = rows.map(
            _Actor,
            fn_constructor_args=(make, jobs),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_gpus=gpus or None,
            max_restarts=-1,
            max_task_retries=RETRIES,  # otherwise an image that kills its worker is tried for ever
        )
    for row in labelled.iter_rows():
        yield jobs[row["index"]], json.loads(row["records"])


def import_ray() -> Any:
    """Ray, or the command that installs it."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "labelling on a cluster") from None
    return ray


class _Actor:
    """An actor of Ray with its labeller."""

    def __init__(self, make: Make, jobs: Sequence[Job]) -> None:
        import torch

        torch.set_num_threads(1)
        self.label, self.jobs = make(), jobs

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        # As text, because Arrow wants the same types in every row.
        records = json.dumps(self.label(self.jobs[row["index"]]))
        return {"index": row["index"], "records": records}


_labeller: Label


def _start(make: Make) -> None:
    global _labeller  # noqa: PLW0603 - a pool's process has no other place for it
    _labeller = make()


def _label(job: Job) -> list[Record]:
    return _labeller(job)
