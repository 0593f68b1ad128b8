"""The process that leases jobs, hands them to children, and settles what becomes of them.

An asyncio loop; it never imports user code. Each served queue has an exchanger, so that at most one
exchange is in flight for it; everything else is callbacks on the same loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from typing import Any

from taskhive import batches, frames
from taskhive.answers import Answers
from taskhive.blackbox import BlackBox
from taskhive.clock import Clock, SystemClock
from taskhive.dealer import Dealer
from taskhive.errors import HandlerError, RedisUnavailable, TaskHiveError
from taskhive.exchanger import Exchanger
from taskhive.gauge import Seen
from taskhive.guard import Guard
from taskhive.handler_options import HandlerOptions
from taskhive.herald import About, Herald, Inside
from taskhive.ids import nonce
from taskhive.line import ASKED, CANCELLED, LOST, Line
from taskhive.logs import Log
from taskhive.outcomes import Ended, Outcome
from taskhive.parcels import Settle
from taskhive.pool import Pool
from taskhive.regulator import INTERVAL, Regulator
from taskhive.slot import MARGIN, Attempt, Slot
from taskhive.spawner import Spawner
from taskhive.verdicts import verdict
from taskhive.worker_options import WorkerOptions
from taskhive.world import World

TICK = 0.25
LAST_WORD_WITHIN = 2.0
TIDY_FOR = 5.0
"""How long it may take until all that a dead zygote left has fallen to us."""


class Supervisor:
    """One worker."""

    def __init__(
        self,
        options: WorkerOptions,
        log: Log,
        world: World,
        clock: Clock | None = None,
        regulator: Regulator | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.options = options
        self.log = log
        self.worker = nonce()
        self.lines: dict[str, Line] = {}
        self.is_draining = False
        self._world = world
        self._clock = clock or SystemClock()
        self._regulator = regulator
        size = regulator.target if regulator is not None else options.concurrency or 1
        self.pool = Pool(size, self._clock, log, self, guard)
        self._dealer = Dealer(self.lines, self.pool, self._clock, options.memory)
        self._exchangers: dict[str, Exchanger] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._spawner: Spawner | None = None
        self._spawners: list[Spawner] = []
        self._answers: Answers | None = None
        self._starting: list[Spawner] = []
        """Those that are not taken up yet: without children, and yet not done with."""
        self._stopping: list[Spawner] = []
        self._bell: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rng = random.Random(world.seed)
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._signals: list[int] = []
        self._last_turn = self._clock.boottime()
        self._pulsed = 0.0
        """Until when the zygotes know our leases to be trusted."""
        self._slow_until = 0.0
        self._tidy_until = 0.0
        self._herald: Herald | None = None

    # Life

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        self._world.settle_in(self.signalled)
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await stopping
            if self._failure is not None:
                raise self._failure
            return 128 + self._signals[-1] if len(self._signals) > 1 else 0
        finally:
            await self._end([starting, stopping])

    async def _start(self) -> None:
        spawner, catalog = await self._load()
        self._connect(catalog)
        await self._patiently(self._commands.session.command, None, b"PING")
        await self._introduce(catalog)
        self._last_turn = self._clock.boottime()  # it may have taken long, and was no freeze
        self._take_up(spawner, catalog)
        self._say_started(catalog)
        self._spawn(self._pulse())
        if self._regulator is not None:
            self._spawn(self._regulate(self._regulator))
            self._herald = Herald(
                About(self.options.name, self._clock.wall()),
                self._commands,
                self._runner,
                Inside(self._regulator, self.pool, self.lines, self._clock),
            )
            self._spawn(self._herald.speak())
        self._listen()
        if self.options.reload:
            self._spawn(self._world.watch(catalog, self._reload))

    def _listen(self) -> None:
        """Hear of all queues there are now."""
        if self._bell is not None:
            self._bell.cancel()
        self._bell = self._spawn(
            self._world.bell(self._commands, list(self.lines), self._rung, self._hinted)
        )

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        running = [*tasks, *self._serving.values(), *self._tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._answers is not None:
            await self._answers.close()
        self.pool.close()
        await asyncio.gather(*(spawner.stop() for spawner in self._all_spawners()))
        if self._herald is not None and self._failure is None:
            # A server that is away is not waited for: what it does not hear, it forgets by itself.
            with contextlib.suppress(TaskHiveError, TimeoutError):
                async with asyncio.timeout(LAST_WORD_WITHIN):
                    await self._herald.leave()
        await self._world.close()
        self._world.tidy(())
        if self.lines:  # or it never began, and an error follows that says why
            self.log.event("worker.stopped")

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        """A task of ours ended; if by an error, so do we: half a worker is worse than none."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
            self._stop.set()

    # Handlers

    async def _load(self) -> tuple[Spawner, dict[str, Any]]:
        """A new zygote and its catalog."""
        spawner = self._world.spawner(self.options, self)
        self._starting.append(spawner)
        try:
            return spawner, await spawner.start()
        except BaseException:
            self._starting.remove(spawner)
            await spawner.stop()
            raise

    def _connect(self, catalog: dict[str, Any]) -> None:
        self._runner, self._commands = self._world.connect(self.options, catalog)
        self._answers = Answers(self._runner, self._commands, self.pool.tell)

    async def _introduce(self, catalog: dict[str, Any]) -> None:
        """Leave in each queue the limits that hold without a handler."""
        for queue, portable in catalog["handlers"].items():
            options: Any = HandlerOptions(**portable)
            words = {
                "max_stalls": str(options.max_stalls),
                "min_backoff": str(round(options.min_backoff * 1000)),
                "max_backoff": str(round(options.max_backoff * 1000)),
                "result_ttl": _setting(options.result_ttl),
                "failure_ttl": _setting(options.failure_ttl),
                # Removed if the handler has none: the newest worker's handlers decide.
                "limit": "" if options.global_concurrency is None else str(options.global_concurrency),
            }
            await self._patiently(lambda q=queue, w=words: self._commands.configure(q, **w))

    async def _patiently(self, make: Any, *args: Any) -> Any:
        """A server that is away is waited for; one that refuses is not."""
        while True:
            try:
                return await self._runner.run(make(*args))
            except RedisUnavailable as error:
                self.log.event("server.away", "warning", why=error)

    def _take_up(self, spawner: Spawner, catalog: dict[str, Any]) -> None:
        """Serve what the catalog names, with children of this zygote."""
        for queue, portable in catalog["handlers"].items():
            options = HandlerOptions(**portable)
            if queue in self.lines:
                self.lines[queue].options = options
                continue
            line = self.lines[queue] = Line(queue, options, self.options.lease)
            self._exchangers[queue] = exchanger = Exchanger(
                line, self, self._runner, self._commands, self._clock, self.log, self._turn
            )
            task = self._serving[queue] = asyncio.create_task(exchanger.serve())
            task.add_done_callback(self._served)
        for queue in self.lines:
            self.lines[queue].is_served = queue in catalog["handlers"]
        if spawner not in self._starting:
            # It died while the server was asked, which may have taken a whole outage.
            self._spawn(self._replace())
            return
        self._starting.remove(spawner)
        self._spawners.append(spawner)
        self._spawner = spawner
        self.pool.use(spawner)

    def _served(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if task.exception() is not None:
            self._failure = self._failure or task.exception()
            self._stop.set()
        elif all(one.done() for one in self._serving.values()):
            self._stop.set()

    def _say_started(self, catalog: dict[str, Any]) -> None:
        if catalog["threads"]:
            self.log.event(
                "worker.no_fork",
                "warning",
                why=f"importing the handlers started threads ({', '.join(catalog['threads'])}), and no "
                "fork survives those: each child is a fresh interpreter, which takes longer to start. "
                "Start them in a function under @hive.on_child_start instead",
            )
        self.log.event(
            "worker.started",
            queues=",".join(sorted(self.lines)),
            server=self._world.where,
            concurrency=self._regulator.reason if self._regulator is not None else self.pool.target,
            lease=self.options.lease,
            pid=os.getpid(),
        )

    async def _reload(self, changed: list[str]) -> dict[str, Any] | None:
        """Replace the zygote; the old one's children finish. A broken edit changes nothing."""
        self.log.event("worker.reloading", changed=", ".join(changed))
        try:
            spawner, catalog = await self._load()
        except HandlerError as error:
            self.log.event("worker.not_reloaded", "error", why="the handlers as they were go on")
            self.log.plain(str(error))
            return None
        await self._introduce(catalog)
        self._take_up(spawner, catalog)
        self._listen()
        self.log.event("worker.reloaded", queues=",".join(sorted(catalog["handlers"])))
        return catalog

    # Signals and the end

    def signalled(self, number: int) -> None:
        """The first one drains, the second one stops at once."""
        self._signals.append(number)
        if len(self._signals) > 1 or not self._serving:
            self._stop.set()
            return
        self.is_draining = True
        self.log.event("worker.draining", running=self.pool.busy, grace=self.options.grace)
        self.pool.drain()
        asyncio.get_running_loop().call_later(self.options.grace, self.pool.give_back)
        self._wake()

    def _wake(self) -> None:
        for exchanger in self._exchangers.values():
            exchanger.wake.set()

    # Jobs come

    def want(self, line: Line) -> int:
        """How many jobs to ask for: none while others come first or we are too slow as it is."""
        if self.is_draining or not line.is_served or self._clock.monotonic() < self._slow_until:
            return 0
        return self._dealer.want(line)

    def patience(self, line: Line) -> float:
        """How long ends may wait for others: not at all if a child has nothing to do."""
        if self.is_draining or self.pool.load < self.pool.target:
            return 0.0
        mean = line.tally.mean or 0.0
        return batches.patience(line.tally, self.pool.lasts(line.queue, mean))

    def leased(self, line: Line, attempts: list[Attempt]) -> None:
        """Start them as soon as there is room."""
        if line.beat_at < self._clock.monotonic():
            line.beat_at = self._clock.monotonic() + line.lease / 3
        now = self._clock.boottime() + MARGIN
        late = [one for one in attempts if now >= one.trusted_until]
        if late:
            # The answer took as long as the lease: it may be over before the first renewal is heard.
            self.ended([Ended(one, BlackBox("returned")) for one in late])
        if min(one.trusted_until for one in attempts) < self._pulsed:
            # The answer to a resent request: its leases are older than what the zygote was told of.
            self._tell_trust(self._clock.boottime())
        self.pool.add([one for one in attempts if now < one.trusted_until])
        if self.is_draining:
            self.pool.drain()

    def asked_for(self, line: Line) -> None:
        """Let the next queue ask for what is left."""
        self._wake_hungry()

    def renewed(self, attempt: Attempt, answer: int) -> None:
        """The server has word of an attempt."""
        if answer == LOST:
            self.pool.drop(attempt, "lease lost", "its lease is somebody else's")
        elif answer == CANCELLED:
            self.pool.drop(attempt, "cancelled", "somebody cancelled it")
        elif answer == ASKED:
            self._ask_to_stop(attempt)

    def _ask_to_stop(self, attempt: Attempt) -> None:
        slot = self.pool.find(attempt)
        if slot is not None:
            self.pool.tell(slot, frames.cancel(attempt.number))

    def _wake_hungry(self) -> None:
        for queue, exchanger in self._exchangers.items():
            if self.lines[queue].hungry:
                exchanger.wake.set()

    def _rung(self, queue: str) -> None:
        self._turn()
        self.lines[queue].hungry = True
        self._exchangers[queue].wake.set()

    def _hinted(self, queue: str, message: str) -> None:
        """Word of the server that need not wait for the next renewal."""
        self._turn()
        line = self.lines[queue]
        match message.split(" "):
            case ["cancel", _, token, *rest] if token in line.held:
                grace = int(rest[0]) / 1000 if rest and rest[0].isdigit() else 0.0
                self.pool.drop(line.held[token], "cancelled", "somebody cancelled it", grace)
            case ["ask", _, token] if token in line.held:
                self._ask_to_stop(line.held[token])
            case ["destroyed"]:
                line.beat_at = 0.0
                self._exchangers[queue].wake.set()

    # Attempts end

    def ended(self, outcomes: list[Outcome]) -> None:
        """Settle what is over; the next exchange carries it."""
        self._turn()
        wall = self._clock.wall()
        queues = set()
        for outcome in outcomes:
            attempt = outcome.attempt
            line = self.lines[attempt.queue]
            queues.add(attempt.queue)
            result = verdict(outcome, self._rng, wall)
            line.end(attempt, result.settle)
            self._account(line, outcome, result.settle)
            if result.event:
                self.log.event(result.event, result.level, **(result.facts or {}))
        for queue in queues:
            line = self.lines[queue]
            self.pool.batch[queue] = batches.size(line.tally, line.options.isolation)
            self._exchangers[queue].wake.set()
        self._wake_hungry()

    def _account(self, line: Line, outcome: Outcome, settle: Settle | None) -> None:
        """Remember what an attempt has cost, unless it was none: given back, or not ours any more."""
        if settle is None or settle.outcome == "release":
            return
        took = outcome.box if isinstance(outcome, Ended) else outcome.costs
        line.tally.add(took.wall, took.peak_memory)
        kind = settle.outcome if settle.outcome in ("done", "cancelled") else settle.kind
        line.spent.add(kind, took.wall, took.cpu, took.peak_memory)

    def progressed(self, attempt: Attempt) -> None:
        """The next exchange tells the server."""
        self._exchangers[attempt.queue].wake.set()

    def printed(self, attempt: Attempt | None, lines: list[str]) -> None:
        """A child's output goes into our log, with the job it is of."""
        name = f"{attempt.queue}/{attempt.job.id}" if attempt is not None else None
        for line in lines:
            self.log.event("output", "output", job=name, line=line)

    def asked(self, slot: Slot, number: int, verb: str, args: list[Any]) -> None:
        """A handler wants something of the server."""
        assert self._answers is not None
        self._answers.asked(slot, number, verb, args)

    # How much is done at once

    async def _regulate(self, regulator: Regulator) -> None:
        """Follow the machine, from now on: that importing the handlers took a core is no neighbour."""
        regulator.gauge.look(())
        while True:
            await asyncio.sleep(INTERVAL)
            now = self._clock.monotonic()
            slots = [slot for slot in self.pool.slots.values() if slot.pid]
            guard = self.pool.guard
            bases = [guard.base(slot.number) for slot in slots] if guard is not None else []
            seen = [_seen(slot, now) for slot in slots]
            regulator.look(seen, max(bases, default=0))
            self.pool.aim(regulator.target, self._dealer.quick())
            # What has become long since the last look lets quick ones in beside it.
            self.pool.fill()
            self._wake_hungry()
            self.pool.shrink()

    def explains(self, code: int) -> tuple[str, str] | None:
        """The kernel kills for want of memory with the signal that anybody may send."""
        if code != -int(signal.SIGKILL) or self._regulator is None:
            return None
        gauge = self._regulator.gauge
        if not gauge.killed_by_kernel(self._clock.monotonic()):
            return None
        gauge.forgive()
        return "oom-kill", "the kernel killed it because memory had run out"

    # The clock

    def _turn(self) -> None:
        """Called before anything is believed: if we were frozen, our leases come first."""
        now = self._clock.boottime()
        gap, self._last_turn = now - self._last_turn, now
        if gap > self.options.lease - MARGIN:
            self.log.event("worker.was_frozen", "warning", seconds=gap)
            # Whoever remembers our last request must not take the next one for it.
            self.worker = nonce()
            self._check_trust(now, everybody=True)

    def _check_trust(self, now: float, everybody: bool = False) -> None:
        for line in self.lines.values():
            for attempt in list(line.held.values()):
                if now >= attempt.trusted_until - MARGIN and (attempt.strict or everybody):
                    self.pool.drop(attempt, "lease lost", "its lease could not be renewed in time")

    async def _pulse(self) -> None:
        while True:
            before = self._clock.monotonic()
            self._turn()
            now = self._clock.boottime()
            self.pool.sync()
            self._check_trust(now)
            self._tell_trust(now)
            if now < self._tidy_until:
                self._world.tidy(self._all_spawners())
            self._let_go()
            await asyncio.sleep(TICK)
            late = self._clock.monotonic() - before - TICK
            if late > self.options.lease / 6:  # half a heartbeat
                self.log.event("worker.slow", "warning", late=late)
                self._slow_until = self._clock.monotonic() + self.options.lease / 3

    def _tell_trust(self, now: float) -> None:
        self._pulsed = self._trusted_until(now)
        for spawner in self._spawners:
            spawner.pulse(self._pulsed)

    def _trusted_until(self, now: float) -> float:
        """Until when the zygote may let children live without hearing of us."""
        held = [one.trusted_until for line in self.lines.values() for one in line.held.values()]
        trusted = [until for until in held if until > now + MARGIN]
        # In an outage what may go on without a lease goes on: we are here and will say so again.
        return min(trusted, default=now + self.options.lease)

    def _let_go(self) -> None:
        """Stop the zygotes of before a reload whose last child has left."""
        used = {id(slot.spawner) for slot in self.pool.slots.values()}
        for spawner in self._spawners[:]:
            if spawner is not self._spawner and id(spawner) not in used:
                self._part_with(spawner)

    def _all_spawners(self) -> list[Spawner]:
        return [*self._starting, *self._spawners, *self._stopping]

    def _part_with(self, spawner: Spawner) -> None:
        for where in (self._starting, self._spawners):
            if spawner not in where:
                continue
            where.remove(spawner)
            self._stopping.append(spawner)
            stopping = self._spawn(spawner.stop())
            stopping.add_done_callback(lambda _: self._stopping.remove(spawner))

    # Children

    def forked(self, slot: int, pid: int, problem: str) -> None:
        """The zygote made a child."""
        self._turn()
        self.pool.forked(slot, pid, problem)

    def exited(self, slot: int, code: int, cpu: float, peak: int, let_go: bool) -> None:
        """The zygote reaped a child."""
        self._turn()
        if self._answers is not None:
            self._answers.forget(slot)
        if self._regulator is not None and slot in self.pool.slots:
            gone = _seen(self.pool.slots[slot], self._clock.monotonic())
            self._regulator.gauge.left(gone, cpu)
        self.pool.exited(slot, code, cpu, peak, let_go)

    def lost(self, spawner: Spawner) -> None:
        """A zygote died; what it made dies with it, and another one is started."""
        self.log.event("zygote.lost", "error", pid=spawner.pid)
        self._part_with(spawner)
        self.pool.lost_spawner(spawner)
        # Its children die with it, and what they had made falls to us, one after the other.
        self._tidy_until = self._clock.boottime() + TIDY_FOR
        if spawner is self._spawner and not self.is_draining:
            self._spawn(self._replace())

    async def _replace(self) -> None:
        delay = 0.1
        while True:
            try:
                self._take_up(*await self._load())
                return
            except TaskHiveError as error:
                self.log.event("zygote.not_started", "error", why=error)
                await asyncio.sleep(delay)
                delay = min(30.0, delay * 2)


def _seen(slot: Slot, now: float) -> Seen:
    running = len(slot.running())
    return Seen(slot.number, slot.pid, slot.handler, slot.weight, slot.worked_until(now), running)


def _setting(ttl: float | None) -> str:
    return "-1" if ttl is None else str(round(ttl * 1000))
