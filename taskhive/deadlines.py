"""The limits of what runs, looked at when the first of them may have passed."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, assert_never

from taskhive.clock import Clock
from taskhive.guard import Guard
from taskhive.limits import SHORTEST, Budget, Confirm, Judgement, LookAgain, Passed
from taskhive.slot import Attempt, Slot, State


class Enforcer(Protocol):
    """Whoever acts on a limit that has passed."""

    slots: dict[int, Slot]

    def sync(self) -> None:
        """See which attempts are over, though nobody has said so."""
        ...

    def overdue(self, slot: Slot, attempt: Attempt, verdict: str, message: str) -> None:
        """It has passed a limit, and must end."""
        ...

    def warn(self, slot: Slot, attempt: Attempt) -> None:
        """It has passed its soft limit."""
        ...


class Deadlines:
    """One timer for all attempts, and one look at all of them when it rings."""

    def __init__(self, clock: Clock, guard: Guard | None, enforcer: Enforcer) -> None:
        self._clock = clock
        self._guard = guard
        self._enforcer = enforcer
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._counts: set[asyncio.Task[None]] = set()

    def begin(self, slot: Slot, attempt: Attempt) -> None:
        """Its time runs from here."""
        now = self._clock.monotonic()
        attempt.started = now
        timeout: Any = attempt.options.timeout
        soft: Any = attempt.options.soft_timeout
        if timeout is not None:
            attempt.deadline = now + timeout
            self._watch(attempt.deadline)
        if soft is not None:
            attempt.soft_at = now + soft
            self._watch(attempt.soft_at)
        self.guard(slot, attempt)

    def guard(self, slot: Slot, attempt: Attempt) -> None:
        """Hold the tree of its child against its budget from now on."""
        slot.look_at = None
        options: Any = attempt.options
        is_bounded = options.memory is not None or options.cpu_timeout is not None
        if self._guard is None or not slot.pid or not is_bounded:
            return
        budget = Budget(options.memory, options.cpu_timeout)
        after = self._guard.began(slot.number, slot.pid, budget)
        if after is not None:
            slot.look_at = self._clock.monotonic() + after
            self._watch(slot.look_at)

    def close(self) -> None:
        """No limit matters any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, moment: float) -> None:
        if moment < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = moment
            self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        """Whose time has passed? Then look again when the next one's will."""
        self._timer, self._timer_at = None, float("inf")
        self._enforcer.sync()
        now = self._clock.monotonic()
        for slot in list(self._enforcer.slots.values()):
            for attempt in slot.running():
                self._look_at(slot, attempt, now)

    def _look_at(self, slot: Slot, attempt: Attempt, now: float) -> None:
        if slot.state is not State.BUSY or attempt.verdict is not None:
            return
        if attempt.deadline is not None and now >= attempt.deadline:
            timeout: Any = attempt.options.timeout
            self._enforcer.overdue(slot, attempt, "timeout", f"ran longer than its {timeout:g} s")
            return
        if attempt.soft_at is not None and now >= attempt.soft_at:
            attempt.soft_at = None
            self._enforcer.warn(slot, attempt)
        if slot.look_at is not None and now >= slot.look_at:
            self._measure(slot, attempt, now)
        for moment in (attempt.deadline, attempt.soft_at, slot.look_at):
            if moment is not None:
                self._watch(moment)

    # Memory and CPU time

    def _measure(self, slot: Slot, attempt: Attempt, now: float) -> None:
        assert self._guard is not None
        said = self._guard.look(slot.number, slot.pid, now)
        if isinstance(said, Confirm):
            # Meanwhile it is looked at as before: one process over the limit needs no confirmation.
            slot.look_at = now + 10 * SHORTEST
            count = asyncio.get_running_loop().create_task(self._confirm(slot, attempt))
            self._counts.add(count)
            count.add_done_callback(self._counts.discard)
        else:
            self._judged(slot, attempt, said, now)

    async def _confirm(self, slot: Slot, attempt: Attempt) -> None:
        """Count page by page, in a thread: of a large tree that takes tenths of a second."""
        assert self._guard is not None
        loop = asyncio.get_running_loop()
        shares = await loop.run_in_executor(None, self._guard.shares, slot.pid)
        if slot.head is attempt and slot.state is State.BUSY:
            now = self._clock.monotonic()
            # With the zygote, everybody below it has its pages too.
            sharers = len(self._enforcer.slots)
            said = self._guard.confirmed(slot.number, slot.pid, shares, now, sharers)
            self._judged(slot, attempt, said, now)

    def _judged(self, slot: Slot, attempt: Attempt, said: Judgement | None, now: float) -> None:
        match said:
            case None | Confirm():
                slot.look_at = None
            case LookAgain(after):
                slot.look_at = now + after
                self._watch(slot.look_at)
            case Passed(verdict, message):
                self._enforcer.overdue(slot, attempt, verdict, message)
            case _:
                assert_never(said)
