"""Waiting for jobs on an event loop: one, all of them, or each as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from taskhive.bars import bar
from taskhive.board import Watch
from taskhive.errors import RedisUnavailable, ResultTimeout
from taskhive.events import Event
from taskhive.following import HiveFollower, JobFollower, QueueFollower
from taskhive.jobs import Fetched
from taskhive.waiting import Waited, is_over

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from taskhive.aio import AsyncHive, AsyncJob


async def ends(
    hive: AsyncHive, jobs: Sequence[AsyncJob[Any]], timeout: float | None
) -> AsyncGenerator[tuple[int, Fetched], None]:
    """The index and the end of each job, as they come; those known already first."""
    listener = hive._listener()
    if hive._before_waiting is not None:
        await asyncio.to_thread(hive._before_waiting)
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    ended: asyncio.Queue[tuple[Watch, Fetched | Exception]] = asyncio.Queue()

    def deliver(watch: Watch, end: Fetched | Exception) -> None:
        ended.put_nowait((watch, end))

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
            try:
                async with asyncio.timeout_at(deadline):
                    watch, end = await ended.get()
            except TimeoutError:
                raise ResultTimeout(left, timeout or 0.0) from None
            if isinstance(end, Exception):
                raise end
            left -= 1
            jobs[watch.key]._remember(end)
            yield watch.key, end
    finally:
        listener.forget(watches)


async def end_of(job: AsyncJob[Any], timeout: float | None) -> Fetched:
    """The end of one job."""
    async with aclosing(ends(job._hive, [job], timeout)) as coming:
        async for _, end in coming:
            return end
    raise AssertionError("a job that ended is told of")


async def queue_events(hive: AsyncHive, queue: str, place: str | None) -> AsyncIterator[Event]:
    """The events of a queue."""
    hive._may_wait()
    follower = QueueFollower(hive._core.commands, queue)
    await hive._run(follower.start(place))
    while True:
        for event in await _read(hive, follower):
            yield event


async def hive_events(hive: AsyncHive) -> AsyncIterator[Event]:
    """The events of all queues."""
    hive._may_wait()
    follower = HiveFollower(hive._core.commands)
    await hive._run(follower.start())
    while True:
        for event in await _read(hive, follower):
            yield event


async def job_events(job: AsyncJob[Any]) -> AsyncIterator[Event]:
    """The events of a job until its end."""
    job._hive._may_wait()
    follower = JobFollower(job._hive._core.commands, job.queue, job.id, job._generation)
    for event in await job._hive._run(follower.start()):
        yield event
    while not follower.is_over:
        for event in await _read(job._hive, follower):
            yield event


async def _read(hive: AsyncHive, follower: QueueFollower | HiveFollower | JobFollower) -> list[Event]:
    while True:
        try:
            return await hive._run(follower.read())
        except RedisUnavailable:
            continue  # an outage is waited out; the reader goes on where it was


async def as_completed(
    hive: AsyncHive, jobs: Sequence[AsyncJob[Any]], timeout: float | None, progress: bool
) -> AsyncIterator[AsyncJob[Any]]:
    """Each job as it ends."""
    with bar(len(jobs), progress) as advance:
        async with aclosing(ends(hive, jobs, timeout)) as coming:
            async for index, _ in coming:
                advance()
                yield jobs[index]


async def wait(
    hive: AsyncHive, jobs: Sequence[AsyncJob[Any]], timeout: float | None, return_when: str
) -> Waited:
    """Those that have ended, and the others."""
    done: set[Any] = set()
    try:
        async with aclosing(ends(hive, jobs, timeout)) as coming:
            async for index, end in coming:
                done.add(jobs[index])
                if is_over(return_when, end):
                    break
    except ResultTimeout:
        pass
    return Waited(done, set(jobs) - done)


async def gather(
    hive: AsyncHive, jobs: Sequence[AsyncJob[Any]], timeout: float | None, return_exceptions: bool
) -> list[Any]:
    """The results in the order of the jobs; the first failure is raised at once."""
    values: list[Any] = [None] * len(jobs)
    async with aclosing(ends(hive, jobs, timeout)) as coming:
        async for index, end in coming:
            try:
                values[index] = jobs[index]._value(end)
            except Exception as error:
                if not return_exceptions:
                    raise
                values[index] = error
    return values
