"""What a worker tells of itself and of what its jobs cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from taskhive import Hive
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
