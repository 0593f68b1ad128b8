"""Runs handlers in this very process, for tests: the same bytes, scripts and decisions as a worker's.

A job is leased from the server, its arguments are decoded, its result is encoded, an exception is
recorded, and the settle goes through the same script. What is missing is the process around it: no limit
is enforced, and a crash is a crash of the test. Backoffs are not waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from taskhive import calls, context
from taskhive.context import CurrentJob
from taskhive.errors import ConfigurationError
from taskhive.frames import failed_job
from taskhive.handlers import Handler
from taskhive.handles import HiveBase
from taskhive.hive import Hive
from taskhive.ids import nonce
from taskhive.line import Line
from taskhive.outcomes import Costs, Finished, Raised
from taskhive.parcels import Leased
from taskhive.raising import tell
from taskhive.verdicts import verdict

LEASE = 3600.0
MOST = 10_000
"""Attempts after which a run is taken for one that never ends."""


class Inline:
    """The handlers of some hives, run when asked to."""

    def __init__(self, server: Hive, hives: Iterable[HiveBase]) -> None:
        self._server = server
        self._handlers: dict[str, Handler[Any, Any, Any]] = {}
        self._max_result = server._core.max_result
        self._rng = random.Random(1)
        self._busy = threading.Lock()
        self.attempts = 0
        """How many have been run so far."""
        for hive in hives:
            self._handlers.update(hive._registry.handlers)
            self._max_result = max(self._max_result, hive._core.max_result)

    def run(self) -> int:
        """Run what is ready, and what that dispatches, until nothing is; how many attempts."""
        if not self._busy.acquire(blocking=False):
            return 0  # a handler that is run by us waits: it is told so elsewhere
        try:
            before = self.attempts
            while any([self._one(handler) for handler in list(self._handlers.values())]):
                if self.attempts - before > MOST:
                    raise ConfigurationError(
                        "inline", f"{MOST} attempts and no end", "Do two handlers dispatch each other?"
                    )
            return self.attempts - before
        finally:
            self._busy.release()

    def _one(self, handler: Handler[Any, Any, Any]) -> bool:
        commands = self._server._core.commands
        words: dict[str, Any] = {"lease_ms": round(LEASE * 1000), "worker": nonce()}
        got = self._server._run(commands.exchange(handler.name, want=1, **words))
        for job in got.leases:
            self.attempts += 1
            settle = self._attempt(handler, job)
            words["worker"] = nonce()
            self._server._run(commands.exchange(handler.name, settles=[settle], **words))
        return bool(got.leases)

    def _attempt(self, handler: Handler[Any, Any, Any], job: Leased) -> Any:
        attempt = Line(handler.name, handler.options_given, LEASE).attempt(job, float("inf"))
        fence = job.token.partition(".")[0]
        current = CurrentJob(
            job.id,
            handler.name,
            job.attempts + 1,
            int(fence) if fence.isdigit() else 0,
            job.counts,
            "inline",
            lambda progress: setattr(attempt, "progress", progress),
        )
        started = time.perf_counter()
        encoding = False
        outcome: Finished | Raised
        try:
            extra = failed_job(job.fields)
            args, kwargs = calls.decode(handler, job.id, job.payload, extra)
            args, kwargs = calls.given(handler, args, kwargs, current, extra)
            context.set_current(current)
            try:
                result = _awaited(handler.function(*args, **kwargs))
            finally:
                context.set_current(None)
            encoding = True
            data = calls.encode(handler, job.id, result, self._max_result)
            outcome = Finished(attempt, data, Costs(time.perf_counter() - started, 0.0, 0))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            told = tell(handler, job.id, error, job.attempts + 1, encoding, {__file__})
            costs = Costs(time.perf_counter() - started, 0.0, 0)
            outcome = Raised(attempt, told.kind, told.record, told.after, told.at, costs)
        settle = verdict(outcome, self._rng, time.time()).settle
        assert settle is not None
        return replace(settle, delay_ms=0) if settle.outcome == "again" else settle


def _awaited(result: Any) -> Any:
    """The result of a coroutine, on a loop of its own; in a thread if this one has a loop already."""
    if not inspect.iscoroutine(result):
        return result
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(result)
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(asyncio.run(result)))
    thread.start()
    thread.join()
    return box[0]
