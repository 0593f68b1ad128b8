"""Very short attempts travel together; what happens to one of them is not the others' affair."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from taskhive import Hive, outbox
from taskhive.wire import Kind, frame
from tests.worker.conftest import Start
from tests.worker.workers import over

TICK = """
import os, time
from taskhive import Hive
hive = Hive()
LEDGER = os.open("ledger", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

@hive.handler(max_crashes=0, timeout=1, max_timeouts=0)
def tick(n):
    if n == -1: os._exit(1)
    if n == -2: time.sleep(600)
    os.write(LEDGER, b"%d " % n)
    return n
"""


def runs(folder: Path) -> Counter[int]:
    return Counter(map(int, (folder / "ledger").read_text().split()))


def test_no_end_is_lost_with_a_child_that_dies_behind_it(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    start(TICK).ready()
    q = hive.queue("tick")
    over(hive, q.dispatch_many([0])[0], *q.dispatch_many([0] * 200))
    numbers = [*range(1, 300), -1, *range(300, 600)]
    jobs = q.dispatch_many(numbers)
    over(hive, *jobs)
    failed = {
        n: job.info().error for n, job in zip(numbers, jobs, strict=True) if job.state() == "failed"
    }
    assert failed.keys() == {-1}, failed
    assert [job.info().result for job in jobs if job.state() == "succeeded"] == [*range(1, 600)]
    counted = runs(tmp_path)
    assert [n for n in range(1, 600) if counted[n] != 1] == []
    assert all(job.info().attempts == 1 for job in jobs)


def test_one_that_hangs_is_killed_for_its_own_time_and_nobody_elses(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    start(TICK).ready()
    q = hive.queue("tick")
    over(hive, *q.dispatch_many([0] * 200))
    numbers = [*range(1, 50), -2, *range(50, 100)]
    jobs = q.dispatch_many(numbers)
    states = over(hive, *jobs)
    assert states == ["failed" if n == -2 else "succeeded" for n in numbers]
    counted = runs(tmp_path)
    assert [n for n in range(1, 100) if counted[n] != 1] == []


def test_the_outbox_is_read_as_a_strangers() -> None:
    descriptor = outbox.make()
    try:
        box = outbox.Outbox(os.dup(descriptor))
        frames = [(Kind.FINISHED, b"one"), (Kind.RAISED, b"two")]
        for kind, body in frames:
            assert box.put(frame(kind, body))
        assert outbox.read(descriptor) == frames
        assert not box.put(b"x" * outbox.SIZE)
        box.clear()
        assert outbox.read(descriptor) == []
        for forged in (b"\xff" * 64, (10**9).to_bytes(8, "little"), (40).to_bytes(8, "little") * 9):
            os.pwrite(descriptor, forged, 0)
            assert outbox.read(descriptor) == []
    finally:
        os.close(descriptor)
