"""The blocking client: `Hive` and what it hands out."""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from taskhive import following, relay, units, waiting
from taskhive.broker import Broker
from taskhive.core import DEFAULT_VISIBILITY, IO_TIMEOUT, BoundJob, listed_state, purged_state
from taskhive.costs import HandlerCosts
from taskhive.crew import WorkerInfo, read_worker
from taskhive.effects import Flow, T
from taskhive.errors import NotDurable, PartialDispatch
from taskhive.events import Event
from taskhive.handlers import Handler, Registers
from taskhive.handles import BoundBase, HiveBase, JobBase, LeaseBase, QueueBase, bound_jobs
from taskhive.jobs import AttemptInfo, JobInfo, JobState, Page, Progress, QueueStats
from taskhive.listener import Listener
from taskhive.locks import Lock
from taskhive.options import PLAIN, UNSET
from taskhive.parcels import Answer, Settle
from taskhive.waiting import Waited

P = ParamSpec("P")
R = TypeVar("R")


class Hive(HiveBase):
    """A program's way to its queues.

    Without a URL it uses `TASKHIVE_URL`, and without that the embedded server. It connects at
    first use, may be shared by threads, and survives a fork.
    """

    _broker: Broker | None = None

    def _run(self, flow: Flow[T]) -> T:
        if relay.installed is not None:
            return relay.installed.run(flow)
        return self._connected().run(flow)

    def _connected(self) -> Broker:
        broker = self._broker
        if broker is None:
            broker = self._broker = Broker(self._core.target, self._core.directory, IO_TIMEOUT)
        return broker

    def _listener(self) -> Listener:
        """The listener of this process; the one that a fork left behind is not ours to touch."""
        self._may_wait()
        found: Listener | None = self._listeners.get(os.getpid())
        if found is None:
            made = Listener(self._connected(), self._core.commands)
            # Another thread may make one as well; a lock here could be held across a fork for ever.
            found = self._listeners.setdefault(os.getpid(), made)
            if found is made:
                weakref.finalize(self, made.stop).atexit = False
                made.start()
            else:
                made.discard()
        return found

    def queue(self, name: str, *, visibility: float = DEFAULT_VISIBILITY) -> Queue:
        """A queue by its name; `visibility` is for leases taken by hand from this object."""
        return Queue(self, name, PLAIN, visibility)

    def job(self, queue: str, id: str) -> Job[Any]:
        """The newest run of an id, whoever dispatched it."""
        return Job(self, units.queue_name(queue), units.job_id(id), None, False)

    def lock(self, name: str, ttl: float = 10.0) -> Lock:
        """A lock that programs share; not taken yet. It lapses `ttl` seconds after its holder died."""
        return Lock(self, name, ttl)

    def queues(self) -> list[str]:
        """The names of all queues that were dispatched to, in order."""
        return self._run(self._core.commands.queues())

    def workers(self) -> list[WorkerInfo]:
        """The workers there are, as each says of itself every few seconds."""
        return [read_worker(one) for one in self._run(self._core.commands.workers())]

    def handlers(self) -> list[HandlerCosts]:
        """What the attempts of each handler have cost, all workers together."""
        return self._run(self._core.commands.handlers())

    def dispatch_many(self, calls: Iterable[BoundCall]) -> list[Job[Any]]:
        """Dispatch calls made by `bind`, of any queues and options, in as few trips as can be."""
        bound = bound_jobs(calls, BoundCall)
        return self._dispatched(bound, self._core.dispatch_bound(bound))

    def _dispatched(self, bound: list[BoundJob], flow: Flow[list[Answer]]) -> list[Job[Any]]:
        try:
            return Job._all_of(self, bound, self._run(flow))
        except (PartialDispatch, NotDurable) as error:
            error.jobs = Job._all_of(self, bound, error.jobs)
            raise

    # Handlers

    @overload
    def handler(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Handler[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> Handler[P, R, R]: ...
    @overload
    def handler(
        self, *, name: str | None = None, queue: str | None = None, **options: Any
    ) -> Registers: ...
    def handler(self, function: Any = None, **options: Any) -> Any:
        """Register a function as the handler of a queue; with options, or bare as a decorator."""
        return self._handler(function, **options)

    # Waiting

    def wait(
        self, jobs: Iterable[Job[Any]], timeout: float | None = None, return_when: str = "ALL_COMPLETED"
    ) -> Waited:
        """Those that have ended and those that have not, as `concurrent.futures.wait` has it."""
        return waiting.wait(self, list(jobs), waiting.seconds(timeout), waiting.condition(return_when))

    def as_completed(
        self, jobs: Iterable[Job[R]], timeout: float | None = None, progress: bool = False
    ) -> Iterator[Job[R]]:
        """Each job as it ends; with `progress`, a bar is shown where there is a terminal."""
        self._may_wait()
        return waiting.as_completed(self, list(jobs), waiting.seconds(timeout), progress)

    def gather(
        self,
        jobs: Iterable[Job[R]],
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> list[R]:
        """The results in the order of the jobs; the first failure is raised as soon as it is there."""
        return waiting.gather(self, list(jobs), waiting.seconds(timeout), return_exceptions)

    def events(self) -> Iterator[Event]:
        """What happens in all queues from now on, for ever."""
        return waiting.hive_events(self)

    def ping(self, wait: float = 0.0) -> float:
        """The seconds one round trip takes; tries for `wait` seconds before it gives up."""
        patience = units.seconds(wait, "wait")
        started = time.monotonic()
        self._run(self._core.commands.session.command(None, b"PING", patience=patience))
        return time.monotonic() - started

    def close(self) -> None:
        """Close the connections. A client given by `client=` is left alone."""
        listener = self._listeners.pop(os.getpid(), None)
        if listener is not None:
            listener.stop()
        if self._broker is not None:
            self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Queue(QueueBase[Hive]):
    """A named queue: only a name and the options for its next dispatches."""

    # Dispatch

    def dispatch(self, *args: Any, **kwargs: Any) -> Job[Any]:
        """Write one job; returns once the server has it."""
        core, options = self._core, self._options
        item = core.item(options, args, kwargs, self.name)
        flow = core.commands.dispatch(self.name, (item,), options.durable is True)
        try:
            return Job._of(self._hive, self.name, item, self._hive._run(flow)[0])
        except NotDurable as error:
            error.jobs = [Job._of(self._hive, self.name, item, error.jobs[0])]
            raise

    def dispatch_many(self, items: Iterable[Any]) -> list[Job[Any]]:
        """Write one job for each item, its one positional argument: a trip per 1,000."""
        bound, flow = self._many(list(items))
        return self._hive._dispatched(bound, flow) if bound else []

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall:
        """A checked call that is dispatched later, alone or by `hive.dispatch_many`."""
        return BoundCall(self, args, kwargs)

    # Leases by hand

    def lease(self, visibility: float | None = None, wait: float | None = 0.0) -> Lease | None:
        """Take one job, ours for `visibility` seconds; waits up to `wait`, None for ever."""
        got = self._hive._run(self._lease_flow(visibility, wait))
        return None if got is None else Lease(self._hive, self.name, got)

    # Looking

    def stats(self) -> QueueStats:
        """The exact numbers of this instant, in one call."""
        return self._hive._run(self._core.commands.stats(self.name))

    def jobs(self, state: str = "ready", limit: int = 100, cursor: str | None = None) -> Page:
        """Some jobs in one state, in order; go on with the page's `cursor`."""
        units.whole(limit, "limit", least=1, most=1000)
        return self._hive._run(self._core.commands.page(self.name, listed_state(state), limit, cursor))

    def matching(self, *args: Any, **kwargs: Any) -> list[Job[Any]]:
        """The waiting and running jobs with these arguments; reads through the queue."""
        found = self._hive._run(self._core.commands.matching(self.name, args, kwargs))
        return [Job(self._hive, self.name, job.id, job.generation, False) for job in found]

    @property
    def dead(self) -> DeadLetters:
        """The jobs that failed for good and are kept."""
        return DeadLetters(self)

    # Acting

    def cancel(self, id: str, cooperative: bool = False, grace: float = 0.0) -> bool:
        """Drop a waiting job, kill a running one; as `job.cancel`."""
        return self._hive._run(self._cancel_flow(units.job_id(id), cooperative, grace))

    def pause(self) -> None:
        """Let nobody take jobs; what runs goes on, and dispatching too."""
        self._hive._run(self._core.commands.configure(self.name, paused="1"))

    def resume(self) -> None:
        """End a pause."""
        self._hive._run(self._core.commands.configure(self.name, paused=""))

    def configure(self, *, max_depth: int | None = UNSET, events: bool = UNSET) -> None:
        """Refuse dispatches with `QueueFull` once `max_depth` jobs wait; keep no events."""
        self._hive._run(self._configure_flow(max_depth, events))

    def events(self, after: Event | str | None = None) -> Iterator[Event]:
        """What happens in this queue, for ever: from now on, or behind an event or its id.

        An empty id stands for the oldest that is kept.
        """
        return waiting.queue_events(self._hive, self.name, following.after(after))

    def purge(self, state: str, older_than: float = 0.0) -> int:
        """Drop the jobs in one state that are at least `older_than` seconds old; how many."""
        age = units.seconds(older_than, "older_than")
        return self._hive._run(self._core.commands.purge(self.name, purged_state(state), age))

    def sweep(self) -> list[str]:
        """Put back what lapsed, promote what is due; any lease does so in passing."""
        return self._hive._run(self._core.commands.sweep(self.name))

    def destroy(self) -> int:
        """Drop the queue, its fail lane and all they hold; how many jobs waited or ran."""
        return self._hive._run(self._destroy_flow())


class BoundCall(BoundBase[Queue]):
    """A dispatch that was not made yet."""

    def dispatch(self) -> Job[Any]:
        """Dispatch it; each time anew."""
        return self._queue.dispatch(*self._args, **self._kwargs)


class Job(JobBase[Hive], Generic[R]):
    """A handle on one job; `R` is what its handler returns."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> R:
        """Wait for its end: what its handler returned, or the exception that stands in its place."""
        seconds = waiting.seconds(timeout)  # wrong is wrong, also if it has ended already
        end = self._end or waiting.end_of(self, seconds)
        return self._value(end)  # type: ignore[no-any-return]

    def state(self) -> JobState:
        """Where it stands now."""
        commands = self._hive._core.commands
        return self._hive._run(commands.state(self.queue, self.id, self._generation))

    def info(self) -> JobInfo:
        """All its record says."""
        commands = self._hive._core.commands
        return self._hive._run(commands.info(self.queue, self.id, self._generation))

    def progress(self) -> Progress | None:
        """How far its handler says it is; of a job that has ended, how far it came."""
        commands = self._hive._core.commands
        return self._hive._run(commands.progress(self.queue, self.id, self._generation))

    def attempts(self) -> list[AttemptInfo]:
        """Its attempts that are over, the last five, oldest first: errors, costs, black boxes."""
        commands = self._hive._core.commands
        return self._hive._run(commands.attempts(self.queue, self.id, self._generation))

    def events(self) -> Iterator[Event]:
        """What happened to it and what does, until its end."""
        return waiting.job_events(self)

    def cancel(self, cooperative: bool = False, grace: float = 0.0) -> bool:
        """Drop it if it waits, kill it if it runs, after `grace` seconds; False if it had ended.

        With `cooperative` a running one is only asked: it sees `current_job().cancelled`, and what it
        returns stands.
        """
        return self._hive._run(self._cancel_flow(cooperative, grace))

    def delete(self) -> bool:
        """Drop its record and result; raises `JobActive` while it runs."""
        return self._hive._run(self._hive._core.commands.remove(self.queue, self.id))


class DeadLetters:
    """The failed jobs of a queue that are kept for inspection."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def jobs(self, limit: int = 100, cursor: str | None = None) -> Page:
        """Some of them, the next to expire first."""
        return self._queue.jobs("failed", limit, cursor)

    def retry(self, id: str) -> bool:
        """Make one ready again with its counters at zero; False if there is no such dead letter."""
        queue = self._queue
        return queue._hive._run(queue._core.commands.revive(queue.name, units.job_id(id)))

    def purge(self, older_than: float = 0.0) -> int:
        """Drop them; how many."""
        return self._queue.purge("failed", older_than)


class Lease(LeaseBase[Hive]):
    """A job taken by hand. Every method raises `LeaseLost` once it is not ours any more."""

    def ack(self, result: Any = None) -> None:
        """End the job with a result."""
        self._settle(self._core.acked(self.queue, self._job, result))

    def fail(self, why: Any, *, permanent: bool = False) -> None:
        """End the attempt: the job comes again after a while, or is given up."""
        self._settle(self._core.failed(self._job, why, permanent, random))

    def release(self, delay: float | None = None) -> None:
        """Give it back uncounted: to its old place, or to wait for `delay` seconds."""
        self._settle(self._released(delay))

    def extend(self, seconds: float) -> None:
        """Keep it for so many seconds from now on."""
        self._renewed(self._hive._run(self._renewal(seconds)))

    def _settle(self, settle: Settle) -> None:
        self._answered(self._hive._run(self._core.commands.settle(self.queue, settle)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.fail(error)
        else:  # Ctrl-C is nobody's failure
            self.release()
