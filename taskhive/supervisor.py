"""The process that leases jobs, hands them to children, and settles what becomes of them.

An asyncio loop; it never imports user code. Each served queue has one task, so that at most one
exchange is in flight for it; everything else is callbacks on the same loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from taskhive import blackbox, linux, relay
from taskhive.address import EMBEDDED, Target, read_url
from taskhive.aio_broker import AsyncBroker
from taskhive.blackbox import BlackBox
from taskhive.commands import MAX_LEASES, Commands, Renewal, Settle
from taskhive.core import DEFAULT_PREFIX, IO_TIMEOUT
from taskhive.doorbell import Doorbell
from taskhive.embedded import directory
from taskhive.errors import RedisUnavailable, ServerRefused, TaskHiveError
from taskhive.handler_options import HandlerOptions
from taskhive.ids import nonce
from taskhive.jobs import JobState
from taskhive.line import Line, failed, succeeded
from taskhive.logs import Log
from taskhive.outcomes import Ended, Finished, Outcome, Raised
from taskhive.pool import BATCH_SECONDS, MAX_BATCH, SHORT, Pool
from taskhive.retries import FailureKind
from taskhive.session import Session
from taskhive.slot import Attempt, Slot
from taskhive.spawner import Zygote
from taskhive.wire import Kind, json_frame

TICK = 0.25
MARGIN = 0.5
"""How much earlier than the lease itself a lease stops being trusted."""
OUTAGE_PATIENCE = 20.0

_KINDS = {
    "timeout": FailureKind.TIMEOUT,
    "memory": FailureKind.MEMORY,
    "cpu": FailureKind.CPU,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line says."""

    files: tuple[str, ...]
    url: str | None = None
    concurrency: int = 0
    queue: str | None = None
    grace: float = 30.0
    lease: float = 15.0
    reload: bool = False
    max_result: int = 1024 * 1024


class Supervisor:
    """One worker."""

    def __init__(self, options: WorkerOptions, log: Log) -> None:
        self.options = options
        self.log = log
        self.worker = nonce()
        self.lines: dict[str, Line] = {}
        self.pool = Pool(options.concurrency, log, self._outcome, self._asked, self._output)
        self._wakes: dict[str, asyncio.Event] = {}
        self._zygote: Zygote | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asking: dict[int, set[asyncio.Task[Any]]] = {}
        self._rng = random.Random()
        self._draining = False
        self._stop_now = asyncio.Event()
        self._drained = asyncio.Event()
        self._last_turn = linux.boottime()
        self._refused: TaskHiveError | None = None
        self.signals = 0

    # Life

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        linux.become_subreaper()
        self._listen_to_signals()
        catalog = await self._start_zygote()
        self._connect(catalog)
        await self._introduce(catalog)
        self.pool.use(self._zygote)  # type: ignore[arg-type]
        self._spawn(self._pulse())
        bell = Doorbell(self._broker, self._commands, list(self.lines), self._rung, self._hinted)
        self._spawn(bell.listen())
        serving = [asyncio.create_task(self._serve(line)) for line in self.lines.values()]
        stopping = asyncio.create_task(self._stop_now.wait())
        try:
            waiting = {stopping, *serving}
            while stopping in waiting and len(waiting) > 1:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if self.signals >= 2:
                return 128 + self._last_signal
            return 0
        finally:
            await self._end([*serving, stopping])

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in [*tasks, *self._tasks]:
            task.cancel()
        await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
        self.pool.close()
        if self._zygote is not None:
            await self._zygote.stop()
        if hasattr(self, "_broker"):
            await self._broker.close()
        self.log.event("worker.stopped")

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start_zygote(self) -> dict[str, Any]:
        settings = {"queue": self.options.queue, "max_result": self.options.max_result}
        self._zygote = Zygote(self.options.files, settings, self._report, self._lost_zygote)
        return await self._zygote.start()

    def _connect(self, catalog: dict[str, Any]) -> None:
        url = self.options.url or catalog["url"] or os.environ.get("TASKHIVE_URL")
        self.target: Target = read_url(url) if url else EMBEDDED
        prefix = catalog["prefix"] or os.environ.get("TASKHIVE_PREFIX") or DEFAULT_PREFIX
        self._broker = AsyncBroker(self.target, lambda: directory(os.environ), IO_TIMEOUT)
        self._commands = Commands(Session(self.target, OUTAGE_PATIENCE), prefix)
        for queue, portable in catalog["handlers"].items():
            portable = {k: v for k, v in portable.items() if k != "wants_job"}
            self.lines[queue] = Line(queue, HandlerOptions(**portable), self.options.lease)
            self._wakes[queue] = asyncio.Event()

    async def _introduce(self, catalog: dict[str, Any]) -> None:
        """Say what is served, and leave in each queue the limits that hold without a handler."""
        await self._patiently(self._commands.session.command, None, b"PING")
        for line in self.lines.values():
            options: Any = line.options
            await self._patiently(
                lambda line=line, options=options: self._commands.configure(
                    line.queue,
                    max_stalls=str(options.max_stalls),
                    min_backoff=str(round(options.min_backoff * 1000)),
                    max_backoff=str(round(options.max_backoff * 1000)),
                    result_ttl=_setting(options.result_ttl),
                    failure_ttl=_setting(options.failure_ttl),
                )
            )
        if catalog["threads"]:
            self.log.event(
                "worker.no_fork",
                "warning",
                why=f"importing the handlers started threads ({', '.join(catalog['threads'])}); each "
                "child gets a fresh interpreter, which takes longer. Start them in @hive.on_child_start",
            )
        self.log.event(
            "worker.started",
            queues=",".join(sorted(self.lines)),
            server=self.target,
            children=self.options.concurrency,
            lease=self.options.lease,
            pid=os.getpid(),
        )

    async def _patiently(self, make: Any, *args: Any) -> Any:
        """A server that is away is waited for; one that refuses is not."""
        while True:
            try:
                return await self._broker.run(make(*args))
            except RedisUnavailable as error:
                self.log.event("server.away", "warning", why=error)

    # Signals and the end

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        self.signals += 1
        self._last_signal = number
        if self.signals > 1:
            self._stop_now.set()
            return
        self._draining = True
        self.log.event("worker.draining", running=self.pool.busy, grace=self.options.grace)
        for attempt in list(self.pool.backlog):
            self.pool.drop(attempt, "returned", "the worker stops")
        asyncio.get_running_loop().call_later(self.options.grace, self._grace_is_over)
        self._wake_all()

    def _grace_is_over(self) -> None:
        for slot in list(self.pool.slots.values()):
            if slot.runs:
                self.pool.condemn(slot, "returned", "the worker stops")

    def _wake_all(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    # One queue

    async def _serve(self, line: Line) -> None:
        wake = self._wakes[line.queue]
        while True:
            now = time.monotonic()
            want = self._want(line)
            settles = line.owed()
            renewals = line.renewals(now)
            is_due = line.due_at is not None and now >= line.due_at
            if not (want or settles or renewals or is_due):
                if self._draining and not line.held:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(line.speaks_at(now)):
                        await wake.wait()
                wake.clear()
                continue
            wake.clear()
            await self._exchange(line, want, settles, renewals)

    def _want(self, line: Line) -> int:
        """How many jobs to ask for: none if there are none, or others come first."""
        due = line.due_at is not None and time.monotonic() >= line.due_at
        if self._draining or not (line.hungry or due):
            return 0
        room = self.pool.room(line.queue)
        if room == 0:
            return 0
        rivals = [one for one in self.lines.values() if one is not line and one.hungry]
        mine = (-line.options.priority, line.last_served)
        before = [one for one in rivals if (-one.options.priority, one.last_served) < mine]
        if before and room <= len(before):
            return 0
        share = room if not rivals else max(1, room // (len(rivals) + 1))
        return min(MAX_LEASES, share)

    async def _exchange(
        self, line: Line, want: int, settles: list[Settle], renewals: list[Renewal]
    ) -> None:
        request = nonce()
        if want:
            line.hungry = False  # a bell from here on is news
            line.last_served = time.monotonic()
        while True:
            sent = linux.boottime()
            try:
                got = await self._broker.run(
                    self._commands.exchange(
                        line.queue,
                        want=want,
                        lease_ms=round(line.lease * 1000),
                        worker=self.worker,
                        request=request,
                        settles=settles,
                        renewals=renewals,
                    )
                )
                break
            except RedisUnavailable as error:
                # The same request again: it may have been heard, and is known if it comes twice.
                self.log.event("server.away", "warning", queue=line.queue, why=error)
        now = time.monotonic()
        for settle, answer in zip(settles, got.settled, strict=True):
            if answer == "STALE":
                self.log.event("settle.stale", "warning", job=settle.id, outcome=settle.outcome)
        lost, cancelled = line.answered(got, settles, renewals, sent, now)
        for attempt in lost:
            self.pool.drop(attempt, "lease lost", "its lease is somebody else's")
        for attempt in cancelled:
            self.pool.drop(attempt, "cancelled", "somebody cancelled it")
        if len(got.leases) >= want > 0 and not got.paused:
            line.hungry = True
        if got.leases:
            attempts = [line.attempt(job) for job in got.leases]
            if line.beat_at < now:
                line.beat_at = now + line.lease / 3
            if self._draining:
                for attempt in attempts:
                    self._settle(
                        attempt, Settle(attempt.job.id, attempt.job.token, "release", delay_ms=-1)
                    )
            else:
                self.pool.add(attempts)
        self._wake_hungry()

    def _wake_hungry(self) -> None:
        for line in self.lines.values():
            if line.hungry:
                self._wakes[line.queue].set()

    def _rung(self, queue: str) -> None:
        self._turn()
        self.lines[queue].hungry = True
        self._wakes[queue].set()

    def _hinted(self, queue: str, message: str) -> None:
        words = message.split(" ")
        line = self.lines[queue]
        if words[0] == "cancel" and len(words) == 3:
            attempt = line.held.get(words[2])
            if attempt is not None:
                self.pool.drop(attempt, "cancelled", "somebody cancelled it")
        elif words[0] == "destroyed":
            line.beat_at = 0.0
            self._wakes[queue].set()

    # Outcomes

    def _outcome(self, outcome: Outcome) -> None:
        self._turn()
        attempt = outcome.attempt
        line = self.lines[attempt.queue]
        match outcome:
            case Finished():
                self._measure(line, outcome.costs.wall)
                self._settle(attempt, succeeded(attempt, outcome.result))
            case Raised():
                self._measure(line, outcome.costs.wall)
                self._settle(attempt, self._raised(outcome))
            case Ended():
                self._ended(line, outcome)
            case _:
                assert_never(outcome)
        line.hungry = True if line.due_at is not None and line.due_at <= 0 else line.hungry
        self._wakes[line.queue].set()
        self._wake_hungry()

    def _measure(self, line: Line, wall: float) -> None:
        line.mean = wall if line.mean is None else 0.9 * line.mean + 0.1 * wall
        short = line.mean < SHORT and line.options.isolation == "process"
        batch = min(MAX_BATCH, max(1, int(BATCH_SECONDS / max(line.mean, 1e-6)))) if short else 1
        self.pool.batch[line.queue] = batch

    def _settle(self, attempt: Attempt, settle: Settle) -> None:
        line = self.lines[attempt.queue]
        if line.held.pop(attempt.job.token, None) is not None:
            line.settles.append(settle)
            self._wakes[attempt.queue].set()

    def _raised(self, outcome: Raised) -> Settle:
        attempt = outcome.attempt
        kind = (
            FailureKind(outcome.kind)
            if outcome.kind in FailureKind.__members__.values()
            else FailureKind.ERROR
        )
        after = outcome.after
        if outcome.at is not None:
            after = max(0.0, outcome.at - time.time())
        box = BlackBox(
            "raised",
            wall=outcome.costs.wall,
            cpu=outcome.costs.cpu,
            peak_memory=outcome.costs.peak_memory,
            progress=attempt.progress,
            output=list(attempt.output),
        )
        body = blackbox.encode(outcome.type, outcome.message, outcome.traceback, box, outcome.exception)
        if after is not None and not math.isfinite(after):
            after = None
        settle = failed(attempt, kind, body, self._rng, after)
        self.log.event(
            "attempt.raised",
            "warning",
            job=f"{attempt.queue}/{attempt.job.id}",
            error=f"{outcome.type}: {outcome.message}",
            seconds=outcome.costs.wall,
            next=_next(settle),
        )
        return settle

    def _ended(self, line: Line, outcome: Ended) -> None:
        attempt, box = outcome.attempt, outcome.box
        job = attempt.job
        name = f"{attempt.queue}/{job.id}"
        if box.verdict == "lease lost":
            # Not ours any more: whoever has it now decides.
            line.held.pop(job.token, None)
            self.log.event("attempt.lost", "warning", job=name)
            return
        if box.verdict == "returned":
            self._settle(attempt, Settle(job.id, job.token, "release", delay_ms=-1))
            self.log.event("attempt.returned", job=name)
            return
        if box.verdict == "cancelled":
            self._settle(attempt, Settle(job.id, job.token, "cancelled"))
            self.log.event("attempt.cancelled", job=name, seconds=box.wall)
            return
        kind = _KINDS.get(box.verdict, FailureKind.CRASH)
        message = attempt.message or f"its process ended: {box.verdict}"
        body = blackbox.encode(_TYPES.get(kind, "Crashed"), message, "", box)
        settle = failed(attempt, kind, body, self._rng)
        self._settle(attempt, settle)
        self.log.event(
            "attempt.killed" if attempt.verdict else "attempt.crashed",
            "error",
            job=name,
            verdict=box.verdict,
            seconds=box.wall,
            cpu=box.cpu,
            next=_next(settle),
        )

    # The clock

    def _turn(self) -> None:
        """Called before anything is believed: if we were frozen, our leases come first."""
        now = linux.boottime()
        if now - self._last_turn > self.options.lease - MARGIN:
            self.log.event("worker.was_frozen", "warning", seconds=now - self._last_turn)
            self._last_turn = now
            self._check_trust(now, everybody=True)
            self.worker = nonce()
        self._last_turn = now

    def _check_trust(self, now: float, everybody: bool = False) -> None:
        for line in self.lines.values():
            if not line.held or now < line.trusted_until - MARGIN:
                continue
            for attempt in list(line.held.values()):
                if attempt.strict or everybody:
                    self.pool.drop(attempt, "lease lost", "its lease could not be renewed in time")

    async def _pulse(self) -> None:
        while True:
            self._turn()
            now = linux.boottime()
            self._check_trust(now)
            held = [line.trusted_until for line in self.lines.values() if line.held]
            until = min(held, default=now + self.options.lease)
            if until < now + MARGIN:
                until = now + self.options.lease  # an outage: only those go on that may
            if self._zygote is not None:
                self._zygote.pulse(until)
            await asyncio.sleep(TICK)

    # Children

    def _report(self, zygote: Zygote, kind: Kind, value: Any) -> None:
        self._turn()
        if kind is Kind.FORKED:
            self.pool.forked(*value)
        elif kind is Kind.EXITED:
            slot, _, code, cpu, peak = value
            for task in self._asking.pop(slot, ()):
                task.cancel()
            self.pool.exited(slot, code, cpu, peak)

    def _lost_zygote(self, zygote: Zygote) -> None:
        if zygote is not self._zygote:
            return
        self.log.event("zygote.lost", "error", pid=zygote.pid)
        self.pool.lost_zygote(zygote)
        for orphan in linux.children_of(os.getpid()):
            if orphan != zygote.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
        self._spawn(self._replace_zygote())

    async def _replace_zygote(self) -> None:
        delay = 0.1
        while True:
            try:
                await self._start_zygote()
                assert self._zygote is not None
                self.pool.use(self._zygote)
                return
            except TaskHiveError as error:
                self.log.event("zygote.not_started", "error", why=error)
                await asyncio.sleep(delay)
                delay = min(30.0, delay * 2)

    def _output(self, attempt: Attempt | None, line: str) -> None:
        name = f"{attempt.queue}/{attempt.job.id}" if attempt is not None else None
        self.log.event("output", "output", job=name, line=line)

    def _asked(self, slot: Slot, number: int, verb: str, args: list[Any]) -> None:
        task = self._spawn(self._answer(slot, number, verb, args))
        mine = self._asking.setdefault(slot.number, set())
        mine.add(task)
        task.add_done_callback(mine.discard)

    async def _answer(self, slot: Slot, number: int, verb: str, args: list[Any]) -> None:
        """Do for a child what it may ask for; what it says is checked as a user's input would be."""
        try:
            answer: Any = await self._broker.run(_relayed(self._commands, verb, args))
        except TaskHiveError as error:
            answer = error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            answer = ServerRefused(f"{verb} was asked for with wrong arguments: {error}")
        try:
            data = pickle.dumps(answer)
        except (pickle.PicklingError, TypeError, AttributeError):
            data = pickle.dumps(ServerRefused(str(answer)))
        self.pool.answer(slot, json_frame(Kind.ANSWER, [number], data))


_TYPES = {FailureKind.TIMEOUT: "JobTimeout", FailureKind.CRASH: "JobCrashed"}


def _next(settle: Settle) -> str:
    return f"again in {settle.delay_ms / 1000:.1f} s" if settle.outcome == "again" else "given up"


def _setting(ttl: float | None) -> str:
    return "-1" if ttl is None else str(round(ttl * 1000))


def _relayed(commands: Commands, verb: str, args: list[Any]) -> Any:
    """The flow a child asked for."""
    from taskhive import units

    if verb not in relay.OPERATIONS:
        raise ValueError(f"no such operation: {verb}")
    *words, named = args
    if words:
        units.queue_name(words[0])
    match verb:
        case "dispatch":
            words[1] = relay.items(words[1])
        case "settle":
            words[1] = relay.settle(words[1])
        case "renew":
            words[1] = relay.renewal(words[1])
        case "page" | "purge":
            words[1] = JobState(words[1])
        case "matching":
            words[1] = tuple(words[1])
    return getattr(commands, verb)(*words, **named)


def serve(options: WorkerOptions, log: Log) -> int:
    """Run a worker in this process until it is told to stop."""

    async def main() -> int:
        return await Supervisor(options, log).run()

    return asyncio.run(main())


def cores(files: Sequence[str] = ()) -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
