"""The process that runs attempts, one after the other; it knows no server.

It reads `RUN` frames from its private socket and answers each with `FINISHED` or `RAISED`. Nothing is
shared with other children, so it can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import os
import pickle
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

from taskhive import codec, context, exceptions, linux, relay
from taskhive.context import CurrentJob, Failure
from taskhive.errors import PayloadTooLarge, PermanentError, Retry, SoftTimeout
from taskhive.handlers import Handler
from taskhive.loader import Loaded
from taskhive.output import Lines
from taskhive.records import read_error
from taskhive.retries import Counts
from taskhive.wire import Kind, Reader, frame, json_body, json_frame, read_json

FINISHED = struct.Struct("!IddQ")
"""Number, wall seconds, CPU seconds, peak resident bytes; the result follows."""
MAX_OUTPUT = 1024 * 1024


class Child:
    """One child, from its fork to its end."""

    def __init__(self, sock: socket.socket, loaded: Loaded, max_result: int) -> None:
        self._sock = sock
        self._handlers = loaded.handlers
        self._starts = loaded.child_starts
        self._max_result = max_result
        self._pid = os.getpid()
        self._frames: deque[tuple[Kind, bytes]] = deque()
        self._reader = Reader()
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._asked = 0
        self._number = 0
        self._output = 0
        self._running = False
        self._retire = False
        self._runner: asyncio.Runner | None = None
        self._peak = _open_peak()

    # The loop

    def run(self) -> None:
        """Serve until the supervisor closes the socket."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Lines):
                stream.sink = self._print
        signal.signal(linux.SOFT_SIGNAL, self._soft_limit)
        relay.install(relay.Relay(self._ask))
        for start in self._starts:
            start()
        self._send(frame(Kind.READY, b""))
        while True:
            received = self._next()
            if received is None:
                return
            kind, body = received
            if kind is Kind.RUN:
                self._attempt(body)

    def _next(self) -> tuple[Kind, bytes] | None:
        while not self._frames:
            data = self._sock.recv(1 << 18)
            if not data:
                return None
            self._frames.extend(self._reader.feed(data))
        return self._frames.popleft()

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._sock.sendall(data)

    # One attempt

    def _attempt(self, body: bytes) -> None:
        header, payload = read_json(body)
        self._number, queue, job_id, fence, attempt, counts, extra = header
        self._output = 0
        job = CurrentJob(job_id, queue, attempt, fence, Counts(*counts), self._progress)
        handler = self._handlers[queue]
        os.pwrite(self._peak, b"5", 0)
        before = _cpu()
        started = time.perf_counter()
        encoding = False
        try:
            args, kwargs = codec.decode_call(payload)
            context.set_current(job)
            self._running = True
            try:
                result = self._call(handler, args, kwargs, job, extra)
            finally:
                self._running = False
            encoding = True
            data, answer = codec.encode_result(result, limit=self._max_result), b""
        except BaseException as error:  # noqa: BLE001 -- whatever a handler raises is its outcome
            if os.getpid() != self._pid:
                os._exit(1)
            data, answer = b"", self._raised(handler, error, attempt, encoding)
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked, and its copy came back: there is one of us already
        job.flush()
        context.set_current(None)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, Lines):
                stream.end()
        wall = time.perf_counter() - started
        costs = FINISHED.pack(self._number, wall, _cpu() - before, _peak())
        if answer:
            self._send(frame(Kind.RAISED, costs + answer))
        else:
            self._send(frame(Kind.FINISHED, costs + data))

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
        if inspect.iscoroutine(result):
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(result)
        return result

    def _soft_limit(self, number: int, stack: Any) -> None:
        # The attempt may have ended between the supervisor's look and this signal.
        if self._running:
            self._running = False
            raise SoftTimeout("the soft limit has passed")

    def _raised(
        self, handler: Handler[Any, Any, Any], error: BaseException, attempt: int, encoding: bool
    ) -> bytes:
        """An exception as JSON, whatever its methods do; nothing of it is trusted to be short."""
        kind, after, at = "error", None, None
        name = exceptions.class_name(error)
        if encoding:
            kind = "permanent"
            name = "ResultTooLarge" if isinstance(error, PayloadTooLarge) else "ResultEncode"
        elif isinstance(error, (codec.BadPayload, PermanentError, *handler.options_given.permanent)):
            kind = "permanent"
        elif isinstance(error, Retry):
            after, at = error.after, error.at
        elif isinstance(error, SoftTimeout):
            kind = "timeout"
        elif handler.options_given.backoff is not None:
            with contextlib.suppress(Exception):  # a broken backoff leaves the exponential one
                after = float(handler.options_given.backoff(attempt, error))
        body = {
            "kind": kind,
            "type": name[:200],
            "message": exceptions.guarded(lambda: str(error)),
            "traceback": exceptions.guarded(lambda: _traceback(error)),
            "exception": exceptions.encode(error, _HIDDEN),
            "after": after,
            "at": at,
            # Memory or stack ran out once; what is left of the process is not to be trusted.
            "retire": isinstance(error, (MemoryError, RecursionError)),
        }
        return json_body(body)

    # What it tells on the way

    def _progress(self, progress: dict[str, Any]) -> None:
        try:
            self._send(json_frame(Kind.PROGRESS, [self._number, progress]))
        except (TypeError, ValueError) as error:
            raise TypeError(f"progress takes numbers, and a note of JSON: {error}") from error

    def _print(self, descriptor: int, line: str) -> None:
        if os.getpid() != self._pid:
            os.write(descriptor, (line + "\n").encode(errors="backslashreplace"))
            return
        self._output += len(line) + 1
        if self._output > MAX_OUTPUT:
            return
        if self._output + 0 > MAX_OUTPUT - 1:
            line = "(more output is dropped)"
        self._send(json_frame(Kind.OUTPUT, [self._number, descriptor, line]))

    def _ask(self, verb: str, args: list[Any]) -> Any:
        with self._asking:
            self._asked += 1
            self._send(json_frame(Kind.ASK, [self._asked, verb, args]))
            later = []
            while True:
                received = self._next()
                if received is None:
                    os._exit(0)
                kind, body = received
                if kind is Kind.ANSWER:
                    header, tail = read_json(body)
                    if header[0] == self._asked:
                        break
                later.append(received)
            self._frames.extendleft(reversed(later))
        # The supervisor is ours: it is the child that is not to be trusted.
        answer = pickle.loads(tail)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def is_cancelled(self) -> bool:
        """Whether the supervisor has said so; looked up without waiting."""
        while select.select([self._sock], [], [], 0)[0]:
            data = self._sock.recv(1 << 16)
            if not data:
                return True
            self._frames.extend(self._reader.feed(data))
        return False


def _failure(told: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Failure:
    body = told["error"].encode("latin-1")
    return Failure(
        told["job_id"],
        args,
        kwargs,
        read_error(body, told["kind"]),
        told["kind"],
        Counts(*told["counts"]),
        _black_box(body),
    )


def _black_box(body: bytes) -> dict[str, Any] | None:
    import json

    try:
        box = json.loads(body).get("black_box")
    except (ValueError, AttributeError, RecursionError):
        return None
    return box if isinstance(box, dict) else None


_HIDDEN = frozenset((__file__, asyncio.runners.__file__, asyncio.base_events.__file__))
"""Files whose frames stand between the worker and the user's code, and are no news."""


def _traceback(error: BaseException) -> str:
    # Bounded before it is formatted: a message of 100 MB need not be copied to be cut.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _HIDDEN:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-50)
    return "".join(line[:4096] for line in lines)


def _cpu() -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * linux.MAXRSS_UNIT


def _open_peak() -> int:
    """Where writing a 5 resets the peak; on other systems somewhere it does nothing."""
    try:
        return os.open("/proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def settle_in(memfd: int, output: int) -> None:
    """Make this process a child: its own group, its own chance, its own end."""
    os.setpgid(0, 0)
    linux.become_subreaper()
    linux.raise_oom_score(500)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    faulthandler.enable(file=memfd, all_threads=True)
    faulthandler.register(linux.STACK_SIGNAL, file=memfd, all_threads=True, chain=False)
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
