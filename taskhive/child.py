"""The process that runs attempts, one after the other; it knows no server.

It reads `RUN` frames from its private socket and answers each with `FINISHED` or `RAISED`. Nothing is
shared with other children, so it can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import resource
import signal
import sys
import time
from collections import deque
from typing import Any

from taskhive import birth, calls, context, frames, linux, relay
from taskhive.context import CurrentJob
from taskhive.errors import SoftTimeout
from taskhive.handlers import Handler
from taskhive.loader import Loaded
from taskhive.mouth import Mouth
from taskhive.output import Lines
from taskhive.raising import tell
from taskhive.retries import Counts
from taskhive.threads import Threads
from taskhive.wire import Kind, read_json


class Child:
    """One child, from its fork to its end."""

    def __init__(self, mouth: Mouth, loaded: Loaded, worker: str) -> None:
        self._mouth = mouth
        self._handlers = loaded.handlers
        self._starts = loaded.child_starts
        self._max_result = loaded.max_result
        self._worker = worker
        self._pid = os.getpid()
        self._running = False
        self._runner: asyncio.Runner | None = None
        self._peak = birth.open_peak()
        self._streams: list[Lines] = []
        self._threads = Threads()
        self._spent = 0.0

    def run(self) -> None:
        """Serve until the supervisor closes the socket."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Lines):
                stream.sink = self._mouth.print
                self._streams.append(stream)
        signal.signal(linux.SOFT_SIGNAL, self._soft_limit)
        relay.install(relay.Relay(self._mouth.ask))
        for start in self._starts:
            start()
        self._habits = birth.Habits()
        self._spent = _cpu(resource.getrusage(resource.RUSAGE_SELF))
        self._mouth.ready()
        runs: deque[bytes] = self._mouth.runs
        while self._mouth.wait_for_run():
            self._attempt(runs.popleft())
            if not runs:
                linux.set_title("taskhive child: idle")

    # One attempt

    def _attempt(self, body: bytes) -> None:
        header, payload = read_json(body)
        number, queue, job_id, fence, attempt, counts, extra = header
        mouth = self._mouth
        mouth.begin(number)
        handler = self._handlers[queue]
        job = CurrentJob(
            job_id,
            queue,
            attempt,
            fence,
            Counts(*counts),
            self._worker,
            mouth.progress,
            mouth.is_cancelled,
        )
        self._threads.grant(handler.options_given.weight)
        linux.set_title(f"taskhive child: {queue}/{job_id}")
        os.pwrite(self._peak, b"5", 0)
        started = time.perf_counter()
        encoding = False
        kind = Kind.FINISHED
        try:
            args, kwargs = calls.decode(handler, job_id, payload, extra)
            context.set_current(job)
            self._running = True
            try:
                result = self._call(handler, args, kwargs, job, extra)
            finally:
                self._running = False
            encoding = True
            data = calls.encode(handler, job_id, result, self._max_result)
        except BaseException as error:  # noqa: BLE001 -- whatever a handler raises is its outcome
            if os.getpid() != self._pid:
                os._exit(1)
            kind = Kind.RAISED
            data = frames.raised(*tell(handler, job_id, error, attempt, encoding, __file__))
            # Memory or stack ran out once; what is left of the process is not to be trusted.
            spent = isinstance(error, (MemoryError, RecursionError))
        else:
            if os.getpid() != self._pid:
                os._exit(0)  # the handler forked, and its copy came back: there is one of us already
            spent = False
        job.flush()
        context.set_current(None)
        for stream in self._streams:
            stream.end()
        mouth.end()
        wall = time.perf_counter() - started
        usage = resource.getrusage(resource.RUSAGE_SELF)
        before, self._spent = self._spent, _cpu(usage)
        spent = spent or not self._habits.are_kept()
        peak = usage.ru_maxrss * linux.MAXRSS_UNIT
        mouth.tell_end(frames.over(kind, number, wall, self._spent - before, peak, spent, data))

    def _call(
        self,
        handler: Handler[Any, Any, Any],
        args: Any,
        kwargs: dict[str, Any],
        job: CurrentJob,
        extra: Any,
    ) -> Any:
        args, kwargs = calls.given(handler, args, kwargs, job, extra)
        result = handler.function(*args, **kwargs)
        return self._await(result) if inspect.iscoroutine(result) else result

    def _await(self, coroutine: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(coroutine)
        except SoftTimeout:
            # It was raised wherever the loop stood: that loop has an end that nobody knows.
            runner, self._runner = self._runner, None
            with contextlib.suppress(Exception):
                runner.close()
            raise

    def _soft_limit(self, number: int, stack: Any) -> None:
        # The attempt may have ended between the supervisor's look and this signal.
        if self._running:
            self._running = False
            raise SoftTimeout("the soft limit has passed")


def _cpu(mine: resource.struct_rusage) -> float:
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime
