"""How a condemned child is killed: its stack, SIGTERM if a grace was asked, then the whole tree."""

from __future__ import annotations

import asyncio
import signal

from taskhive import linux
from taskhive.clock import Clock
from taskhive.slot import Slot, State

STACK_WITHIN = 0.25
"""How long a condemned child may take to write down where it is. It takes a fraction of a millisecond,
but on a machine that is full it waits for a core first."""


class Ladder:
    """The steps down, each when its time has come; the exit of the child is told by its zygote."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def kill(self, slot: Slot) -> None:
        """At once: nobody will ask where it was."""
        slot.spawner.kill(slot.pid)

    def descend(self, slot: Slot, grace: float) -> None:
        """Step by step."""
        slot.spawner.signal(slot.pid, linux.STACK_SIGNAL)
        self._await_stack(slot, self._clock.monotonic() + STACK_WITHIN, -1, grace)

    def _await_stack(self, slot: Slot, deadline: float, size: int, grace: float) -> None:
        """Until the stack is written whole, by two looks at the same size, or it takes too long."""
        if slot.state is not State.KILLING:
            return
        loop = asyncio.get_running_loop()
        written = slot.link.stack_size()
        if not ((written and written == size) or self._clock.monotonic() >= deadline):
            loop.call_later(0.001, self._await_stack, slot, deadline, written, grace)
        elif grace > 0:
            slot.spawner.signal(slot.pid, signal.SIGTERM, True)
            loop.call_later(grace, self._last_step, slot)
        else:
            slot.spawner.kill(slot.pid)

    def _last_step(self, slot: Slot) -> None:
        if slot.state is State.KILLING:
            slot.spawner.kill(slot.pid)
