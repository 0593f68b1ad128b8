"""A `concurrent.futures.Executor` whose calls are jobs.

Calls travel as signed pickles. A thread sends what was submitted, as much as there is at once, and the
hive's listener brings the results; so a submit costs no round trip, and a thousand of them cost one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import queue as queues
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from taskhive import pickles, secret, units
from taskhive.board import Watch
from taskhive.called import MAX_CALL
from taskhive.errors import ConfigurationError, JobActive, PartialDispatch, TaskHiveError
from taskhive.hive import Hive
from taskhive.ids import new_id, new_ids
from taskhive.jobs import Fetched, JobState
from taskhive.local import LocalWorker
from taskhive.parcels import MAX_ITEMS, Item
from taskhive.results import value_of
from taskhive.signing import KeyRing

P = ParamSpec("P")
T = TypeVar("T")

_BUFFERED = 2000
"""How many chunks of a `map` are under way at once."""
_FIRST, _GROWTH = 32, 4
"""How many of them are sent first, and how many times more with each time after that."""


class CallFuture(concurrent.futures.Future[T]):
    """The future of one call."""

    def __init__(self, executor: Executor, job_id: str) -> None:
        super().__init__()
        self._executor = executor
        self._is_sent = False
        self.job_id = job_id

    def cancel(self) -> bool:
        """Drop the call if it waits, kill it if it runs; False if it had ended."""
        return self._executor._cancel(self)

    def running(self) -> bool:
        """Whether a worker has begun it."""
        return not self.done() and self._executor._state(self) == "active"


class Executor(concurrent.futures.Executor):
    """Runs calls on the workers that serve `queue`; without a hive and a URL, on one of its own."""

    def __init__(
        self,
        hive: Hive | None = None,
        queue: str = "calls",
        *,
        max_workers: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if initializer is not None and not callable(initializer):
            raise ConfigurationError("initializer", "not callable", "Give a function")
        self._local: LocalWorker | None = None
        self._owns_hive = hive is None
        self._queue = units.queue_name(queue)
        if hive is None:
            hive = Hive()
            if not os.environ.get("TASKHIVE_URL"):
                self._queue = f"{self._queue}-{new_id()}"
                self._local = LocalWorker(hive, self._queue, max_workers, self._broken)
        if max_workers is not None:
            units.whole(max_workers, "max_workers", least=1)
            if self._local is None:
                raise ConfigurationError(
                    "max_workers", "is for the executor's own worker", "Say --concurrency to the workers"
                )
        self._hive = hive
        self._ring = secret.need(hive._core.ring())
        self._listener = hive._listener()
        self._initializer = (
            None if initializer is None else pickles.by_value((initializer, initargs), "initializer")
        )
        self._functions: dict[Any, bytes] = {}
        self._lock = threading.Lock()
        self._pending: dict[str, CallFuture[Any]] = {}
        self._living: set[CallFuture[Any]] = set()
        self._unsent: queues.SimpleQueue[list[Item] | None] = queues.SimpleQueue()
        self._sending = threading.Lock()
        self._closed = False
        self._feeder = threading.Thread(target=self._feed, name="taskhive-executor", daemon=True)
        self._feeder.start()
        if self._local is not None:
            self._local.start()

    # Submitting

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> CallFuture[T]:
        """Have a call made; its future."""
        return self._submit(fn, [(args, kwargs, self._initializer)])[0]

    def _submit(
        self, fn: Any, calls: list[tuple[Any, ...]], at_once: bool = False
    ) -> list[CallFuture[Any]]:
        """A job for each; they are sent together: by the thread that does so, or at once by this one."""
        futures: list[CallFuture[Any]] = []
        items = []
        function = b""
        for job_id, words in zip(new_ids(len(calls)), calls, strict=True):
            future: CallFuture[Any] = CallFuture(self, job_id)
            futures.append(future)
            try:
                function = function or self._pickled(fn)
                call = (function, *words)
                data = pickles.encode_call(self._ring, self._queue, job_id, call, {}, MAX_CALL)
                items.append(Item(job_id, data, b""))
            except TaskHiveError as error:  # as a pool of processes has it: the future tells
                future.set_exception(error)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            for future in futures:
                if not future.done():
                    self._pending[future.job_id] = future
                    self._living.add(future)
            if not at_once:
                self._unsent.put(items)
        for future in futures:
            future.add_done_callback(self._living.discard)
        if at_once:
            self._send(items)
        return futures

    def _pickled(self, fn: Callable[..., Any]) -> bytes:
        """The function by value; once for any number of calls, unless what it closes over may change."""
        if getattr(fn, "__closure__", None) or not hasattr(fn, "__code__"):
            return pickles.by_value(fn, "fn")
        known = self._functions.get(fn)
        if known is None:
            if len(self._functions) > 100:
                self._functions.clear()
            known = self._functions[fn] = pickles.by_value(fn, "fn")
        return known

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int = _BUFFERED,
    ) -> Iterator[T]:
        """The results in order. Inputs are taken as they are needed, so they may be endless."""
        units.whole(chunksize, "chunksize", least=1)
        units.whole(buffersize, "buffersize", least=1)
        deadline = None if timeout is None else time.monotonic() + units.seconds(timeout, "timeout")
        calls: Iterator[tuple[Any, ...]] = (
            (columns, {}, self._initializer, True) for columns in _chunks(iterables, chunksize)
        )
        flying: deque[CallFuture[Any]] = deque()
        self._top_up(fn, calls, flying, buffersize)
        return self._results(fn, calls, flying, deadline, buffersize)

    def _top_up(
        self, fn: Any, calls: Iterator[tuple[Any, ...]], flying: deque[CallFuture[Any]], most: int
    ) -> None:
        """Have as many under way as may be; few first: workers begin while the others are made."""
        size = _FIRST
        while some := list(itertools.islice(calls, min(size, most - len(flying)))):
            # Workers begin with these: they are not left to a thread that would have to wait for us.
            flying.extend(self._submit(fn, some, at_once=size == _FIRST))
            size *= _GROWTH
            time.sleep(0)  # the thread that sends would wait for the interpreter until all are made

    def _results(
        self,
        fn: Any,
        calls: Iterator[tuple[Any, ...]],
        flying: deque[CallFuture[Any]],
        deadline: float | None,
        buffersize: int,
    ) -> Iterator[Any]:
        try:
            while flying:
                left = None if deadline is None else deadline - time.monotonic()
                results = flying[0].result(left)
                flying.popleft()
                if len(flying) <= buffersize // 2:  # by the half: many are sent together
                    self._top_up(fn, calls, flying, buffersize)
                yield from results
        finally:
            for future in flying:
                future.cancel()

    # Sending, in a thread of its own

    def _feed(self) -> None:
        last = False
        while not last:
            items = self._unsent.get()
            last = items is None
            some = list(items or ())
            with contextlib.suppress(queues.Empty):
                while len(some) < MAX_ITEMS and not last:
                    items = self._unsent.get_nowait()
                    last = items is None
                    some += items or ()
            for start in range(0, len(some), MAX_ITEMS):
                self._send(some[start : start + MAX_ITEMS])

    def _send(self, items: list[Item]) -> None:
        # A cancel waits for this: it finds a call unsent, and drops it here, or on the server.
        with self._sending:
            items = [one for one in items if one.id in self._pending]
            if not items:
                return
            for item in items:
                self._pending[item.id]._is_sent = True
            # Any end of such an id is the one that is meant: nobody else can have it.
            watches = [Watch(self._queue, item.id, 0, self._ended, unsent=True) for item in items]
            self._listener.watch(watches)
            there = 0
            try:
                there = len(self._hive._run(self._hive._core.commands.dispatch(self._queue, items)))
            except PartialDispatch as error:  # large ones go in several trips
                there = len(error.jobs)
                for index, problem in error.errors.items():
                    self._settle(items[index].id, problem)
            except TaskHiveError as error:
                for item in items:
                    self._settle(item.id, error)
        self._listener.forget(watches[there:])
        self._listener.sent(watches[:there])

    # Results, in the listener's thread

    def _ended(self, watch: Watch, end: Fetched | Exception) -> None:
        self._settle(watch.id, end)

    def _settle(self, job_id: str, end: Fetched | Exception) -> None:
        future = self._pending.pop(job_id, None)  # who takes it off settles it
        if future is None:
            return
        if isinstance(end, Exception):
            future.set_exception(end)
        elif end.state is JobState.CANCELLED:
            _cancelled(future)
        else:
            try:
                value = value_of(self._queue, job_id, end, self._hive._core.exceptions, self._keys)
            except Exception as error:  # noqa: BLE001 -- whatever the call raised
                future.set_exception(error)
            else:
                future.set_result(value)

    def _keys(self) -> KeyRing:
        return self._ring

    # Cancelling and the end

    def _cancel(self, future: CallFuture[Any]) -> bool:
        if future.done():
            return future.cancelled()
        with self._sending:
            is_sent = future._is_sent
            if not is_sent:
                self._pending.pop(future.job_id, None)
        if is_sent:
            if not self._hive.queue(self._queue).cancel(future.job_id):
                return False  # it has ended, and its result is on the way
            if self._pending.pop(future.job_id, None) is None:
                return future.cancelled()
        _cancelled(future)
        return True

    def _state(self, future: CallFuture[Any]) -> str:
        return self._hive.job(self._queue, future.job_id).state()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `cancel_futures` drop those that no worker has begun."""
        with self._lock:
            was_closed, self._closed = self._closed, True
        if cancel_futures:
            self._drop_waiting()
        if not was_closed:
            self._unsent.put(None)
        if wait:
            self._feeder.join()
            concurrent.futures.wait(list(self._living))
            self._stop()
        elif not was_closed and self._local is not None:
            threading.Thread(target=self.shutdown, name="taskhive-shutdown").start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all calls; after Ctrl-C, which the children do not hear of, for none of them."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for future in list(self._living):
                future.cancel()
        self.shutdown()

    def _drop_waiting(self) -> None:
        if self._local is not None:  # nobody else's calls are in its queue
            self._hive.queue(self._queue).purge("ready")
        for future in list(self._living):
            with self._sending:  # what is on its way is there afterwards
                is_sent = future._is_sent
            if not is_sent:
                self._cancel(future)
                continue
            job = self._hive.job(self._queue, future.job_id)
            with contextlib.suppress(JobActive):  # a worker has begun it: it may end
                dropped = job.state() == JobState.READY and job.delete()
                if dropped and self._pending.pop(future.job_id, None) is not None:
                    _cancelled(future)

    def _stop(self) -> None:
        if self._local is not None:
            self._local.stop()
        if self._owns_hive:
            self._hive.close()

    def _broken(self, error: Exception) -> None:
        """The executor's own worker has ended: nobody will make these calls."""
        with self._lock:
            self._closed = True
        for job_id in list(self._pending):
            self._settle(job_id, error)


def _cancelled(future: CallFuture[Any]) -> None:
    concurrent.futures.Future.cancel(future)
    future.set_running_or_notify_cancel()  # tells who waits in concurrent.futures.wait


def _chunks(iterables: tuple[Iterable[Any], ...], size: int) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """The arguments of so many calls at a time, as columns."""
    if len(iterables) == 1:
        inputs = iter(iterables[0])
        while column := tuple(itertools.islice(inputs, size)):
            yield (column,)
        return
    rows = zip(*iterables, strict=False)  # one may be there twice, and is shared then
    while chunk := tuple(itertools.islice(rows, size)):
        yield tuple(zip(*chunk, strict=True))
