"""What a worker tells of itself and of what its jobs cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from taskhive import Hive
from taskhive.costs import HandlerCosts
from taskhive.jobs import QueueStats
from taskhive.status import Status, text
from tests.servers import Server, until
from tests.worker.conftest import Start
from tests.worker.workers import ROOT, over

HANDLERS = """
import os, time
from taskhive import Hive
hive = Hive()

@hive.handler(max_retries=0)
def work(n):
    if n == 3: raise ValueError("no")
    return len(b"x" * (n << 20))

@hive.handler
def wait(path):
    while not os.path.exists(path): time.sleep(0.01)
"""


def test_long_names_and_short_attempts_are_shown_in_eighty_columns() -> None:
    long = "reports.of.the.whole.company.by.month.and.department"
    n = 1_234_567
    queues = [
        QueueStats(name, n, n, n, n, n, n, n, n, n, n, None, True, None, 0, 0, 0, 0)
        for name in ("short", long)
    ]
    costs = [
        HandlerCosts(name, 9, wall_p50=0.0002, wall_p95=0.5, wall_max=1.5) for name in ("short", long)
    ]
    lines = text(Status([], queues, costs)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines.count(long) == 2
    assert "short           9     <1 ms  500 ms  1.5 s    0.0           -  0 MiB" in lines


def test_workers_queues_and_costs_are_seen_from_outside(
    start: Start, hive: Hive, valkey: Server, prefix: str
) -> None:
    worker = start(HANDLERS, "--name", "box one").ready()
    path = f"/proc/{worker.pid}/cwd/go"
    over(hive, *hive.queue("work").dispatch_many([1, 2, 3, 40]))
    waiting = hive.queue("wait").dispatch(path)

    def ran() -> list[str | None]:
        return [slot.job for one in hive.workers() for slot in one.slots if slot.job]

    until(lambda: ran() == [waiting.id], "the worker tells what it runs")
    (info,) = hive.workers()
    assert (info.name, info.pid, info.capacity, info.load) == ("box one", worker.pid, 2, 1.0)
    assert (info.reason, info.queues, info.jobs) == ("2: asked for", ("wait", "work"), 1)
    until(lambda: [one.count for one in hive.handlers()] == [4], "the costs arrive")
    (costs,) = hive.handlers()
    assert costs.queue == "work"
    assert costs.ended == {"done": 3, "error": 1}
    assert 0 < costs.cpu_max <= costs.cpu < 10
    assert 30 << 20 < costs.memory_max < 60 << 20
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_PREFIX": prefix}
    words = [sys.executable, "-m", "taskhive", "status", "--url", valkey.url]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"slot 1 pid {info.slots[0].pid}: wait/{waiting.id} for" in said
    shown = subprocess.run(
        [*words, "--json"], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout)["workers"][0]["reason"] == "2: asked for"
    open(path, "w").close()
    over(hive, waiting)
    assert worker.stop() == 0
    assert hive.workers() == []
    assert sum(one.count for one in hive.handlers()) == 5
