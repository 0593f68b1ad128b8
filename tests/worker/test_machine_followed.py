"""Real workers on a machine that is small, or that others use: the number of jobs at once follows it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from taskhive import Hive
from tests.groups import cpu_group
from tests.servers import until
from tests.worker.conftest import Start
from tests.worker.workers import Worker, over

HANDLERS = """
import time
from taskhive import Hive
hive = Hive()

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@hive.handler
def crunch(seconds):
    burn(seconds)

@hive.handler
def fetch(seconds):
    burn(seconds / 10)
    time.sleep(seconds * 0.9)
"""


@contextlib.contextmanager
def granted(cores: float, start: Start) -> Iterator[Worker]:
    """A worker in a group that is granted so many cores, or else on so many that it may be put on."""
    with cpu_group(cores) as group:
        worker = start(HANDLERS, "--concurrency", "auto")
        # It has not even imported anything yet.
        if group is not None:
            (group / "cgroup.procs").write_text(str(worker.pid))
        else:
            os.sched_setaffinity(worker.pid, sorted(os.sched_getaffinity(0))[: max(1, int(cores))])
        try:
            yield worker.ready()
        finally:
            worker.clean_up()


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    words = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def targets(worker: Worker) -> list[int]:
    return [event["target"] for event in worker.of("worker.target")]


def test_a_worker_that_is_granted_one_core_computes_one_job_at_a_time(start: Start, hive: Hive) -> None:
    with granted(1.0, start) as worker:
        (started,) = worker.of("worker.started")
        assert started["concurrency"] == "1: 1 cores granted, nothing measured yet"
        over(hive, *hive.queue("crunch").dispatch_many([0.2] * 20))
        assert targets(worker) == []


def test_jobs_give_way_to_neighbours_and_come_back_when_they_leave(start: Start, hive: Hive) -> None:
    worker = start(HANDLERS, "--concurrency", "auto").ready()
    hive.queue("fetch").dispatch_many([0.2] * 20_000)
    until(lambda: max(targets(worker), default=1) >= 10, "they fill the gaps", 40)
    with burners(2 * len(os.sched_getaffinity(0))):
        before = len(targets(worker))
        peak = max(targets(worker))
        until(lambda: min(targets(worker)[before:], default=peak) < peak, "they give way")
        low, fallen = min(targets(worker)[before:]), len(targets(worker))
    until(lambda: max(targets(worker)[fallen:], default=low) > low, "they come back", 40)
    reasons = [event["why"] for event in worker.of("worker.target")]
    assert all("cores free, attempts use" in why for why in reasons)
