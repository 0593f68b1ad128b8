"""What happened in a run of chaos, and what must not have: a checker that trusts nobody's word.

The ledger is written by the handlers themselves to a file, a line for each sign of life, so that it does
not depend on the server. What the server says at the end is held against it.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """One sign of life of an attempt: its start, a beat, its end."""

    what: str
    id: str
    fence: int
    at: float
    pid: int = 0


@dataclass
class Job:
    """What was dispatched, and what the server says of it in the end."""

    id: str
    strict: bool
    state: str
    put_back: int = 0
    """Retries, timeouts, stalls and crashes together."""


@dataclass
class History:
    """One run."""

    lines: list[Line] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    waiting: int = 0
    """Ready, delayed, blocked and active jobs after the drain."""
    created: int = 0
    ended: int = 0
    """Succeeded, failed, cancelled and merged, as the server counted them."""
    failed: int = 0
    failure_jobs: int = 0
    dead_workers: int = 0
    """Workers that ended and were not told to."""


@dataclass
class Attempt:
    """The signs of life of one lease."""

    id: str
    fence: int
    first: float
    last: float
    starts: int = 0
    ends: int = 0


def read(text: str) -> list[Line]:
    """A ledger; a last line that is not whole was cut off by a kill."""
    found = []
    for line in text.splitlines():
        try:
            found.append(Line(**json.loads(line)))
        except ValueError:
            continue
    return found


def attempts(lines: Iterable[Line]) -> list[Attempt]:
    """By lease, in the order of their first sign of life."""
    found: dict[tuple[str, int], Attempt] = {}
    for line in sorted(lines, key=lambda one: one.at):
        one = found.setdefault((line.id, line.fence), Attempt(line.id, line.fence, line.at, line.at))
        one.last = line.at
        one.starts += line.what == "start"
        one.ends += line.what == "end"
    return list(found.values())


def violations(history: History) -> list[str]:
    """Every rule that was broken, in words; none is none."""
    found = []
    by_id: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts(history.lines):
        by_id[attempt.id].append(attempt)
        if attempt.ends > 1:
            found.append(f"{attempt.id}: lease {attempt.fence} ended {attempt.ends} times")
        if attempt.starts == 0:
            found.append(f"{attempt.id}: lease {attempt.fence} never started and left signs of life")
    dispatched = {job.id for job in history.jobs}
    found += [f"{id} ran and was never dispatched" for id in by_id if id not in dispatched]
    for job in history.jobs:
        found += _of_job(job, by_id[job.id])
    if history.waiting:
        found.append(f"{history.waiting} jobs still wait after the drain")
    if history.created != history.ended:
        found.append(f"{history.created} were created and {history.ended} ended")
    if history.failed != history.failure_jobs:
        found.append(f"{history.failed} failed and there are {history.failure_jobs} failure jobs")
    if history.dead_workers:
        found.append(f"{history.dead_workers} workers ended by themselves")
    return found


def _of_job(job: Job, mine: list[Attempt]) -> list[str]:
    found = []
    if job.state not in ("succeeded", "failed", "cancelled"):
        found.append(f"{job.id} is lost: {job.state}")
    if job.state == "succeeded" and not any(one.ends for one in mine):
        found.append(f"{job.id} succeeded and never came to its end")
    if job.put_back > len(mine):
        found.append(f"{job.id} was put back {job.put_back} times and began {len(mine)} times")
    for earlier, later in itertools.pairwise(mine):
        if later.fence < earlier.fence:
            found.append(f"{job.id}: lease {later.fence} began after lease {earlier.fence}")
        if job.strict and later.first < earlier.last:
            found.append(f"{job.id}: leases {earlier.fence} and {later.fence} ran at once")
    return found


def figures(history: History) -> Counter[str]:
    """What a run amounts to."""
    counted: Counter[str] = Counter()
    for job in history.jobs:
        counted[job.state] += 1
        counted["put back"] += job.put_back
    counted["attempts"] = len(attempts(history.lines))
    counted["attempts cut short"] = sum(not one.ends for one in attempts(history.lines))
    return counted
