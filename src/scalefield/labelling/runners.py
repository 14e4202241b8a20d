"""Ways of mapping a labeller over jobs on one machine; `ray_runner` has the way for a cluster.

Each worker uses one torch thread: convolutions split their sums among threads, and with one thread
a label has the same bytes on every machine. More processes use the other cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from scalefield.labelling.labeller import Record, failed_records
from scalefield.labelling.samples import Job
from scalefield.runtime.threads import one_thread
from scalefield.runtime.workers import call_function, set_function, worker_pool

Label = Callable[[Job], list[Record]]
Make = Callable[[], Label]
"""Creates the labeller in the process that uses it; must be picklable."""

DEAD = "the process that worked on it died (out of memory?)"


def run_here(jobs: Sequence[Job], make: Make) -> Iterator[tuple[Job, list[Record]]]:
    """One job after the other, in this process; without a job, nothing is loaded."""
    if not jobs:
        return
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
                        future = pool.submit(call_function, source[0])
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


def _start(make: Make) -> None:
    set_function(make())
