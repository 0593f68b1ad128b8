"""A kill by the kernel for want of memory, in a control group of the test's own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskhive import Hive
from tests.servers import until
from tests.worker.conftest import Start
from tests.worker.workers import box, over

HANDLERS = """
import time
from taskhive import Hive
hive = Hive()

@hive.handler(max_timeouts=0)
def eat(mib):
    kept = []
    for _ in range(mib):
        kept.append(b"x" * (1 << 20))
    return len(kept)
"""


@contextlib.contextmanager
def group(limit: int) -> Iterator[Path]:
    """A group with a memory limit below our own; skips where we may not make one."""
    mounts = Path("/proc/self/mountinfo")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4])
        version_2 = after.startswith("cgroup2 ") and "memory" in _words(point / "cgroup.subtree_control")
        if not version_2 and not (
            after.startswith("cgroup ") and "memory" in after.split()[-1].split(",")
        ):
            continue
        name = point / f"taskhive-test-{os.getpid()}"
        try:
            name.mkdir()
            knob = "memory.max" if version_2 else "memory.limit_in_bytes"
            (name / knob).write_text(str(limit))
        except OSError:
            break
        try:
            yield name
        finally:
            procs = name / "cgroup.procs"
            until(lambda procs=procs: not _words(procs), "the group is empty")  # type: ignore[misc]
            name.rmdir()
        return
    pytest.skip("no control group may be made here")


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def test_a_job_that_the_kernel_kills_is_told_so_and_the_worker_goes_on(start: Start, hive: Hive) -> None:
    with group(400 << 20) as name:
        worker = start(HANDLERS, "--concurrency", "1")
        (name / "cgroup.procs").write_text(str(worker.pid))
        worker.ready()
        for process in worker.family():
            (name / "cgroup.procs").write_text(str(process.pid))
        job = hive.queue("eat").dispatch(2000)
        assert over(hive, job) == ["failed"]
        assert box(job)["verdict"] == "oom-kill"
        found = job.info().error
        assert found is not None
        assert found.kind == "memory"
        assert over(hive, hive.queue("eat").dispatch(10)) == ["succeeded"]
        worker.clean_up()
