"""The process that runs attempts, one after the other; it knows no server.

It reads `RUN` frames from its private socket and answers each with `FINISHED` or `RAISED`. Nothing is
shared with other children, so it can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import Any

from taskhive import birth, calls, codec, context, exceptions, frames, linux, relay
from taskhive.context import CurrentJob, Failure
from taskhive.errors import PayloadTooLarge, PermanentError, Retry, SoftTimeout
from taskhive.handlers import Handler
from taskhive.loader import Loaded
from taskhive.mouth import Mouth
from taskhive.output import Lines
from taskhive.records import read_error
from taskhive.retries import Counts
from taskhive.threads import Threads
from taskhive.wire import Kind, read_json

# Frames of these files are ours, not the user's.
_HIDDEN = frozenset((__file__, asyncio.runners.__file__, asyncio.base_events.__file__))


class Child:
    """One child, from its fork to its end."""

    def __init__(self, sock: socket.socket, loaded: Loaded, worker: str) -> None:
        self._mouth = Mouth(sock)
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
            data = self._raised(handler, job_id, error, attempt, encoding)
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
        mouth.send(frames.over(kind, number, wall, self._spent - before, peak, spent, data))

    def _call(
        self,
        handler: Handler[Any, Any, Any],
        args: Any,
        kwargs: dict[str, Any],
        job: CurrentJob,
        extra: Any,
    ) -> Any:
        if extra is not None and "failure" in extra:
            args, kwargs = (_failure(extra["failure"], args, kwargs),), {}
        if handler.wants_job and "job" not in kwargs:
            kwargs["job"] = job
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

    def _raised(
        self,
        handler: Handler[Any, Any, Any],
        job_id: str,
        error: BaseException,
        attempt: int,
        encoding: bool,
    ) -> bytes:
        """An exception as JSON, whatever its methods do; nothing of it is trusted to be short."""
        kind, after, at = "error", None, None
        name = exceptions.class_name(error)
        options = handler.options_given
        if encoding:
            kind = "permanent"
            name = "ResultTooLarge" if isinstance(error, PayloadTooLarge) else "ResultEncode"
        elif isinstance(error, (codec.BadPayload, PermanentError, *options.permanent)):
            kind = "permanent"
        elif isinstance(error, Retry):
            after, at = error.after, error.at
        elif isinstance(error, SoftTimeout):
            kind = "timeout"
        elif options.backoff is not None:
            with contextlib.suppress(Exception):  # a broken backoff leaves the exponential one
                after = float(options.backoff(attempt, error))
        record = {
            "type": name[:200],
            "message": exceptions.guarded(lambda: str(error)),
            "traceback": exceptions.guarded(lambda: _traceback(error)),
            "exception": calls.encode_exception(handler, job_id, error, _HIDDEN),
        }
        return frames.raised(kind, after, at, json.dumps(record).encode())


def _failure(told: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Failure:
    body = told["error"].encode("latin-1")
    error = read_error(body, told["kind"])
    counts = Counts(*told["counts"])
    return Failure(told["job_id"], args, kwargs, error, told["kind"], counts, _black_box(body))


def _black_box(body: bytes) -> dict[str, Any] | None:
    try:
        box = json.loads(body).get("black_box")
    except (ValueError, AttributeError, RecursionError):
        return None
    return box if isinstance(box, dict) else None


def _traceback(error: BaseException) -> str:
    # Bounded before it is formatted: a message of 100 MB need not be copied to be cut.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _HIDDEN:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-50)
    return "".join(line[:4096] for line in lines)


def _cpu(mine: resource.struct_rusage) -> float:
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime
