"""Cancels over short jobs: `python -m tests.client.cancel_storm 10000` for so many of them.

Every other job is cancelled while it waits, runs or has just ended. A cancel is for the attempt it was
meant for: a job that nobody cancelled is never touched by one, whatever ran before it in its child.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from taskhive import Hive, JobCancelled
from tests.servers import programs, running
from tests.workers import working

HANDLERS = Path(__file__).with_name("handlers.py")


BATCH = 40
"""Cancels at a time."""
SECRET = "only-the-programs-of-this-storm-know-it"


def storm(hive: Hive, cancels: int) -> Counter[str]:
    """How many ended how: cancelled while they waited, killed, late (the end came first), spared."""
    queue = hive.queue("sleeps")
    told: Counter[str] = Counter()
    for start in range(0, cancels, BATCH):
        jobs = queue.dispatch_many([0.002] * (2 * min(BATCH, cancels - start)))
        victims = jobs[1::2]
        if start // BATCH % 2:
            with ThreadPoolExecutor(4) as threads:
                hits = list(threads.map(lambda job: job.cancel(), victims))
        else:  # each when the one before it has ended, which is when it runs
            hits = []
            for before, job in zip(jobs[::2], victims, strict=True):
                before.result(timeout=60)
                hits.append(job.cancel())
        for job, hit in zip(victims, hits, strict=True):
            try:
                assert job.result(timeout=60) == "awake"
                assert not hit, f"{job} was said to be cancelled, and succeeded"
                told["late"] += 1
            except JobCancelled:
                assert hit, f"{job} was cancelled though the cancel came too late"
                told["killed" if job.info().started_at else "cancelled"] += 1
        for job, result in zip(jobs[::2], hive.gather(jobs[::2], timeout=60), strict=True):
            assert result == "awake", job
            info = job.info()
            assert (info.attempts, sum(vars_of(info.counts))) == (1, 0), (
                f"{job} was hit by another's cancel"
            )
            told["spared"] += 1
    return told


def vars_of(counts: object) -> list[int]:
    return [getattr(counts, name) for name in ("retries", "timeouts", "stalls", "crashes")]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="th-") as made:
        place = Path(made)
        with (
            running(programs()["valkey"], place) as server,
            working(
                server.url,
                "storm",
                place / "worker.log",
                str(HANDLERS),
                environment={"TASKHIVE_SECRET": SECRET},
            ),
            Hive(server.url, prefix="storm", secret=SECRET) as hive,
        ):
            told = storm(hive, int(sys.argv[1]))
            print(f"{told.total() - told['spared']} cancels: {dict(told)}")


if __name__ == "__main__":
    main()
