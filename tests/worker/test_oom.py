"""A kill by the kernel for want of memory, in a control group of the test's own."""

from __future__ import annotations

import pytest

from taskhive import Hive
from tests.groups import memory_group
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


def test_a_job_that_the_kernel_kills_is_told_so_and_the_worker_goes_on(start: Start, hive: Hive) -> None:
    with memory_group(400 << 20) as name:
        if name is None:
            pytest.skip("no control group may be made here")
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
