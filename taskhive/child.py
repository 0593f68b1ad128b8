"""The process that runs attempts; it knows no server.

It reads `RUN` frames from its private socket and answers each with `FINISHED` or `RAISED`, one after the
other; what comes as `JOIN` runs beside the rest. Nothing is shared with other children, so it can be
killed at any moment.
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
from typing import Any

from taskhive import birth, context, linux, relay
from taskhive.company import Company
from taskhive.errand import Errand, House
from taskhive.errors import SoftTimeout
from taskhive.loader import Loaded
from taskhive.mouth import Mouth
from taskhive.output import Lines
from taskhive.threads import Threads
from taskhive.wire import Kind


class Child:
    """One child, from its fork to its end."""

    def __init__(self, mouth: Mouth, loaded: Loaded, worker: str) -> None:
        self._mouth = mouth
        self._house = House(mouth, loaded.handlers, worker, loaded.max_result)
        self._starts = loaded.child_starts
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
        company = Company(self._mouth, self._habits)
        self._mouth.interrupt = company.interrupt
        self._spent = _cpu(resource.getrusage(resource.RUSAGE_SELF))
        self._mouth.ready()
        runs = self._mouth.runs
        while self._mouth.wait_for_run():
            kind, body = runs.popleft()
            errand = Errand(self._house, body)
            if kind is Kind.JOIN:
                company.start(errand)
                continue
            self._attempt(errand)
            if not runs:
                linux.set_title("taskhive child: idle")

    # One attempt

    def _attempt(self, errand: Errand) -> None:
        job, mouth = errand.job, self._mouth
        mouth.voice = errand.voice
        self._threads.grant(errand.handler.options_given.weight)
        linux.set_title(f"taskhive child: {job.queue}/{job.id}")
        os.pwrite(self._peak, b"5", 0)
        started = time.perf_counter()
        try:
            context.set_current(job)
            self._running = True
            try:
                result = errand.call()
                if inspect.iscoroutine(result):
                    result = self._await(result)
            finally:
                self._running = False
            errand.returned(result)
        except BaseException as error:  # noqa: BLE001 -- whatever a handler raises is its outcome
            if os.getpid() != self._pid:
                os._exit(1)
            errand.raised(error, __file__)
        else:
            if os.getpid() != self._pid:
                os._exit(0)  # the handler forked, and its copy came back: there is one of us already
        context.set_current(None)
        for stream in self._streams:
            stream.end()
        errand.end()
        wall = time.perf_counter() - started
        usage = resource.getrusage(resource.RUSAGE_SELF)
        before, self._spent = self._spent, _cpu(usage)
        peak = usage.ru_maxrss * linux.MAXRSS_UNIT
        spent = not self._habits.are_kept()
        mouth.tell_end(errand.frame(wall, self._spent - before, peak, spent), wall)

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
