"""Waiting for jobs in a blocking program: one, all of them, or each as it ends."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from taskhive import units
from taskhive.bars import bar
from taskhive.board import Watch
from taskhive.errors import ConfigurationError, RedisUnavailable, ResultTimeout
from taskhive.events import Event
from taskhive.following import HiveFollower, JobFollower, QueueFollower
from taskhive.jobs import Fetched, JobState

if TYPE_CHECKING:
    from taskhive.hive import Hive, Job

Ends = Generator[tuple[int, Fetched], None, None]
RETURN_WHEN = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")


class Waited(NamedTuple):
    """What a `wait` came to, as that of `concurrent.futures`."""

    done: set[Any]
    not_done: set[Any]


def seconds(timeout: Any) -> float | None:
    """A time to wait, or None for ever."""
    return None if timeout is None else units.seconds(timeout, "timeout")


def condition(return_when: Any) -> str:
    """When a `wait` is over."""
    if return_when not in RETURN_WHEN:
        raise ConfigurationError(
            "return_when", f"{return_when!r} is none of its values", f"Use one of {RETURN_WHEN}"
        )
    return str(return_when)


def is_over(return_when: str, end: Fetched) -> bool:
    """Whether this end is one that ends a `wait` before all have come."""
    return return_when == "FIRST_COMPLETED" or (
        return_when == "FIRST_EXCEPTION" and end.state is not JobState.SUCCEEDED
    )


def ends(hive: Hive, jobs: Sequence[Job[Any]], timeout: float | None) -> Ends:
    """The index and the end of each job, as they come; those known already first."""
    listener = hive._listener()
    if hive._before_waiting is not None:
        hive._before_waiting()
    deadline = None if timeout is None else time.monotonic() + timeout
    ended: queue.SimpleQueue[tuple[Watch, Fetched | Exception]] = queue.SimpleQueue()

    def deliver(watch: Watch, end: Fetched | Exception) -> None:
        ended.put((watch, end))

    watches = []
    for index, job in enumerate(jobs):
        if job._end is not None:
            yield index, job._end
        else:
            watches.append(Watch(job.queue, job.id, job._generation, deliver, index))
    listener.watch(watches)
    left = len(watches)
    try:
        while left:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                watch, end = ended.get(timeout=wait)
            except queue.Empty:
                raise ResultTimeout(left, timeout or 0.0) from None
            if isinstance(end, Exception):
                raise end
            left -= 1
            jobs[watch.key]._remember(end)
            yield watch.key, end
    finally:
        listener.forget(watches)


def end_of(job: Job[Any], timeout: float | None) -> Fetched:
    """The end of one job."""
    with contextlib.closing(ends(job._hive, [job], timeout)) as coming:
        for _, end in coming:
            return end
    raise AssertionError("a job that ended is told of")


def queue_events(hive: Hive, queue: str, place: str | None) -> Iterator[Event]:
    """The events of a queue; where it begins is settled now, not at the first look."""
    hive._may_wait()
    follower = QueueFollower(hive._core.commands, queue)
    hive._run(follower.start(place))
    return _endless(hive, follower)


def hive_events(hive: Hive) -> Iterator[Event]:
    """The events of all queues."""
    hive._may_wait()
    follower = HiveFollower(hive._core.commands)
    hive._run(follower.start())
    return _endless(hive, follower)


def _endless(hive: Hive, follower: QueueFollower | HiveFollower) -> Iterator[Event]:
    while True:
        try:
            events = hive._run(follower.read())
        except RedisUnavailable:
            continue  # an outage is waited out; the reader goes on where it was
        yield from events


def job_events(job: Job[Any]) -> Iterator[Event]:
    """The events of a job until its end."""
    job._hive._may_wait()
    follower = JobFollower(job._hive._core.commands, job.queue, job.id, job._generation)
    yield from job._hive._run(follower.start())
    while not follower.is_over:
        try:
            events = job._hive._run(follower.read())
        except RedisUnavailable:
            continue
        yield from events


def as_completed(
    hive: Hive, jobs: Sequence[Job[Any]], timeout: float | None, progress: bool
) -> Iterator[Job[Any]]:
    """Each job as it ends."""
    with bar(len(jobs), progress) as advance:
        for index, _ in ends(hive, jobs, timeout):
            advance()
            yield jobs[index]


def wait(hive: Hive, jobs: Sequence[Job[Any]], timeout: float | None, return_when: str) -> Waited:
    """Those that have ended, and the others."""
    done: set[Any] = set()
    try:
        for index, end in ends(hive, jobs, timeout):
            done.add(jobs[index])
            if is_over(return_when, end):
                break
    except ResultTimeout:
        pass
    return Waited(done, set(jobs) - done)


def gather(
    hive: Hive, jobs: Sequence[Job[Any]], timeout: float | None, return_exceptions: bool
) -> list[Any]:
    """The results in the order of the jobs; the first failure is raised at once."""
    values: list[Any] = [None] * len(jobs)
    for index, end in ends(hive, jobs, timeout):
        try:
            values[index] = jobs[index]._value(end)
        except Exception as error:
            if not return_exceptions:
                raise
            values[index] = error
    return values
