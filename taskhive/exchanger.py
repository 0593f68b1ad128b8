"""One queue's talk with the server: settles, renews and asks for jobs, one exchange in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from taskhive.clock import Clock
from taskhive.commands import Commands
from taskhive.effects import Flow, T
from taskhive.errors import RedisUnavailable
from taskhive.ids import nonce
from taskhive.line import Line
from taskhive.logs import Log
from taskhive.parcels import MAX_LEASES, MAX_RENEWALS, Exchanged, Renewal, Settle
from taskhive.slot import Attempt


class Runner(Protocol):
    """What acts out flows: the asyncio broker, or that of a simulation."""

    async def run(self, flow: Flow[T]) -> T:
        """Act out a flow to its end."""
        ...


class Keeper(Protocol):
    """Whoever decides how much is taken, and has the attempts in hand."""

    worker: str
    is_draining: bool

    def want(self, line: Line) -> int:
        """How many jobs of this queue could be started now."""
        ...

    def patience(self, line: Line) -> float:
        """Seconds that a settle may wait for others."""
        ...

    def leased(self, line: Line, attempts: list[Attempt]) -> None:
        """Jobs came."""
        ...

    def asked_for(self, line: Line) -> None:
        """The queue was asked: what it did not need of its share is for others."""
        ...

    def renewed(self, attempt: Attempt, answer: int) -> None:
        """A renewal was answered with something else than "kept"."""
        ...


class Exchanger:
    """Serves one line for as long as the worker does."""

    def __init__(
        self,
        line: Line,
        keeper: Keeper,
        runner: Runner,
        commands: Commands,
        clock: Clock,
        log: Log,
        turned: Callable[[], None],
    ) -> None:
        self.line = line
        self.wake = asyncio.Event()
        self._keeper = keeper
        self._runner = runner
        self._commands = commands
        self._clock = clock
        self._log = log
        self._turned = turned
        self._gathers_until = 0.0

    async def serve(self) -> None:
        """Until the worker drains and nothing is held or owed."""
        line, clock = self.line, self._clock
        while True:
            self.wake.clear()
            now = clock.monotonic()
            if self._gathers(now):
                await self._pause(self._gathers_until)
                continue
            is_due = line.is_due(now)
            want = self._want(now)
            settles = line.owed()
            renewals = line.renewals(now)
            if want or settles or renewals or (is_due and not self._keeper.is_draining):
                await self._exchange(want, settles, renewals)
                continue
            if self._keeper.is_draining and not line.held:
                return
            await self._pause(line.speaks_at(asks=not self._keeper.is_draining))

    def _gathers(self, now: float) -> bool:
        """Whether what is owed waits for more: the children have enough to do, and nothing is due."""
        line = self.line
        patience = self._keeper.patience(line) if line.settles and not line.is_due(now) else 0.0
        if patience <= 0 or now >= line.beat_at:
            return False
        until = now + patience
        self._gathers_until = min(self._gathers_until, until) if self._gathers_until else until
        return now < self._gathers_until

    async def _pause(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self.wake.wait()
        except TimeoutError:
            pass  # it is time

    def _want(self, now: float) -> int:
        line = self.line
        if line.due_at is not None and now >= line.due_at:
            line.hungry = True
        was_hungry = line.hungry
        if now >= line.poll_at:
            # A look on suspicion: if there is no room for it now, it is not a claim on the next room.
            line.hungry = True
        if not line.hungry:
            return 0
        # Every lease is renewed in one call, so no more are held than one call can name.
        want = max(0, min(self._keeper.want(line), MAX_LEASES, MAX_RENEWALS - len(line.held)))
        line.hungry = was_hungry or want > 0
        return want

    async def _exchange(self, want: int, settles: list[Settle], renewals: list[Renewal]) -> None:
        line = self.line
        self._gathers_until = 0.0
        if want:
            line.hungry = False  # a bell from here on is news
            line.last_served = self._clock.monotonic()
            line.asking = want
        try:
            got, first, last = await self._ask(want, settles, renewals)
        finally:
            line.asking = 0
        self._turned()
        for settle, answer in zip(settles, got.settled, strict=True):
            if answer == "STALE":
                self._log.event(
                    "settle.stale", "warning", job=f"{line.queue}/{settle.id}", outcome=settle.outcome
                )
        for attempt, code in line.answered(got, settles, renewals, last, self._clock.monotonic()):
            self._keeper.renewed(attempt, code)
        if len(got.leases) >= want > 0 and not got.paused:
            line.hungry = True
        if got.leases:
            # A resent request is answered with the leases it was given the first time.
            trusted = first + line.lease
            self._keeper.leased(line, [line.attempt(job, trusted) for job in got.leases])
        if want:
            self._keeper.asked_for(line)

    async def _ask(
        self, want: int, settles: list[Settle], renewals: list[Renewal]
    ) -> tuple[Exchanged, float, float]:
        """The same request until it is answered; the answer, when it was first sent, and when last.

        It may have been heard though no answer came, and is known if it comes twice.
        """
        words: dict[str, Any] = {
            "want": want,
            "lease_ms": round(self.line.lease * 1000),
            "worker": self._keeper.worker,
            "request": nonce(),
            "settles": settles,
            "renewals": renewals,
        }
        first = last = self._clock.boottime()
        while True:
            try:
                flow = self._commands.exchange(self.line.queue, **words)
                return await self._runner.run(flow), first, last
            except RedisUnavailable as error:
                self._log.event("server.away", "warning", queue=self.line.queue, why=error)
            # What it was given before is given again; new jobs would be born with an old lease.
            words["want"] = 0
            self.line.hungry = True
            last = self._clock.boottime()
