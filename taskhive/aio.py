"""The asyncio client: `AsyncHive`, with the methods of `Hive` as coroutines."""

from __future__ import annotations

import asyncio
import os
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from taskhive import aio_waiting, following, relay, units, waiting
from taskhive.aio_broker import AsyncBroker
from taskhive.aio_listener import AsyncListener
from taskhive.core import DEFAULT_VISIBILITY, IO_TIMEOUT, BoundJob, listed_state, purged_state
from taskhive.costs import HandlerCosts
from taskhive.crew import WorkerInfo, read_worker
from taskhive.effects import Flow, T
from taskhive.errors import NotDurable, PartialDispatch
from taskhive.events import Event
from taskhive.handlers import AsyncHandler, AsyncRegisters
from taskhive.handles import BoundBase, HiveBase, JobBase, LeaseBase, QueueBase, bound_jobs
from taskhive.jobs import AttemptInfo, JobInfo, JobState, Page, Progress, QueueStats
from taskhive.locks import AsyncLock
from taskhive.options import PLAIN, UNSET
from taskhive.parcels import Answer, Settle
from taskhive.waiting import Waited

P = ParamSpec("P")
R = TypeVar("R")


class AsyncHive(HiveBase):
    """A program's way to its queues.

    As `Hive`, for asyncio: any event loop may use it, and a cancelled await leaves no broken
    connection behind.
    """

    _broker: AsyncBroker | None = None
    _listeners_of = 0
    _handler_class = AsyncHandler

    async def _run(self, flow: Flow[T]) -> T:
        if relay.installed is not None:
            return await relay.installed.run_async(flow)
        return await self._connected().run(flow)

    def _connected(self) -> AsyncBroker:
        broker = self._broker
        if broker is None:
            broker = self._broker = AsyncBroker(self._core.target, self._core.directory, IO_TIMEOUT)
        return broker

    def _listener(self) -> AsyncListener:
        """The listener of the running loop."""
        self._may_wait()
        if self._listeners_of != os.getpid():  # none yet, or those that a fork left behind
            self._listeners, self._listeners_of = weakref.WeakKeyDictionary(), os.getpid()
        loop = asyncio.get_running_loop()
        found: AsyncListener | None = self._listeners.get(loop)
        if found is None:
            found = self._listeners[loop] = AsyncListener(self._connected(), self._core.commands)
        return found

    def queue(self, name: str, *, visibility: float = DEFAULT_VISIBILITY) -> AsyncQueue:
        """A queue by its name; `visibility` is for leases taken by hand from this object."""
        return AsyncQueue(self, name, PLAIN, visibility)

    def job(self, queue: str, id: str) -> AsyncJob[Any]:
        """The newest run of an id, whoever dispatched it."""
        return AsyncJob(self, units.queue_name(queue), units.job_id(id), None, False)

    def lock(self, name: str, ttl: float = 10.0) -> AsyncLock:
        """A lock that programs share; not taken yet. It lapses `ttl` seconds after its holder died."""
        return AsyncLock(self, name, ttl)

    async def queues(self) -> list[str]:
        """The names of all queues that were dispatched to, in order."""
        return await self._run(self._core.commands.queues())

    async def workers(self) -> list[WorkerInfo]:
        """The workers there are, as each says of itself every few seconds."""
        return [read_worker(one) for one in await self._run(self._core.commands.workers())]

    async def handlers(self) -> list[HandlerCosts]:
        """What the attempts of each handler have cost, all workers together."""
        return await self._run(self._core.commands.handlers())

    async def dispatch_many(self, calls: Iterable[AsyncBoundCall]) -> list[AsyncJob[Any]]:
        """Dispatch calls made by `bind`, of any queues and options, in as few trips as can be."""
        bound = bound_jobs(calls, AsyncBoundCall)
        return await self._dispatched(bound, self._core.dispatch_bound(bound))

    async def _dispatched(self, bound: list[BoundJob], flow: Flow[list[Answer]]) -> list[AsyncJob[Any]]:
        try:
            return AsyncJob._all_of(self, bound, await self._run(flow))
        except (PartialDispatch, NotDurable) as error:
            error.jobs = AsyncJob._all_of(self, bound, error.jobs)
            raise

    # Handlers

    @overload
    def handler(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandler[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> AsyncHandler[P, R, R]: ...
    @overload
    def handler(
        self, *, name: str | None = None, queue: str | None = None, **options: Any
    ) -> AsyncRegisters: ...
    def handler(self, function: Any = None, **options: Any) -> Any:
        """Register a function as the handler of a queue; with options, or bare as a decorator."""
        return self._handler(function, **options)

    # Waiting

    async def wait(
        self,
        jobs: Iterable[AsyncJob[Any]],
        timeout: float | None = None,
        return_when: str = "ALL_COMPLETED",
    ) -> Waited:
        """Those that have ended and those that have not, as `asyncio.wait` has it."""
        when = waiting.condition(return_when)
        return await aio_waiting.wait(self, list(jobs), waiting.seconds(timeout), when)

    def as_completed(
        self, jobs: Iterable[AsyncJob[R]], timeout: float | None = None, progress: bool = False
    ) -> AsyncIterator[AsyncJob[R]]:
        """Each job as it ends; with `progress`, a bar is shown where there is a terminal."""
        self._may_wait()
        return aio_waiting.as_completed(self, list(jobs), waiting.seconds(timeout), progress)

    async def gather(
        self,
        jobs: Iterable[AsyncJob[R]],
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> list[R]:
        """The results in the order of the jobs; the first failure is raised as soon as it is there."""
        return await aio_waiting.gather(self, list(jobs), waiting.seconds(timeout), return_exceptions)

    def events(self) -> AsyncIterator[Event]:
        """What happens in all queues from now on, for ever."""
        return aio_waiting.hive_events(self)

    async def ping(self, wait: float = 0.0) -> float:
        """The seconds one round trip takes; tries for `wait` seconds before it gives up."""
        patience = units.seconds(wait, "wait")
        started = time.monotonic()
        await self._run(self._core.commands.session.command(None, b"PING", patience=patience))
        return time.monotonic() - started

    async def close(self) -> None:
        """Close the connections. A client given by `client=` is left alone."""
        listener = self._listeners.pop(asyncio.get_running_loop(), None)
        if listener is not None:
            await listener.stop()
        if self._broker is not None:
            await self._broker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncQueue(QueueBase[AsyncHive]):
    """A named queue: only a name and the options for its next dispatches."""

    # Dispatch

    async def dispatch(self, *args: Any, **kwargs: Any) -> AsyncJob[Any]:
        """Write one job; returns once the server has it."""
        core, options = self._core, self._options
        item = core.item(options, args, kwargs, self.name)
        flow = core.commands.dispatch(self.name, (item,), options.durable is True)
        try:
            return AsyncJob._of(self._hive, self.name, item, (await self._hive._run(flow))[0])
        except NotDurable as error:
            error.jobs = [AsyncJob._of(self._hive, self.name, item, error.jobs[0])]
            raise

    async def dispatch_many(self, items: Iterable[Any]) -> list[AsyncJob[Any]]:
        """Write one job for each item, its one positional argument: a trip per 1,000."""
        bound, flow = self._many(list(items))
        return await self._hive._dispatched(bound, flow) if bound else []

    def bind(self, *args: Any, **kwargs: Any) -> AsyncBoundCall:
        """A checked call that is dispatched later, alone or by `hive.dispatch_many`."""
        return AsyncBoundCall(self, args, kwargs)

    # Leases by hand

    async def lease(
        self, visibility: float | None = None, wait: float | None = 0.0
    ) -> AsyncLease | None:
        """Take one job, ours for `visibility` seconds; waits up to `wait`, None for ever."""
        got = await self._hive._run(self._lease_flow(visibility, wait))
        return None if got is None else AsyncLease(self._hive, self.name, got)

    # Looking

    async def stats(self) -> QueueStats:
        """The exact numbers of this instant, in one call."""
        return await self._hive._run(self._core.commands.stats(self.name))

    async def jobs(self, state: str = "ready", limit: int = 100, cursor: str | None = None) -> Page:
        """Some jobs in one state, in order; go on with the page's `cursor`."""
        units.whole(limit, "limit", least=1, most=1000)
        return await self._hive._run(
            self._core.commands.page(self.name, listed_state(state), limit, cursor)
        )

    async def matching(self, *args: Any, **kwargs: Any) -> list[AsyncJob[Any]]:
        """The waiting and running jobs with these arguments; reads through the queue."""
        found = await self._hive._run(self._core.commands.matching(self.name, args, kwargs))
        return [AsyncJob(self._hive, self.name, job.id, job.generation, False) for job in found]

    @property
    def dead(self) -> AsyncDeadLetters:
        """The jobs that failed for good and are kept."""
        return AsyncDeadLetters(self)

    # Acting

    async def cancel(self, id: str, cooperative: bool = False, grace: float = 0.0) -> bool:
        """Drop a waiting job, kill a running one; as `job.cancel`."""
        return await self._hive._run(self._cancel_flow(units.job_id(id), cooperative, grace))

    async def pause(self) -> None:
        """Let nobody take jobs; what runs goes on, and dispatching too."""
        await self._hive._run(self._core.commands.configure(self.name, paused="1"))

    async def resume(self) -> None:
        """End a pause."""
        await self._hive._run(self._core.commands.configure(self.name, paused=""))

    async def configure(self, *, max_depth: int | None = UNSET, events: bool = UNSET) -> None:
        """Refuse dispatches with `QueueFull` once `max_depth` jobs wait; keep no events."""
        await self._hive._run(self._configure_flow(max_depth, events))

    def events(self, after: Event | str | None = None) -> AsyncIterator[Event]:
        """What happens in this queue, for ever: from now on, or behind an event or its id.

        An empty id stands for the oldest that is kept.
        """
        return aio_waiting.queue_events(self._hive, self.name, following.after(after))

    async def purge(self, state: str, older_than: float = 0.0) -> int:
        """Drop the jobs in one state that are at least `older_than` seconds old; how many."""
        age = units.seconds(older_than, "older_than")
        return await self._hive._run(self._core.commands.purge(self.name, purged_state(state), age))

    async def sweep(self) -> list[str]:
        """Put back what lapsed, promote what is due; any lease does so in passing."""
        return await self._hive._run(self._core.commands.sweep(self.name))

    async def destroy(self) -> int:
        """Drop the queue, its fail lane and all they hold; how many jobs waited or ran."""
        return await self._hive._run(self._destroy_flow())


class AsyncBoundCall(BoundBase[AsyncQueue]):
    """A dispatch that was not made yet."""

    async def dispatch(self) -> AsyncJob[Any]:
        """Dispatch it; each time anew."""
        return await self._queue.dispatch(*self._args, **self._kwargs)


class AsyncJob(JobBase[AsyncHive], Generic[R]):
    """A handle on one job; `R` is what its handler returns."""

    __slots__ = ()

    async def result(self, timeout: float | None = None) -> R:
        """Wait for its end: what its handler returned, or the exception that stands in its place."""
        seconds = waiting.seconds(timeout)  # wrong is wrong, also if it has ended already
        end = self._end or await aio_waiting.end_of(self, seconds)
        return self._value(end)  # type: ignore[no-any-return]

    async def state(self) -> JobState:
        """Where it stands now."""
        commands = self._hive._core.commands
        return await self._hive._run(commands.state(self.queue, self.id, self._generation))

    async def info(self) -> JobInfo:
        """All its record says."""
        commands = self._hive._core.commands
        return await self._hive._run(commands.info(self.queue, self.id, self._generation))

    async def progress(self) -> Progress | None:
        """How far its handler says it is; of a job that has ended, how far it came."""
        commands = self._hive._core.commands
        return await self._hive._run(commands.progress(self.queue, self.id, self._generation))

    async def attempts(self) -> list[AttemptInfo]:
        """Its attempts that are over, the last five, oldest first: errors, costs, black boxes."""
        commands = self._hive._core.commands
        return await self._hive._run(commands.attempts(self.queue, self.id, self._generation))

    def events(self) -> AsyncIterator[Event]:
        """What happened to it and what does, until its end."""
        return aio_waiting.job_events(self)

    async def cancel(self, cooperative: bool = False, grace: float = 0.0) -> bool:
        """Drop it if it waits, kill it if it runs, after `grace` seconds; False if it had ended.

        With `cooperative` a running one is only asked: it sees `current_job().cancelled`, and what it
        returns stands.
        """
        return await self._hive._run(self._cancel_flow(cooperative, grace))

    async def delete(self) -> bool:
        """Drop its record and result; raises `JobActive` while it runs."""
        return await self._hive._run(self._hive._core.commands.remove(self.queue, self.id))


class AsyncDeadLetters:
    """The failed jobs of a queue that are kept for inspection."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue

    async def jobs(self, limit: int = 100, cursor: str | None = None) -> Page:
        """Some of them, the next to expire first."""
        return await self._queue.jobs("failed", limit, cursor)

    async def retry(self, id: str) -> bool:
        """Make one ready again with its counters at zero; False if there is no such dead letter."""
        queue = self._queue
        return await queue._hive._run(queue._core.commands.revive(queue.name, units.job_id(id)))

    async def purge(self, older_than: float = 0.0) -> int:
        """Drop them; how many."""
        return await self._queue.purge("failed", older_than)


class AsyncLease(LeaseBase[AsyncHive]):
    """A job taken by hand. Every method raises `LeaseLost` once it is not ours any more."""

    async def ack(self, result: Any = None) -> None:
        """End the job with a result."""
        await self._settle(self._core.acked(self.queue, self._job, result))

    async def fail(self, why: Any, *, permanent: bool = False) -> None:
        """End the attempt: the job comes again after a while, or is given up."""
        await self._settle(self._core.failed(self._job, why, permanent, random))

    async def release(self, delay: float | None = None) -> None:
        """Give it back uncounted: to its old place, or to wait for `delay` seconds."""
        await self._settle(self._released(delay))

    async def extend(self, seconds: float) -> None:
        """Keep it for so many seconds from now on."""
        self._renewed(await self._hive._run(self._renewal(seconds)))

    async def _settle(self, settle: Settle) -> None:
        self._answered(await self._hive._run(self._core.commands.settle(self.queue, settle)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.fail(error)
        else:  # Ctrl-C is nobody's failure
            await self.release()
