"""Worker processes end with their parent, and jobs that have not begun are cancelled."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from scalefield.runtime.workers import worker_pool

PARENT = """
import os, time
from scalefield.runtime.workers import worker_pool

if __name__ == "__main__":
    with worker_pool(1, print, "ready") as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""


def test_worker_pool_ends_when_its_parent_is_killed(tmp_path):
    script = Path(tmp_path, "parent.py")
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        worker = int(parent.stdout.readline())
        os.kill(worker, signal.SIGINT)  # Ctrl+C reaches all of them; it is the parent's to act
        os.kill(worker, 0)
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == ""  # ends when the last process does that holds it


def test_worker_pool_cancels_jobs_that_have_not_begun_at_the_end_of_its_block():
    with suppress(KeyboardInterrupt), worker_pool(1, int) as pool:
        pool.submit(int).result()
        waiting = [pool.submit(time.sleep, 0.5) for _ in range(400)]
        raise KeyboardInterrupt
    assert sum(future.cancelled() for future in waiting) > 200  # a margin of 100 s
