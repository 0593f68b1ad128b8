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


class CallFuture(concurrent.futures.Future[T]):
    """The future of one call."""

    def __init__(self, executor: Executor, job_id: str, is_single: bool) -> None:
        super().__init__()
        self._executor = executor
        self._is_single = is_single
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
        return self._submit(fn, [[args]], kwargs, True)[0]

    def _submit(
        self, fn: Any, chunks: list[list[Any]], kwargs: dict[str, Any], is_single: bool = False
    ) -> list[CallFuture[Any]]:
        """A job for each chunk of rows of arguments; they are sent together."""
        futures: list[CallFuture[Any]] = []
        items = []
        for job_id, rows in zip(new_ids(len(chunks)), chunks, strict=True):
            future: CallFuture[Any] = CallFuture(self, job_id, is_single)
            futures.append(future)
            try:
                items.append(Item(job_id, self._payload(fn, job_id, rows, kwargs), b""))
            except TaskHiveError as error:  # as a pool of processes has it: the future tells
                future.set_exception(error)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            for future in futures:
                if not future.done():
                    self._pending[future.job_id] = future
                    self._living.add(future)
            self._unsent.put(items)
        for future in futures:
            future.add_done_callback(self._living.discard)
        return futures

    def _payload(self, fn: Any, job_id: str, rows: list[Any], kwargs: dict[str, Any]) -> bytes:
        words = (self._pickled(fn), rows, kwargs, self._initializer)
        return pickles.encode_call(self._ring, self._queue, job_id, words, {}, MAX_CALL)

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
        rows = zip(*iterables, strict=False)
        chunks: Iterator[Any] = iter(lambda: list(itertools.islice(rows, chunksize)), [])
        flying = deque(self._submit(fn, list(itertools.islice(chunks, buffersize)), {}))
        return self._results(fn, chunks, flying, deadline, buffersize)

    def _results(
        self,
        fn: Any,
        chunks: Iterator[Any],
        flying: deque[CallFuture[Any]],
        deadline: float | None,
        buffersize: int,
    ) -> Iterator[Any]:
        try:
            while flying:
                left = None if deadline is None else deadline - time.monotonic()
                results = flying[0].result(left)
                flying.popleft()
                if len(flying) <= buffersize // 2:  # by the half: they are sent together
                    more = list(itertools.islice(chunks, buffersize - len(flying)))
                    flying.extend(self._submit(fn, more, {}))
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
            try:
                answers = self._hive._run(self._hive._core.commands.dispatch(self._queue, items))
            except PartialDispatch as error:  # large ones go in several trips
                answers = error.jobs
                for index, problem in error.errors.items():
                    self._settle(items[index].id, problem)
            except TaskHiveError as error:
                for item in items:
                    self._settle(item.id, error)
                return
        self._listener.watch(
            [
                Watch(self._queue, item.id, answer.generation, self._ended)
                for item, answer in zip(items, answers, strict=False)
            ]
        )

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
                future.set_result(value[0] if future._is_single else value)

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

    def _drop_waiting(self) -> None:
        if self._local is not None:  # nobody else's calls are in its queue
            self._hive.queue(self._queue).purge("ready")
        for future in list(self._living):
            if not future._is_sent:
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
